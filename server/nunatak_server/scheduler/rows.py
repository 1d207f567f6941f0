"""Who sends rows and how they rank: what a turn in a batch is given to.

Work: what rows cost, in tokens through all layers; rows of one text pay for its trunk once.

Rows on their way to and through the engine: one (text, task version) pair each.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from nunatak_artifact import LoadedTask
from nunatak_contract.errors import NunatakError
from nunatak_model import Branch, Encoding
from nunatak_server.errors import TaskUnhealthyError

ANONYMOUS: Final = "anonymous"
"""The caller of requests that name none."""


class Priority(StrEnum):
    """How a request ranks among those of its own caller; it takes nothing from other callers."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 goes first."""
        return _RANKS[self]


_RANKS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class Extent(Protocol):
    """How long a row is, and how far up it reads its trunk row."""

    @property
    def trunk_tokens(self) -> int:
        """Tokens of its trunk row, paid once per batch and key."""
        ...

    @property
    def branch_tokens(self) -> int:
        """Tokens of its own branch row."""
        ...

    @property
    def trunk_share(self) -> float:
        """Part of the layers that its trunk row passes; its branch row passes the others."""
        ...


def work_added(row: Extent, *, paid_share: float = 0.0) -> float:
    """Return the work of a row, in tokens through all layers.

    That of its branch row, and that of its trunk row above `paid_share`, the part of the layers
    that others pay for.
    """
    above = row.trunk_tokens * max(0.0, row.trunk_share - paid_share)
    return above + row.branch_tokens * (1.0 - row.trunk_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """What the engine computed for one row (token after token), and how long that took."""

    logits: list[float]
    queue_s: float
    compute_s: float
    batch_rows: int
    load_s: float = 0.0
    """How long its version took to come into memory; 0 if it was there."""
    started_at: float = 0.0
    """When its batch began, by the engine's clock."""
    batch: int = 0
    """The number of its batch."""


RowOutcome = RowAnswer | NunatakError
"""Failures travel as values: a row nobody waits for any more then leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return what became of a row of the backbone alone, which is no version that is rolled back.

    Raises:
        NunatakError: `backbone_unhealthy`, it fails in its forward pass, or its outputs are not
            finite.
        NunatakError: it was not computed.
    """
    match outcome:
        case RowAnswer():
            return outcome
        case TaskUnhealthyError(reason=reason):
            raise NunatakError("backbone_unhealthy", reason=reason)
        case _:
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """The part of a row that is fixed before its version is in memory."""

    encoding: Encoding
    group: int
    """Rows of one text of one request have equal groups."""
    trunk_tokens: int
    branch_tokens: int
    trunk_share: float
    """Part of the layers that its trunk row passes."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow:
    """A row that waits; its future is resolved once, on the event loop, by the engine."""

    spec: RowSpec
    task: str
    version: int
    branch: Branch
    deadline: float
    submitted_at: float
    future: asyncio.Future[RowOutcome]
    load_s: float = 0.0
    is_shadow: bool = False
    """Whether it is computed for comparison alone, in the room that is left."""

    @property
    def encoding(self) -> Encoding:
        """The tokens that the row reads."""
        return self.spec.encoding

    @property
    def trunk_key(self) -> Encoding:
        """Rows of equal encodings share their trunk row."""
        return self.spec.encoding

    @property
    def group(self) -> int:
        """Rows of one text of one request have equal groups."""
        return self.spec.group

    @property
    def trunk_tokens(self) -> int:
        """Tokens of its trunk row."""
        return self.spec.trunk_tokens

    @property
    def branch_tokens(self) -> int:
        """Tokens of its own branch row."""
        return self.spec.branch_tokens

    @property
    def trunk_share(self) -> float:
        """Part of the layers that its trunk row passes."""
        return self.spec.trunk_share

    @property
    def caller(self) -> str:
        """Whose turn it takes."""
        return self.spec.caller

    @property
    def priority(self) -> Priority:
        """How it ranks among the rows of its caller."""
        return self.spec.priority

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; may be read from any thread."""
        return self.future.cancelled()


def row_spec(
    encoding: Encoding,
    split_depth: int | None,
    *,
    group: int,
    num_layers: int,
    caller: str,
    priority: Priority,
) -> RowSpec:
    """Return the row of a version that splits from the trunk at `split_depth`.

    A branch that owns every layer reads no trunk; a head alone has no layers of its own.
    """
    return RowSpec(
        encoding=encoding,
        group=group,
        trunk_tokens=encoding.num_tokens if split_depth else 0,
        branch_tokens=encoding.num_tokens if split_depth != num_layers else 0,
        trunk_share=(split_depth or 0) / num_layers,
        caller=caller,
        priority=priority,
    )


def work_by_task(asked: Iterable[tuple[str, Sequence[RowSpec]]]) -> dict[str, float]:
    """Return the tokens through all layers of each task's rows; a text's trunk counts once.

    Its first task pays for it, up to its own split depth, and a deeper one for what is above.
    """
    found, shares = dict[str, float](), dict[int, float]()
    for task, rows in asked:
        work = 0.0
        for row in rows:
            paid = shares.get(row.group, 0.0)
            work += work_added(row, paid_share=paid)
            shares[row.group] = max(paid, row.trunk_share)
        found[task] = found.get(task, 0.0) + work
    return found


def pending_row(
    spec: RowSpec,
    task: LoadedTask,
    *,
    deadline: float,
    now: float,
    load_s: float = 0.0,
    is_shadow: bool = False,
) -> PendingRow:
    """Return a row as the engine takes it, with a future of its own.

    `task` is the row's version, which stays in memory until the row is answered.
    """
    manifest = task.manifest
    return PendingRow(
        spec=spec,
        task=manifest.task,
        version=manifest.version,
        branch=task.branch,
        deadline=deadline,
        submitted_at=now,
        future=asyncio.get_running_loop().create_future(),
        load_s=load_s,
        is_shadow=is_shadow,
    )

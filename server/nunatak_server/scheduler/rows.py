"""Who sends rows and how they rank: what a turn in a batch is given to.

Work: what rows cost, in tokens through all layers; rows of one text pay for its trunk once.

Rows on their way through the engine: one (text, task version) pair each.

Planned rows: what a request is to compute, before its versions are in memory.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from nunatak_artifact import LoadedTask
from nunatak_model import Branch, Encoding
from nunatak_registry import TaskManifest
from nunatak_server.errors import BackboneUnhealthyError, ServerError, TaskUnhealthyError

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


RowOutcome = RowAnswer | ServerError
"""Failures travel as values: a row nobody waits for any more then leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return what became of a row of the backbone alone, which is no version that is rolled back.

    Raises:
        BackboneUnhealthyError: it fails in its forward pass, or its outputs are not finite.
        ServerError: it was not computed.
    """
    match outcome:
        case RowAnswer():
            return outcome
        case TaskUnhealthyError(reason=reason):
            raise BackboneUnhealthyError(reason)
        case _:
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow:
    """A row that waits; its future is resolved once, on the event loop, by the engine."""

    task: str
    version: int
    branch: Branch
    encoding: Encoding
    group: int
    trunk_tokens: int
    branch_tokens: int
    deadline: float
    submitted_at: float
    load_s: float = 0.0
    future: asyncio.Future[RowOutcome]
    trunk_share: float = 0.0
    """Part of the layers that its trunk row passes."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    is_shadow: bool = False
    """Whether it is computed for comparison alone, in the room that is left."""

    @property
    def trunk_key(self) -> Encoding:
        """Rows of equal encodings share their trunk row."""
        return self.encoding

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; may be read from any thread."""
        return self.future.cancelled()


def count_tokens(
    encoding: Encoding, split_depth: int | None, *, num_layers: int
) -> tuple[int, int]:
    """Return the tokens a row needs as trunk row and as branch row.

    A branch that owns every layer reads no trunk; a head alone has no layers of its own.
    """
    trunk = encoding.num_tokens if split_depth else 0
    own = encoding.num_tokens if split_depth != num_layers else 0
    return trunk, own


ShadowRows = Callable[[Sequence[PendingRow]], Sequence[PendingRow]]
"""Given the rows of a version, returns rows to compute beside them, which nobody here waits for."""
Report = Callable[[list[RowOutcome]], None]
"""Is given what became of the rows of a version, as soon as the last of them is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row before its version is in memory."""

    encoding: Encoding
    group: int
    trunk_tokens: int
    branch_tokens: int
    trunk_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRows:
    """The rows of one request for one version."""

    manifest: TaskManifest
    rows: tuple[PlannedRow, ...]
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    shadow_rows: ShadowRows | None = None
    report: Report | None = None


def work_by_task(asked: Sequence[VersionRows]) -> dict[str, float]:
    """Return the tokens through all layers of each task's rows; a text's trunk counts once.

    Its first task pays for it, up to its own split depth, and a deeper one for what is above.
    """
    found, shares = dict[str, float](), dict[int, float]()
    for each in asked:
        work = 0.0
        for row in each.rows:
            paid = shares.get(row.group, 0.0)
            work += work_added(row, paid_share=paid)
            shares[row.group] = max(paid, row.trunk_share)
        task = each.manifest.task
        found[task] = found.get(task, 0.0) + work
    return found


def pending_row(  # noqa: PLR0913 - a row, and what its request says of it
    row: PlannedRow,
    task: LoadedTask,
    *,
    deadline: float,
    now: float,
    load_s: float = 0.0,
    caller: str = ANONYMOUS,
    priority: Priority = Priority.NORMAL,
    is_shadow: bool = False,
) -> PendingRow:
    """Return a planned row as the engine takes it, with a future of its own.

    `task` is its version, which stays in memory until the row is answered.
    """
    manifest = task.manifest
    return PendingRow(
        task=manifest.task,
        version=manifest.version,
        branch=task.branch,
        encoding=row.encoding,
        group=row.group,
        trunk_tokens=row.trunk_tokens,
        branch_tokens=row.branch_tokens,
        deadline=deadline,
        submitted_at=now,
        load_s=load_s,
        future=asyncio.get_running_loop().create_future(),
        trunk_share=row.trunk_share,
        caller=caller,
        priority=priority,
        is_shadow=is_shadow,
    )

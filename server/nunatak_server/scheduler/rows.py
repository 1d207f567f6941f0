"""Rows: one (text, task version) pair each, from a request to its answer.

In reading order: the priority of a row, its work in tokens through all layers, the answer of a row,
`PendingRow` (a row in the engine), and `PlannedRow` (a row before its version is in memory).
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
"""The caller of requests without an API key."""


class Priority(StrEnum):
    """The rank of a request among the requests of its caller; other callers are not affected."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 goes first."""
        return _RANKS[self]


_RANKS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class Extent(Protocol):
    """The length of a row, and the share of the layers that its trunk row passes."""

    @property
    def trunk_tokens(self) -> int:
        """Tokens of the trunk row, counted once for all rows of a batch with one trunk key."""
        ...

    @property
    def branch_tokens(self) -> int:
        """Tokens of the branch row."""
        ...

    @property
    def trunk_share(self) -> float:
        """Share of the layers that the trunk row passes; the branch row passes the others."""
        ...


def work_added(row: Extent, *, paid_share: float = 0.0) -> float:
    """Return the work that a row adds to a batch, in tokens through all layers.

    The work has two parts: the branch row, and the trunk row above `paid_share`, the share of the
    layers that other rows already pay for.
    """
    above = row.trunk_tokens * max(0.0, row.trunk_share - paid_share)
    return above + row.branch_tokens * (1.0 - row.trunk_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """The logits of one row, and the times of its batch."""

    logits: list[float]
    """Of a head that reads tokens: token after token."""
    queue_s: float
    compute_s: float
    batch_rows: int
    load_s: float = 0.0
    """Time that the row waited for the load of its version; 0 for a resident version."""
    started_at: float = 0.0
    """Start of the batch, by the engine's clock."""
    batch: int = 0
    """Number of the batch."""


RowOutcome = RowAnswer | ServerError
"""An error is a value here. A row that nobody awaits then leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return the answer of a row of the backbone alone.

    Raises:
        BackboneUnhealthyError: the forward pass fails, or its outputs are not finite. A
            `TaskUnhealthyError` would tell the operator to roll a version back.
        ServerError: the row was not computed.
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
    """A row in the engine. The engine resolves its future once, on the event loop."""

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
    """Share of the layers that the trunk row passes."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    is_shadow: bool = False
    """Whether the row only serves a comparison, and runs only in a free place of a batch."""

    @property
    def trunk_key(self) -> Encoding:
        """Rows with equal keys share a trunk row."""
        return self.encoding

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; any thread may read this."""
        return self.future.cancelled()


def count_tokens(
    encoding: Encoding, split_depth: int | None, *, num_layers: int
) -> tuple[int, int]:
    """Return the tokens of a row as trunk row and as branch row.

    A branch that owns every layer has no trunk row. A head alone has no branch row.
    """
    trunk = encoding.num_tokens if split_depth else 0
    own = encoding.num_tokens if split_depth != num_layers else 0
    return trunk, own


ShadowRows = Callable[[Sequence[PendingRow]], Sequence[PendingRow]]
"""From the rows of a version to the rows of its shadow, for the same batch."""
Report = Callable[[list[RowOutcome]], None]
"""Called with the outcomes of the rows of a version, once the last row is answered."""


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
    """Return the work of the rows of each task, in tokens through all layers.

    The trunk row of a text counts once. The first task pays up to its split depth, and a task with
    a higher split depth pays for the layers above.
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


def pending_row(  # noqa: PLR0913 - a row, and the attributes of its request
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
    """Return a planned row for the engine, with a new future.

    The caller must keep the version `task` in memory until the row is answered.
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

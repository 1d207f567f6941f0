"""Rows: one row for each pair of a text and a task version, from the service to the engine.

The caller and the priority of a row decide the row's turn in a batch. The work of a row is its cost
in tokens through all layers. Rows of one text pay for its trunk once.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from nunatak_contract.errors import NunatakError
from nunatak_model import Branch, Encoding
from nunatak_server.errors import TaskUnhealthyError

ANONYMOUS: Final = "anonymous"
"""The caller of requests without a named caller."""


class Priority(StrEnum):
    """The rank of a request among its caller's requests; other callers lose nothing by it."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        return _RANKS[self]


MIN_COST: Final = 1.0
"""Tokens that a row counts at least: a row that costs no work still takes time and memory."""

LOGITS_PER_TOKEN: Final = 32
"""Number of logits that become outputs in the time in which a CPU computes one token."""

_RANKS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """The logits of one row, token after token for some heads, and the times of the row."""

    logits: list[float]
    queue_s: float
    compute_s: float
    batch_rows: int
    load_s: float = 0.0
    """Time to load the row's version; 0 if the version was in memory."""
    started_at: float = 0.0
    """The start of the row's batch, by the engine's clock."""
    batch: int = 0


RowOutcome = RowAnswer | NunatakError
"""Failures are values, so a row whose request has gone leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return a row's answer, or raise a failure that names the backbone: no task can roll back."""
    match outcome:
        case RowAnswer():
            return outcome
        case TaskUnhealthyError(reason=reason):
            raise NunatakError("backbone_unhealthy", reason=reason)
        case _:
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSpec:
    """The part of a row that is fixed before its version is in memory."""

    encoding: Encoding
    """The tokens that the row reads. Rows of a batch with equal encodings share their trunk row."""
    group: int
    """Rows of one text of one request have equal groups."""
    trunk_tokens: int
    """Tokens of the row's trunk row, paid once per batch and encoding."""
    branch_tokens: int
    trunk_share: float
    """Share of the layers that the trunk row passes; the branch row passes the others."""
    backbone: str
    token_cost: float
    """Cost of a token through all layers, as a share of the largest backbone's."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingRow(RowSpec):
    task: str
    deadline: float
    """The clock reading after which the answer is useless."""


RowT = TypeVar("RowT", bound=WaitingRow)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow(WaitingRow):
    """A row that waits; its future is resolved once, on the event loop, by the engine."""

    version: int
    branch: Branch
    submitted_at: float
    future: asyncio.Future[RowOutcome]
    load_s: float = 0.0
    is_shadow: bool = False
    """Whether the row is a shadow row, which only fills the free places of a batch."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; may be read from any thread."""
        return self.future.cancelled()


def work_added(row: RowSpec, *, paid_share: float = 0.0) -> float:
    """Return the work of a row, in tokens through all layers of the largest backbone.

    The work has two parts: the branch row, and the layers of the trunk row above `paid_share`.
    Other rows pay for the share `paid_share` of the layers.
    """
    above = row.trunk_tokens * max(0.0, row.trunk_share - paid_share)
    return row.token_cost * (above + row.branch_tokens * (1.0 - row.trunk_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBackbone:
    digest: str
    num_layers: int
    token_cost: float


def row_spec(
    encoding: Encoding,
    split_depth: int | None,
    *,
    backbone: RowBackbone,
    group: int,
    caller: str,
    priority: Priority,
) -> RowSpec:
    """Return the row of a version that splits at `split_depth`; at 0 it reads no trunk."""
    return RowSpec(
        encoding=encoding,
        group=group,
        trunk_tokens=encoding.num_tokens if split_depth else 0,
        branch_tokens=encoding.num_tokens if split_depth != backbone.num_layers else 0,
        trunk_share=(split_depth or 0) / backbone.num_layers,
        backbone=backbone.digest,
        token_cost=backbone.token_cost,
        caller=caller,
        priority=priority,
    )


class RowTokens:
    """The tokens of a request's rows, by task: at least `MIN_COST` for each row.

    The first task of a text pays for the trunk up to the task's split depth. A task with a higher
    split depth pays for the layers above.
    """

    def __init__(self) -> None:
        self.least: dict[str, float] = {}
        """`MIN_COST` for each row."""
        self.extra: dict[str, float] = {}
        """What the work of each row is above `MIN_COST`, and the work to make outputs."""
        self._paid_shares: dict[int, float] = {}

    def add(self, task: str, row: RowSpec) -> None:
        paid = self._paid_shares.get(row.group, 0.0)
        extra = max(0.0, work_added(row, paid_share=paid) - MIN_COST)
        self._paid_shares[row.group] = max(paid, row.trunk_share)
        self.least[task] = self.least.get(task, 0.0) + MIN_COST
        self.extra[task] = self.extra.get(task, 0.0) + extra

    def add_outputs(self, task: str, num_logits: int) -> None:
        self.extra[task] = self.extra.get(task, 0.0) + num_logits / LOGITS_PER_TOKEN


def pending_row(  # noqa: PLR0913 - the fields of a row, by name
    spec: RowSpec,
    *,
    task: str,
    version: int,
    branch: Branch,
    deadline: float,
    now: float,
    load_s: float = 0.0,
    is_shadow: bool = False,
) -> PendingRow:
    return PendingRow(
        encoding=spec.encoding,
        group=spec.group,
        trunk_tokens=spec.trunk_tokens,
        branch_tokens=spec.branch_tokens,
        trunk_share=spec.trunk_share,
        backbone=spec.backbone,
        token_cost=spec.token_cost,
        caller=spec.caller,
        priority=spec.priority,
        task=task,
        version=version,
        branch=branch,
        deadline=deadline,
        submitted_at=now,
        future=asyncio.get_running_loop().create_future(),
        load_s=load_s,
        is_shadow=is_shadow,
    )

"""What is told of every batch, and to whom."""

from dataclasses import dataclass
from typing import Protocol

from nunatak_server.batching.planner import BatchPlan
from nunatak_server.batching.rows import PendingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What one batch held and how long it took."""

    number: int
    num_rows: int
    num_tokens: int
    num_tasks: int
    num_shared_rows: int
    num_padding_saved: int
    """Tokens that the same trunk and branch rows would have cost more, had each been padded to
    the longest of its kind."""
    started_at: float
    compute_s: float
    """With the time of what overtook it."""
    has_overtaken: bool
    """Whether it ran between two layers of another batch."""


class BatchObserver(Protocol):
    """Is told about each batch, on the engine thread."""

    def observe_batch(self, report: BatchReport) -> None:
        """Record one batch."""
        ...


class BatchObservers:
    """Tells several observers, in their order."""

    def __init__(self, *observers: BatchObserver) -> None:
        self._observers = observers

    def observe_batch(self, report: BatchReport) -> None:
        """Record one batch with each."""
        for observer in self._observers:
            observer.observe_batch(report)


def report_of(
    plan: BatchPlan[PendingRow],
    *,
    number: int,
    started_at: float,
    compute_s: float,
    has_overtaken: bool,
) -> BatchReport:
    """Report a batch by its plan."""
    num_on_trunk = sum(row.trunk_tokens > 0 for row in plan.batch)
    num_branch_rows = sum(row.branch_tokens > 0 for row in plan.batch)
    longest_trunk = max((row.trunk_tokens for row in plan.batch), default=0)
    longest_branch = max((row.branch_tokens for row in plan.batch), default=0)
    padded = plan.num_trunk_rows * longest_trunk + num_branch_rows * longest_branch
    return BatchReport(
        number=number,
        num_rows=len(plan.batch),
        num_tokens=plan.num_tokens,
        num_tasks=len({(row.task, row.version) for row in plan.batch}),
        num_shared_rows=num_on_trunk - plan.num_trunk_rows - plan.num_held_rows,
        num_padding_saved=padded - plan.num_tokens,
        started_at=started_at,
        compute_s=compute_s,
        has_overtaken=has_overtaken,
    )

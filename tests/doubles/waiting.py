"""Waiting rows without tensors and futures, with all that a planner reads."""

from collections.abc import Iterable
from dataclasses import dataclass

from nunatak_server.scheduler.planner import BatchPlan
from nunatak_server.scheduler.planner import WaitingRow as AnyRow
from nunatak_server.scheduler.rows import ANONYMOUS, Priority


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingRow:
    """A waiting row; by default half of its layers are trunk."""

    task: str
    group: int
    trunk_key: str
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    trunk_tokens: int = 4
    branch_tokens: int = 4
    trunk_share: float = 0.5
    backbone: str = "one"
    token_cost: float = 1.0
    deadline: float = 200.0
    is_cancelled: bool = False


def waiting_row(
    task: str,
    group: int,
    *,
    tokens: int = 4,
    caller: str = ANONYMOUS,
    priority: Priority = Priority.NORMAL,
) -> WaitingRow:
    """Return a row that reads a text of its group alone."""
    return WaitingRow(
        task=task,
        group=group,
        trunk_key=str(group),
        trunk_tokens=tokens,
        branch_tokens=tokens,
        caller=caller,
        priority=priority,
    )


def left_by(plan: BatchPlan[AnyRow], pending: Iterable[AnyRow]) -> list[AnyRow]:
    """Return the rows that a plan does not take, in their order."""
    taken = set(map(id, plan.batch))
    return [row for row in pending if id(row) not in taken]


def heavy(count: int = 8, *, caller: str = ANONYMOUS) -> list[WaitingRow]:
    """Return rows of one task about different texts."""
    return [waiting_row("heavy", 1000 + number, caller=caller) for number in range(count)]

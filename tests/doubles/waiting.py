"""Waiting rows without tensors and futures, with all that a planner reads."""

from collections.abc import Iterable
from dataclasses import dataclass

from nunatak_model import Encoding
from nunatak_server.scheduler import rows
from nunatak_server.scheduler.planner import BatchPlan
from nunatak_server.scheduler.rows import ANONYMOUS, Priority, RowT


def text_of(key: object) -> Encoding:
    """Return the encoding of a text with a key."""
    return Encoding(token_ids=tuple(str(key).encode()), type_ids=(0,) * len(str(key)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingRow(rows.WaitingRow):
    """A waiting row; by default half of its layers are trunk."""

    trunk_tokens: int = 4
    branch_tokens: int = 4
    trunk_share: float = 0.5
    backbone: str = "one"
    token_cost: float = 1.0
    deadline: float = 200.0


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
        encoding=text_of(group),
        trunk_tokens=tokens,
        branch_tokens=tokens,
        caller=caller,
        priority=priority,
    )


def left_by(plan: BatchPlan[RowT], pending: Iterable[RowT]) -> list[RowT]:
    """Return the rows that a plan does not take, in their order."""
    taken = set(map(id, plan.batch))
    return [row for row in pending if id(row) not in taken]


def heavy(count: int = 8, *, caller: str = ANONYMOUS) -> list[WaitingRow]:
    """Return rows of one task about different texts."""
    return [waiting_row("heavy", 1000 + number, caller=caller) for number in range(count)]

"""Waiting rows without tensors and futures, with all that a planner reads."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nunatak_model import Encoding
from nunatak_server.scheduler.planner import BatchPlan
from nunatak_server.scheduler.rows import ANONYMOUS, PendingRow, RowSpec


def text_of(key: object) -> Encoding:
    return Encoding(token_ids=tuple(str(key).encode()), type_ids=(0,) * len(str(key)))


def waiting_row(
    task: str,
    group: int,
    *,
    tokens: int = 4,
    deadline: float = 200.0,
    **spec: Any,  # noqa: ANN401 - fields of a RowSpec
) -> PendingRow:
    """Return a row that reads a text of its group alone; half of its layers are trunk."""
    unread: Any = None
    fields: dict[str, Any] = {"backbone": "one", "token_cost": 1.0, "trunk_share": 0.5}
    fields |= {"trunk_tokens": tokens, "branch_tokens": tokens, "encoding": text_of(group)} | spec
    row: dict[str, Any] = {"version": 1, "branch": unread, "submitted_at": 0.0, "future": unread}
    return PendingRow(RowSpec(group=group, **fields), task=task, deadline=deadline, **row)


def changed(row: PendingRow, **spec: Any) -> PendingRow:  # noqa: ANN401 - fields of a RowSpec
    """Return a row with other values of its spec."""
    return replace(row, spec=replace(row.spec, **spec))


def left_by(plan: BatchPlan, pending: Iterable[PendingRow]) -> list[PendingRow]:
    """Return the rows that a plan does not take, in their order."""
    taken = set(map(id, plan.batch))
    return [row for row in pending if id(row) not in taken]


def heavy(count: int = 8, *, caller: str = ANONYMOUS) -> list[PendingRow]:
    return [waiting_row("heavy", 1000 + number, caller=caller) for number in range(count)]

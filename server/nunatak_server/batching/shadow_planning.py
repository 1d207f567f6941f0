"""Shadow rows: computed in the room that a batch has left, or never.

A shadow row comes with the row it shadows and is worth computing in the next batch only: that is
where the two share a trunk row. As soon as a row that somebody waits for does not fit, no shadow
row is taken; none of them waits beyond the next batch. The shadow of a row that overtakes a batch
comes with the one after, on a trunk row of its own, or never.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from nunatak_server.batching.planner import BatchLimits, BatchPlan, Waiting


class MaybeShadow(Waiting, Protocol):
    """What waits, for a caller or as a shadow."""

    @property
    def is_shadow(self) -> bool:
        """Whether nobody waits for the row."""
        ...


Row = TypeVar("Row", bound=MaybeShadow)


def plan_with_shadows(
    pending: Sequence[Row],
    *,
    limits: BatchLimits,
    plan: Callable[[Sequence[Row]], BatchPlan[Row]],
) -> BatchPlan[Row]:
    """Plan what callers wait for as if there were no shadows, then fill the room that is left.

    Shadow rows that find no room are in `expired`: `waiting` never holds one.
    """
    shadows = [row for row in pending if row.is_shadow]
    if not shadows:
        return plan(pending)
    planned = plan([row for row in pending if not row.is_shadow])
    cancelled = [row for row in shadows if row.is_cancelled]
    live = [row for row in shadows if not row.is_cancelled]
    has_room = bool(planned.batch) and not planned.waiting
    filled, dropped = _fill(planned, live, limits) if has_room else (planned, live)
    return replace(
        filled,
        expired=(*planned.expired, *dropped),
        cancelled=(*planned.cancelled, *cancelled),
    )


def _fill(
    planned: BatchPlan[Row], shadows: Sequence[Row], limits: BatchLimits
) -> tuple[BatchPlan[Row], list[Row]]:
    """Add shadow rows, in their order, while they fit; return those that did not as well."""
    batch, dropped = list(planned.batch), list[Row]()
    trunk_keys = {row.trunk_key for row in batch if row.trunk_tokens > 0}
    num_tokens, num_trunk_rows = planned.num_tokens, planned.num_trunk_rows
    work = planned.work
    for row in shadows:
        needs_trunk = row.trunk_tokens > 0 and row.trunk_key not in trunk_keys
        cost = row.branch_tokens + (row.trunk_tokens if needs_trunk else 0)
        own = row.branch_tokens * (1.0 - row.trunk_share)
        is_too_long = num_tokens + cost > limits.max_tokens or work + own > limits.max_work
        if len(batch) >= limits.max_rows or is_too_long:
            dropped.append(row)
            continue
        batch.append(row)
        num_tokens, work = num_tokens + cost, work + own
        if needs_trunk:
            trunk_keys.add(row.trunk_key)
            num_trunk_rows += 1
    filled = replace(
        planned,
        batch=tuple(batch),
        num_tokens=num_tokens,
        num_trunk_rows=num_trunk_rows,
        work=work,
        asked_work=planned.asked_work + work - planned.work,
    )
    return filled, dropped

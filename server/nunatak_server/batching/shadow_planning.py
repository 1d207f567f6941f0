"""Shadow rows: computed in the room that a batch has left, or never.

A shadow row comes with the row it shadows and is worth computing in the next batch only: that is
where the two share a trunk row. As soon as a row that somebody waits for does not fit, no shadow
row is taken; none of them waits beyond the next batch. The shadow of a row that overtakes a batch
comes with the one after, on a trunk row of its own, or never.
"""

from collections.abc import Iterable
from dataclasses import replace

from nunatak_server.batching.planner import BatchLimits, BatchPlan, WaitingRow


def add_shadows(
    plan: BatchPlan[WaitingRow], shadows: Iterable[WaitingRow], *, limits: BatchLimits
) -> BatchPlan[WaitingRow]:
    """Fill the room that a batch has left with shadow rows, in their order, while they fit."""
    if not plan.batch or plan.backlog or plan.going_first:
        return plan
    batch = list(plan.batch)
    trunk_keys = {row.trunk_key for row in batch if row.trunk_tokens > 0}
    num_tokens, num_trunk_rows = plan.num_tokens, plan.num_trunk_rows
    work = plan.work
    for row in shadows:
        needs_trunk = row.trunk_tokens > 0 and row.trunk_key not in trunk_keys
        cost = row.branch_tokens + (row.trunk_tokens if needs_trunk else 0)
        own = row.branch_tokens * (1.0 - row.trunk_share)
        is_too_long = num_tokens + cost > limits.max_tokens or work + own > limits.max_work
        if len(batch) >= limits.max_rows or is_too_long:
            continue
        batch.append(row)
        num_tokens, work = num_tokens + cost, work + own
        if needs_trunk:
            trunk_keys.add(row.trunk_key)
            num_trunk_rows += 1
    return replace(
        plan,
        batch=tuple(batch),
        num_tokens=num_tokens,
        num_trunk_rows=num_trunk_rows,
        work=work,
        asked_work=plan.asked_work + work - plan.work,
    )

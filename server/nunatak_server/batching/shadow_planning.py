"""Shadow rows: computed in the room that a batch has left, or never.

A shadow row comes with the row it shadows and is worth computing in the next batch only: that is
where the two share a trunk row. As soon as a row that somebody waits for does not fit, no shadow
row is taken; none of them waits beyond the next batch. The shadow of a row that overtakes a batch
comes with the one after, on a trunk row of its own, or never.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from nunatak_server.batching.planner import BatchLimits, BatchPlan, Draft, TurnRules, WaitingRow


def add_shadows(
    plan: BatchPlan[WaitingRow],
    shadows: Iterable[WaitingRow],
    *,
    limits: BatchLimits,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Fill the room that a batch has left with shadow rows, in their order, while they fit.

    `limits` and `rules` are those that the batch was planned by.
    """
    if not plan.batch or plan.backlog or plan.going_first:
        return plan
    draft = Draft[WaitingRow](limits=limits, is_trunk_held=rules.is_trunk_held, seen=set())
    for row in plan.batch:
        draft.take(row, max_work=inf)
    for row in shadows:
        draft.take(row, max_work=limits.max_work)
    return replace(
        plan,
        batch=tuple(draft.rows),
        num_tokens=draft.num_tokens,
        num_trunk_rows=len(draft.trunk_shares),
        num_held_rows=draft.num_held_rows,
        work=draft.work,
        asked_work=draft.asked_work,
    )

"""Preemption: rows of light flows go before a batch of heavy flows.

A batch takes as many rows of a heavy flow as fit. Without preemption, a row of a light flow would
wait for all of them. A light row goes first in two places: the planner leaves the heavy rows of the
next batch behind it (`plan_light_first`), and it runs between two layers of a batch that has begun
(`plan_preemption`). `Usage` tells light flows from heavy ones. Flows with equal usage take turns,
so their batches stay as efficient as without preemption.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Generic

from nunatak_server.scheduler.fairness import Flow, Queues, Usage, flow_of
from nunatak_server.scheduler.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    WaitingRow,
    plan_batch,
    work_by_flow,
)

MAX_PREEMPTION: Final = 4.0
"""Most work that goes before one batch, as a multiple of the batch's work. With a bound, heavy
flows make progress as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Generic[WaitingRow]):
    """A batch that has begun, and the work that has preempted it."""

    batch: Sequence[WaitingRow]
    charged: float
    """Charge of the rows, in tokens through all layers."""
    heavy_flows: frozenset[Flow]
    """Flows with more rows than the batch took, or with as many new rows since."""
    preempted_by: float = 0.0
    """Charge of the rows that preempted the batch."""

    @property
    def is_all_heavy(self) -> bool:
        """Whether every row of the batch belongs to a heavy flow."""
        return self.heavy_flows.issuperset(map(flow_of, self.batch))

    def after(self, plan: BatchPlan[WaitingRow]) -> "Running[WaitingRow]":
        """Return this batch after the batch of `plan` has preempted it."""
        return replace(self, preempted_by=self.preempted_by + plan.charged)

    def with_arrivals(self, queues: Queues[WaitingRow]) -> "Running[WaitingRow]":
        """Count a flow as heavy, too, once as many of its rows wait as the batch holds."""
        if self.is_all_heavy:
            return self
        held = Counter(map(flow_of, self.batch))
        waiting = {flow: len(queues.of_flow(flow)) for flow in held if flow in queues.flows}
        grown = (flow for flow, count in waiting.items() if count >= held[flow])
        return replace(self, heavy_flows=self.heavy_flows.union(grown))


def begin_batch(plan: BatchPlan[WaitingRow]) -> Running[WaitingRow]:
    """Return the batch of a plan, before its first layer."""
    return Running(batch=plan.batch, charged=plan.charged, heavy_flows=_backlog_in(plan))


def plan_light_first(
    queues: Queues[WaitingRow],
    *,
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Plan the next batch; where it mixes heavy flows with others, the others go first.

    The result then holds rows of heavy flows alone, and `going_first` holds the other rows. At
    first only the heaviest flows count as heavy: a flow with a backlog may be light compared with
    them, unless more of its rows wait than the whole batch has. If that gives no plan, every flow
    with a backlog counts as heavy.
    """
    plan = partial(plan_batch, queues, limits=limits, order=order, rules=rules)
    whole = plan()
    too_long = frozenset(
        flow for flow in _backlog_in(whole) if len(queues.of_flow(flow)) > len(whole.batch)
    )
    heaviest_in = partial(_heaviest_in, weights=rules.weights, long_flows=too_long)
    for heavy_in in (heaviest_in, _backlog_in):
        rest = _without_light(whole, plan, heavy_in, rules)
        if rest is not None:
            return rest
    return whole


def plan_before(
    rows: Sequence[WaitingRow],
    *,
    queues: Queues[WaitingRow],
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Plan a batch of some rows of `queues` that goes before a batch that has begun."""
    plan = plan_batch(
        Queues(rows),
        limits=limits,
        # The turn of the oldest row counts whole batches, so a batch that preempts leaves it as is.
        order=replace(order, num_in_turn=0),
        rules=rules,
        waiting_elsewhere=queues.flows_without(rows),
    )
    return replace(plan, order=replace(plan.order, num_in_turn=order.num_in_turn))


def plan_preemption(
    candidates: Sequence[WaitingRow],
    *,
    running: Running[WaitingRow],
    queues: Queues[WaitingRow],
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow] | None:
    """Plan a batch that runs before the remaining layers of a batch; None if no row may go.

    Only a batch of heavy flows alone is preempted: rows of other flows in it would wait longer. A
    row goes if all of these hold:

    - Its flow is light compared with each of the heaviest flows of the batch (`Usage.is_light`).
      The usage includes the row itself.
    - No heavy flow of its caller has a higher priority.
    - No other row of its flow runs or waits.
    - All that goes before the batch is at most `MAX_PREEMPTION` times the work of the batch.

    The rows of one text of one request go together or not at all.

    Args:
        candidates: rows that arrived since the batch began, oldest first.
        running: the batch, and the work that has preempted it.
        queues: the waiting rows, with the candidates and without the running batch.
        limits: bounds of one batch.
        order: as the running batch, and the batches that preempted it, have left it.
        rules: weights, and which trunk states are cached.
    """
    if not running.is_all_heavy:
        return None
    waiting = queues.flows_without(candidates)
    going = _going(candidates, running, waiting, usage=order.usage, rules=rules)
    if not going:
        return None
    return plan_before(going, queues=queues, limits=limits, order=order, rules=rules)


def may_preempt_later(
    candidates: Sequence[WaitingRow],
    *,
    running: Running[WaitingRow],
    queues: Queues[WaitingRow],
) -> list[WaitingRow]:
    """Return the candidates that still wait, without texts that heavy flows read as well."""
    waiting = [row for row in candidates if row in queues]
    texts = {row.group for row in waiting if flow_of(row) in running.heavy_flows}
    return [row for row in waiting if row.group not in texts]


def _without_light(
    whole: BatchPlan[WaitingRow],
    plan: Callable[..., BatchPlan[WaitingRow]],
    heavy_in: Callable[[BatchPlan[WaitingRow]], frozenset[Flow]],
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow] | None:
    """Return a plan of heavy flows alone, with all other rows in `going_first`, or None.

    At least one of the other rows must be light. The rest of the others go with it, so that the
    batch holds heavy flows alone and can be preempted. Rows that take the free places are treated
    alike. There is no such plan where more rows would go first than the batch holds, or more than
    `MAX_PREEMPTION` times the remaining work.
    """
    rest, first = whole, list[WaitingRow]()
    while heavy_flows := heavy_in(rest):
        others = _rows_outside(heavy_flows, rest.batch)
        if not others:
            is_alone = heavy_flows.issuperset(map(flow_of, rest.batch))
            work = sum(work_by_flow(first, rules=rules).values())
            may_go = is_alone and work <= MAX_PREEMPTION * rest.charged
            return replace(rest, going_first=tuple(first)) if may_go else None
        light = partial(
            _is_light, heavy_flows=heavy_flows, usage=rest.order.usage, weights=rules.weights
        )
        if not first and not any(map(light, set(map(flow_of, others)))):
            return None
        first += others
        if len(first) > len(whole.batch):
            return None
        rest = plan(left_out=first)
    return None


def _backlog_in(plan: BatchPlan[WaitingRow]) -> frozenset[Flow]:
    """Return the flows of a batch that have more rows than the batch takes."""
    return plan.backlog.intersection(map(flow_of, plan.batch))


def _heaviest_in(
    plan: BatchPlan[WaitingRow], weights: Mapping[str, float], long_flows: frozenset[Flow]
) -> frozenset[Flow]:
    """Return the heaviest flows with a backlog in a batch, and the `long_flows` among them."""
    heavy_flows = _backlog_in(plan)
    return plan.order.usage.heaviest(heavy_flows, weights=weights) | (heavy_flows & long_flows)


def _rows_outside(heavy_flows: frozenset[Flow], batch: Sequence[WaitingRow]) -> list[WaitingRow]:
    """Return the rows of texts that no heavy flow reads; the rows of one text stay together."""
    texts = _by_text(batch)
    others = (rows for rows in texts if heavy_flows.isdisjoint(map(flow_of, rows)))
    return list(chain.from_iterable(others))


def _going(
    candidates: Sequence[WaitingRow],
    running: Running[WaitingRow],
    waiting: Collection[Flow],
    *,
    usage: Usage,
    rules: TurnRules[WaitingRow],
) -> list[WaitingRow]:
    """Return the candidates that preempt a running batch of heavy flows, oldest first.

    A flow in `waiting` has older rows that wait, so its candidates stay behind those.
    """
    kept, going = {*running.heavy_flows, *waiting}, list[WaitingRow]()
    room = MAX_PREEMPTION * running.charged - running.preempted_by
    if room <= 0:
        return going
    for rows in _by_text(candidates):
        if kept.isdisjoint(map(flow_of, rows)):
            given = work_by_flow(rows, rules=rules)
            work, after = sum(given.values()), usage.plus(given)
            light = partial(
                _is_light, heavy_flows=running.heavy_flows, usage=after, weights=rules.weights
            )
            if work <= room and all(map(light, given)):
                going.extend(rows)
                usage, room = after, room - work
                continue
        kept.update(map(flow_of, rows))
    return going


def _is_light(
    flow: Flow, *, heavy_flows: Collection[Flow], usage: Usage, weights: Mapping[str, float]
) -> bool:
    """Tell whether a flow is light compared with the heaviest flows, and may go before them.

    It may not where a heavy flow of its caller has a higher priority.
    """
    caller, priority, _ = flow
    if any(it[0] == caller and it[1].rank < priority.rank for it in heavy_flows):
        return False
    heaviest = usage.heaviest(heavy_flows, weights=weights)
    return all(usage.is_light(flow, compared_with=heavy, weights=weights) for heavy in heaviest)


def _by_text(rows: Sequence[WaitingRow]) -> list[list[WaitingRow]]:
    """Return the rows of each text together, in the order of the first row of each text."""
    texts = defaultdict[Hashable, list[WaitingRow]](list)
    for row in rows:
        texts[row.group].append(row)
    return list(texts.values())

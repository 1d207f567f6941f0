"""Overtaking: light rows go before a batch of heavy_flows.

A batch takes as many rows of a heavy flow as it has room for. A row of somebody who asks for little
would wait for all of them: it goes first, when the batch is planned, and, as a batch of its own,
between two layers of one that has begun. Who asks for little is told by what callers and flows were
given lately (`usage.py`). Tasks that were given as much as each other go in turns, in batches that
stay as efficient as they are.
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
"""Work that goes before one batch, as a multiple of its own: a heavy flow, too, gets on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Generic[WaitingRow]):
    """A batch that has begun."""

    batch: Sequence[WaitingRow]
    charged: float
    """What its rows are charged, in tokens through all layers."""
    heavy_flows: frozenset[Flow]
    """Flows that had more rows than it took, or of which as many have come since."""
    preempted_by: float = 0.0
    """What the rows are charged that went before it."""

    @property
    def is_all_heavy(self) -> bool:
        """Whether nobody in it asks for as little as it takes."""
        return self.heavy_flows.issuperset(map(flow_of, self.batch))

    def after(self, plan: BatchPlan[WaitingRow]) -> "Running[WaitingRow]":
        """Count a batch that has preempted it."""
        return replace(self, preempted_by=self.preempted_by + plan.charged)

    def beside(self, queues: Queues[WaitingRow]) -> "Running[WaitingRow]":
        """Take for heavy_flows those of its flows, too, of which as many rows wait as it holds."""
        if self.is_all_heavy:
            return self
        held = Counter(map(flow_of, self.batch))
        waiting = {flow: len(queues.of_flow(flow)) for flow in held if flow in queues.flows}
        grown = (flow for flow, count in waiting.items() if count >= held[flow])
        return replace(self, heavy_flows=self.heavy_flows.union(grown))


def begin_batch(plan: BatchPlan[WaitingRow]) -> Running[WaitingRow]:
    """Return the batch of a plan as it begins."""
    return Running(batch=plan.batch, charged=plan.charged, heavy_flows=_backlog_in(plan))


def plan_light_first(
    queues: Queues[WaitingRow],
    *,
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Plan the next batch without its light rows, if it holds heavy_flows beside them: they go first.

    A flow that has more rows than the batch takes is light, too, beside one that was given much
    more: it goes first with those of its rows that find a place, if then no others but heavy_flows do.
    One that has more rows waiting than go first is not.
    """
    plan = partial(plan_batch, queues, limits=limits, order=order, rules=rules)
    whole = plan()
    too_long = frozenset(
        flow for flow in _backlog_in(whole) if len(queues.of_flow(flow)) > len(whole.batch)
    )
    heaviest_in = partial(_heaviest_in, weights=rules.weights, beside=too_long)
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
    """Plan a batch of some of the rows of `queues` that goes before another that has begun."""
    plan = plan_batch(
        Queues(rows),
        limits=limits,
        # It is no turn of the oldest row, and does not put that off either.
        order=replace(order, num_in_turn=0),
        rules=rules,
        beside=queues.flows_beside(rows),
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
    """Plan a batch of rows that go before the rest of one that runs; None if no row does.

    A batch is preempted only if all of it is of heavy_flows: it would take longer for the others in it.
    A row goes if it is light beside all of them that are heaviest, those that are light beside none of
    the others, and no heavy flow of its caller has a higher priority; if no row of its caller, task and
    priority runs or waits already; and while all that goes before the batch is at most four times
    its work. It is light beside a heavy flow of another caller that was lately given half as much again
    as its own, itself included, by weight; beside any of its caller that is of a lower priority;
    and beside one of its caller and priority that was given half as much again as its flow. Rows of
    one text that came together go together or not at all.

    Args:
        candidates: rows that came since the batch began, oldest first; none of the others goes.
        running: the batch, as far as it is done.
        queues: what waits, the candidates among it and the running batch not.
        limits: what a batch may hold.
        order: as the running batch, and what preempted it, have left it.
        rules: weights, and which trunk states are held.
    """
    if not running.is_all_heavy:
        return None
    waiting = queues.flows_beside(candidates)
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
    """Return the candidates that still wait, without texts that a heavy flow is asked about, too."""
    waiting = [row for row in candidates if row in queues]
    texts = {row.group for row in waiting if flow_of(row) in running.heavy_flows}
    return [row for row in waiting if row.group not in texts]


def _without_light(
    whole: BatchPlan[WaitingRow],
    plan: Callable[..., BatchPlan[WaitingRow]],
    heavy_in: Callable[[BatchPlan[WaitingRow]], frozenset[Flow]],
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow] | None:
    """Return a plan of heavy_flows alone, before which all others of the batch go; None if none may.

    One of them must be light beside all heaviest heavy_flows. The others go with it: they are computed now
    in any case, and the rest can be preempted. Who comes into their places must not keep others
    from that either, and goes first as well. Where more rows would go first than the batch holds,
    or four times the work that is left, nobody is light.
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
        rest = plan(apart=first)
    return None


def _backlog_in(plan: BatchPlan[WaitingRow]) -> frozenset[Flow]:
    """The flows of a batch that have more rows than it takes."""
    return plan.backlog.intersection(map(flow_of, plan.batch))


def _heaviest_in(
    plan: BatchPlan[WaitingRow], weights: Mapping[str, float], beside: frozenset[Flow]
) -> frozenset[Flow]:
    """Those of them that are light beside none of the others, and those of `beside`."""
    heavy_flows = _backlog_in(plan)
    return plan.order.usage.heaviest(heavy_flows, weights=weights) | (heavy_flows & beside)


def _rows_outside(heavy_flows: frozenset[Flow], batch: Sequence[WaitingRow]) -> list[WaitingRow]:
    """Rows of texts that no heavy flow is asked about: those of one text stay together."""
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
    """Those of the candidates, earlier ones first, that preempt a running batch of heavy_flows.

    Rows of the flows that have others waiting keep their order behind those.
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
    """Tell whether a flow is light beside all heaviest heavy_flows, and behind none of its caller's."""
    caller, priority, _ = flow
    if any(it[0] == caller and it[1].rank < priority.rank for it in heavy_flows):
        return False
    heaviest = usage.heaviest(heavy_flows, weights=weights)
    return all(usage.is_light(flow, beside=heavy, weights=weights) for heavy in heaviest)


def _by_text(rows: Sequence[WaitingRow]) -> list[list[WaitingRow]]:
    """The rows of each text together, in the order of their first."""
    texts = defaultdict[Hashable, list[WaitingRow]](list)
    for row in rows:
        texts[row.group].append(row)
    return list(texts.values())

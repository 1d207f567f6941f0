"""Overtaking: quiet rows go before a batch of floods.

A batch takes as many rows of a flood as it has room for. A row of somebody who asks for little
would wait for all of them: it goes first, when the batch is planned, and, as a batch of its own,
between two layers of one that has begun. Who asks for little is told by what flows were given
lately (`usage.py`), so that nobody who goes first gets as much as the flood. A batch of many tasks
with a row or two each is not touched, and stays as efficient as it is.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Generic

from nunatak_server.batching.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    Waiting,
    WaitingRow,
    plan_batch,
)
from nunatak_server.batching.queues import Flow, Queues, flow_of
from nunatak_server.batching.turns import MIN_COST
from nunatak_server.batching.usage import Usage

MAX_OVERTAKING: Final = 4.0
"""Work that goes before one batch, as a multiple of its own: a flood, too, gets on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Generic[WaitingRow]):
    """A batch that has begun."""

    batch: Sequence[WaitingRow]
    floods: frozenset[Flow]
    """Flows that had more rows than it took, and are not quiet beside each other.

    Also those of which as many rows have come since as it holds.
    """
    overtaken_by: float = 0.0
    """Work that went before it, in tokens through all layers."""

    def after(self, plan: BatchPlan[WaitingRow]) -> "Running[WaitingRow]":
        """Count a batch that has overtaken it."""
        return replace(self, overtaken_by=self.overtaken_by + sum(map(work_of, plan.batch)))

    def beside(self, queues: Queues[WaitingRow]) -> "Running[WaitingRow]":
        """Take for floods those of its flows, too, of which as many rows wait as it holds."""
        held = Counter(map(flow_of, self.batch))
        if self.floods.issuperset(held):
            return self
        waiting = {flow: len(queues.of_flow(flow)) for flow in held if flow in queues.flows}
        grown = (flow for flow, count in waiting.items() if count >= held[flow])
        return replace(self, floods=self.floods.union(grown))


def begin(plan: BatchPlan[WaitingRow], *, rules: TurnRules[WaitingRow]) -> Running[WaitingRow]:
    """Return the batch of a plan as it begins."""
    left = plan.backlog.intersection(map(flow_of, plan.batch))
    quiet = partial(plan.order.usage.is_quiet, weights=rules.weights)
    floods = frozenset(it for it in left if not any(quiet(it, beside=other) for other in left))
    return Running(batch=plan.batch, floods=floods)


def plan_quiet_first(
    queues: Queues[WaitingRow],
    *,
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Plan the next batch without its quiet rows, if it holds floods beside them: they go first."""
    plan = partial(plan_batch, queues, limits=limits, order=order, rules=rules)
    whole = rest = plan()
    first = list[WaitingRow]()
    while True:
        running, usage = begin(rest, rules=rules), rest.order.usage
        if _is_all_floods(running):
            return replace(rest, going_first=tuple(first))
        others = _rows_of_no_flood(running)
        # Where more rows would go first than a batch holds, nobody is quiet.
        if len(others) in (0, len(rest.batch)) or len(first) + len(others) > len(whole.batch):
            return whole
        # All go if one does: they are computed now in any case, and the rest can be overtaken.
        flows = set(map(flow_of, others))
        if not first and not any(_is_quiet(it, running, usage, rules.weights) for it in flows):
            return whole
        # Who comes into their places must not keep others from overtaking either.
        first += others
        rest = plan(apart=first)


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


def plan_overtaking(
    candidates: Sequence[WaitingRow],
    *,
    running: Running[WaitingRow],
    queues: Queues[WaitingRow],
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow] | None:
    """Plan a batch of rows that go before the rest of one that runs; None if no row does.

    A batch is overtaken only if all of it is of floods: it would take longer for the others in it.
    A row goes if it is quiet beside each of them, if no row of its caller, task and priority runs
    or waits already, and while all that goes before the batch is at most four times its work. It is
    quiet beside a flood of another caller that was lately given half as much again as its own,
    itself included, by weight; beside any of its caller that is of a lower priority; and beside one
    of its caller and priority that was given half as much again as its flow.

    Args:
        candidates: rows that came since the batch began, oldest first; none of the others goes.
        running: the batch, as far as it is done.
        queues: what waits, the candidates among it and the running batch not.
        limits: what a batch may hold.
        order: as the running batch, and what overtook it, have left it.
        rules: weights, and which trunk states are held.
    """
    if not _is_all_floods(running):
        return None
    waiting = queues.flows_beside(candidates)
    going = _going(candidates, running, waiting, usage=order.usage, weights=rules.weights)
    if not going:
        return None
    return plan_before(going, queues=queues, limits=limits, order=order, rules=rules)


def work_of(row: Waiting) -> float:
    """What a row costs that shares its trunk with none, in tokens through all layers."""
    own = row.branch_tokens * (1.0 - row.trunk_share)
    return max(MIN_COST, own + row.trunk_tokens * row.trunk_share)


def _going(
    candidates: Sequence[WaitingRow],
    running: Running[WaitingRow],
    waiting: Collection[Flow],
    *,
    usage: Usage,
    weights: Mapping[str, float],
) -> list[WaitingRow]:
    """Those of the candidates, earlier ones first, that overtake a running batch of floods.

    Rows of the flows that have others waiting keep their order behind those.
    """
    kept = running.floods.union(waiting)
    if kept.issuperset(map(flow_of, candidates)):
        return []
    going = list[WaitingRow]()
    room = MAX_OVERTAKING * sum(map(work_of, running.batch)) - running.overtaken_by
    for rows in _by_group(candidates):
        given = _work_by_flow(rows)
        after, work = usage.plus(given), sum(given.values())
        are_quiet = all(_is_quiet(flow, running, after, weights) for flow in given)
        if are_quiet and work <= room and kept.isdisjoint(given):
            going, usage, room = [*going, *rows], after, room - work
        else:
            kept = kept.union(given)
    return going


def _is_all_floods(running: Running[WaitingRow]) -> bool:
    return running.floods.issuperset(map(flow_of, running.batch))


def _rows_of_no_flood(running: Running[WaitingRow]) -> list[WaitingRow]:
    """Those of a batch of whose text none is of a flood: rows of one text stay together."""
    groups = _by_group(running.batch)
    others = (rows for rows in groups if running.floods.isdisjoint(map(flow_of, rows)))
    return list(chain.from_iterable(others))


def _is_quiet(
    flow: Flow, running: Running[WaitingRow], usage: Usage, weights: Mapping[str, float]
) -> bool:
    """Tell whether a flow is quiet beside each flood of a batch."""
    return all(usage.is_quiet(flow, beside=it, weights=weights) for it in running.floods)


def _work_by_flow(rows: Iterable[WaitingRow]) -> dict[Flow, float]:
    work = defaultdict[Flow, float](float)
    for row in rows:
        work[flow_of(row)] += work_of(row)
    return work


def _by_group(rows: Sequence[WaitingRow]) -> list[list[WaitingRow]]:
    """The rows of each text together, in the order of their first."""
    groups = defaultdict[Hashable, list[WaitingRow]](list)
    for row in rows:
        groups[row.group].append(row)
    return list(groups.values())

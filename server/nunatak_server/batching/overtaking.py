"""Overtaking: rows that go before a batch which is out of turn beside them.

A batch takes as many rows of a flood as it has room for. Beside a row of somebody who asks for
little, all but the first of them come too early: by virtual time that row is done before they
begin (finish and start tags of start-time fair queueing, Goyal et al. 1996). Where that is a good
part of a batch, the row goes first: when the batch is planned, and, as a batch of its own, between
two layers of one that has begun. A batch of many tasks with a row or two each is not touched, and
stays as efficient as it is.
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
from nunatak_server.batching.turns import MIN_COST, Debts

MIN_OUT_OF_TURN: Final = 0.25
"""Part of a batch, or of its floods, that must be out of turn beside a row for it to go first."""
MAX_OVERTAKING: Final = 4.0
"""Work that goes before one batch, as a multiple of its own: a flood, too, gets on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Generic[WaitingRow]):
    """A batch that has begun."""

    batch: Sequence[WaitingRow]
    floods: frozenset[Flow]
    """Flows that had more rows than it took, or of which as many have come since."""
    debts: Debts
    """As they were when it was planned, and with what has overtaken it since."""
    overtaken_by: float = 0.0
    """Work that went before it, in tokens through all layers."""

    def after(
        self, overtaking: Sequence[WaitingRow], weights: Mapping[str, float]
    ) -> "Running[WaitingRow]":
        """Count what rows that have overtaken it cost, also for their callers and flows."""
        callers, flows = dict(self.debts.callers), dict(self.debts.flows)
        for row in overtaking:
            _charge(callers, flows, row, weights)
        return replace(
            self,
            debts=Debts(callers=callers, flows=flows),
            overtaken_by=self.overtaken_by + sum(map(work_of, overtaking)),
        )

    def beside(self, queues: Queues[WaitingRow]) -> "Running[WaitingRow]":
        """Take for floods those of its flows, too, of which as many rows wait as it holds."""
        held = Counter(map(flow_of, self.batch))
        if self.floods.issuperset(held):
            return self
        waiting = {flow: len(queues.of_flow(flow)) for flow in held if flow in queues.flows}
        grown = (flow for flow, count in waiting.items() if count >= held[flow])
        return replace(self, floods=self.floods.union(grown))


def plan_in_turn(
    queues: Queues[WaitingRow],
    *,
    limits: BatchLimits,
    order: TurnOrder,
    rules: TurnRules[WaitingRow],
) -> BatchPlan[WaitingRow]:
    """Plan the next batch without the rows that it is out of turn beside: they go first."""
    plan = partial(plan_batch, queues, limits=limits, order=order, rules=rules)
    whole = rest = plan()
    first = list[WaitingRow]()
    while True:
        running = Running(batch=rest.batch, floods=rest.backlog, debts=order.debts)
        if _is_all_floods(running):
            return replace(rest, going_first=tuple(first))
        quiet = _quiet_rows(running) if rest.backlog else []
        # Where more rows would go first than a batch holds, nobody is quiet.
        if not quiet or len(first) + len(quiet) > len(whole.batch):
            return whole
        if not first and not _is_out_of_turn_beside(quiet, running, rules):
            return whole
        # Who comes into their places must not keep others from overtaking either.
        first += quiet
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
    A row goes if a quarter of the running batch is out of turn beside it, if no row of its caller,
    task and priority runs or waits already, and while all that goes before the batch is at most
    four times its work. What went before is on the accounts of its flow and its caller: who owes as
    much as the flood overtakes a batch with three quarters as much work as that has, by weight
    between callers.

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
    going = _going(candidates, running, queues.flows_beside(candidates), rules)
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
    rules: TurnRules[WaitingRow],
) -> list[WaitingRow]:
    """Those of the candidates, earlier ones first, that overtake a running batch of floods.

    Rows of the flows that have others waiting keep their order behind those.
    """
    kept = running.floods.union(waiting)
    if kept.issuperset(map(flow_of, candidates)):
        return []
    tags = _Tags(running, rules)
    going, room = list[WaitingRow](), MAX_OVERTAKING * tags.work - running.overtaken_by
    for rows in _by_group(candidates):
        work = sum(map(work_of, rows))
        is_in_turn = min(map(tags.work_after, rows)) < MIN_OUT_OF_TURN * tags.work
        if is_in_turn or work > room or not kept.isdisjoint(map(flow_of, rows)):
            kept = kept.union(map(flow_of, rows))
        else:
            going, room = [*going, *rows], room - work
            tags.charge(rows)
    return going


def _charge(
    callers: dict[str, float], flows: dict[Flow, float], row: Waiting, weights: Mapping[str, float]
) -> None:
    flow, work = flow_of(row), work_of(row)
    callers[row.caller] = callers.get(row.caller, 0.0) + work / weights.get(row.caller, 1.0)
    flows[flow] = flows.get(flow, 0.0) + work


def _is_all_floods(running: Running[WaitingRow]) -> bool:
    return running.floods.issuperset(map(flow_of, running.batch))


def _quiet_rows(running: Running[WaitingRow]) -> list[WaitingRow]:
    """Those of a batch that are of no flood, nor any other of their text, which stay together."""
    groups = _by_group(running.batch)
    quiet = (rows for rows in groups if running.floods.isdisjoint(map(flow_of, rows)))
    return list(chain.from_iterable(quiet))


def _is_out_of_turn_beside(
    quiet: Sequence[WaitingRow], running: Running[WaitingRow], rules: TurnRules[WaitingRow]
) -> bool:
    """Tell whether the rest of a batch, at its start, is out of turn beside one of these rows.

    Then all of them go first: they are computed now in any case, and what is left is a flood that
    can be overtaken.
    """
    tags = _Tags(running, rules)
    rest = tags.work - sum(map(work_of, quiet))
    return rest > 0 and max(map(tags.work_after, quiet)) >= MIN_OUT_OF_TURN * rest


class _Tags(Generic[WaitingRow]):
    """The rows of a batch with the virtual times at which each begins."""

    def __init__(self, running: Running[WaitingRow], rules: TurnRules[WaitingRow]) -> None:
        self.work = sum(map(work_of, running.batch))
        self._running = running
        self._weights = rules.weights
        self._callers = defaultdict[str, float](float, running.debts.callers)
        self._flows = defaultdict[Flow, float](float, running.debts.flows)
        self._starts = dict[int, tuple[float, float]]()
        for row in running.batch:
            self._starts[id(row)] = self._start(row)
            self.charge([row])

    def charge(self, rows: Iterable[WaitingRow]) -> None:
        """Put rows that go before the batch on the accounts of their callers and flows."""
        for row in rows:
            _charge(self._callers, self._flows, row, self._weights)

    def work_after(self, row: WaitingRow) -> float:
        """The work of floods that begins when `row`, of the batch or not, is done or later."""
        caller_start, flow_start = self._starts.get(id(row)) or self._start(row)
        caller_done, flow_done = caller_start + self._caller_cost(row), flow_start + work_of(row)
        found = 0.0
        for other in self._running.batch:
            if flow_of(other) not in self._running.floods:
                continue
            caller_start, flow_start = self._starts[id(other)]
            if other.caller != row.caller:
                is_after = caller_start >= caller_done
            elif other.priority is not row.priority:
                is_after = other.priority.rank > row.priority.rank
            else:
                is_after = flow_start >= flow_done
            found += work_of(other) * is_after
        return found

    def _start(self, row: WaitingRow) -> tuple[float, float]:
        return self._callers[row.caller], self._flows[flow_of(row)]

    def _caller_cost(self, row: WaitingRow) -> float:
        return work_of(row) / self._weights.get(row.caller, 1.0)


def _by_group(rows: Sequence[WaitingRow]) -> list[list[WaitingRow]]:
    """The rows of each text together, in the order of their first."""
    groups = defaultdict[Hashable, list[WaitingRow]](list)
    for row in rows:
        groups[row.group].append(row)
    return list(groups.values())

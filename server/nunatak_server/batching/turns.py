"""Turns: whose row goes next, fair between callers and between the tasks of each.

Virtual time in two levels, as counters of service: who has been given least goes next, and who
comes back after a pause starts level with the one who has least, so that nobody saves up turns
(Sheng et al. 2024, "Fairness in Serving Large Language Models", arXiv:2401.00588, algorithm 2,
whose counters are of one level; the lift on arrival is that of start-time fair queueing, Goyal et
al. 1996). Callers weigh what the operator says; tasks of one caller weigh the same.

A turn is one row. Where the planner says so, flows of which many rows wait have longer ones, as
with deficit round-robin (Shreedhar and Varghese 1996), so that a batch is of few tasks: each costs
the weights of its branch. A long turn counts as owed before it is taken, so that those with short
turns do not wait for it, as with finish tags (Demers, Keshav and Shenker 1989).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from nunatak_server.batching.queues import Flow, QueuedRow, Queues, flow_of
from nunatak_server.batching.senders import Priority

MIN_COST: Final = 1.0
MANY_ROWS: Final = 16
"""Of one flow; the turns of fewer are of one row."""
ROWS_OF_WHOLE_TURN: Final = 64
"""A flow of which as many rows wait has all that a turn may have; of half as many, half of it."""
Key = TypeVar("Key", str, Flow)
Rank = tuple[str, Priority]
"""A caller's rows of one priority."""
_Standing = tuple[int, float, int, Flow]
"""The rank of a flow's priority, what it owes with its turn, the age of its oldest row, itself."""


@dataclass(slots=True, kw_only=True)
class _Turn:
    """What is left of a long one, in tokens through all layers; the row that uses it up is had."""

    flow: Flow
    work_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Debts:
    """What callers, and flows of a caller, were given beyond the one of them that has least.

    In tokens, divided by the weight of the caller; who is not named owes nothing.
    """

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))


class Turns(Generic[QueuedRow]):
    """The turns of one batch."""

    def __init__(
        self,
        queues: Queues[QueuedRow],
        *,
        debts: Debts,
        weights: Mapping[str, float],
        longest_turn: float = 0.0,
    ) -> None:
        """Give turns to the rows of `queues`, which stay there.

        `longest_turn` is in tokens through all layers; without it all turns are of one row.
        """
        self._debts = defaultdict[str, float](float, debts.callers)
        self._flow_debts = defaultdict[Flow, float](float, debts.flows)
        self._weights = weights
        self.given: dict[Flow, float] = {}
        """What each flow was given in these turns, in tokens through all layers."""
        self._queues = queues
        self._long_turns = _long_turns(queues, longest_turn) if longest_turn else {}
        self._turn: _Turn | None = None
        """The long one that goes on."""
        self._rows: dict[Flow, Iterator[QueuedRow]] = {}
        """Of the flows that were looked at: what was not."""
        self._ended: set[Flow] = set()
        """Of these nothing is left, or nothing more may be taken."""
        self._flows = defaultdict[str, list[_Standing]](list)
        """Of each caller: a heap."""
        for flow in queues.flows:
            standing = (flow[1].rank, self._flow_due(flow), queues.age_rank(flow), flow)
            self._flows[flow[0]].append(standing)
        for standings in self._flows.values():
            heapify(standings)
        self._callers = [
            (self._caller_due(standings[0][-1]), min(age for _, _, age, _ in standings), caller)
            for caller, standings in self._flows.items()
        ]
        heapify(self._callers)

    def next_row(self, taken: Collection[int]) -> QueuedRow | None:
        """Return the row whose turn it is, and count it as seen; None once all were seen.

        The next row of a long turn that goes on. Else of the caller that owes least, its highest
        priority, of that the flow that owes least; who would have a long turn owes it already.
        Equals are decided by the age of their oldest rows. Rows whose `id` is in `taken` have had
        their turn.
        """
        turn = self._turn
        if turn is not None and turn.work_left > 0:
            row = self._row_of(turn.flow, taken)
            if row is not None:
                return row
        row = self._first_of_turn(taken)
        self._turn = None
        if row is not None and flow_of(row) in self._long_turns:
            flow = flow_of(row)
            self._turn = _Turn(flow=flow, work_left=self._long_turns[flow])
        return row

    def end_turns(self, row: QueuedRow) -> None:
        """Leave out what is queued behind a row that has no room, so that its flow keeps order."""
        self._ended.add(flow_of(row))

    def charge(self, row: QueuedRow, cost: float) -> None:
        """Put what a row costs, in tokens, on the account of its caller and its flow."""
        # A row that costs next to nothing takes a place all the same.
        cost, flow = max(cost, MIN_COST), flow_of(row)
        self._debts[row.caller] += cost / self._weights.get(row.caller, 1.0)
        self._flow_debts[flow] += cost
        self.given[flow] = self.given.get(flow, 0.0) + cost
        turn = self._turn
        if turn is not None and turn.flow == flow:
            turn.work_left -= cost

    def settle(self, waiting: Iterable[Flow]) -> Debts:
        """Return the debts after the batch, above the least of those who still wait.

        Who waits no more is forgotten as soon as the others have caught up.
        """
        levels: dict[Rank, float] = {}
        callers = set[str]()
        for flow in waiting:
            debt = self._flow_debts[flow]
            levels[flow[:2]] = min(debt, levels.get(flow[:2], debt))
            callers.add(flow[0])
        level = min((self._debts[caller] for caller in callers), default=None)
        return Debts(
            callers={} if level is None else _above(self._debts, level),
            flows={
                flow: debt - levels[flow[:2]]
                for flow, debt in self._flow_debts.items()
                if flow[:2] in levels and debt > levels[flow[:2]]
            },
        )

    def _first_of_turn(self, taken: Collection[int]) -> QueuedRow | None:
        while self._callers:
            due, age, caller = self._callers[0]
            flow = self._next_flow(self._flows[caller])
            if flow is None:
                heappop(self._callers)
            # Its debts, or its next flow, have changed; of others they have not, but for the one
            # that had the oldest row.
            elif due != self._caller_due(flow):
                heapreplace(self._callers, (self._caller_due(flow), age, caller))
            else:
                row = self._row_of(flow, taken)
                if row is not None:
                    return row
                self._ended.add(flow)
        return None

    def _next_flow(self, flows: list[_Standing]) -> Flow | None:
        while flows:
            rank, due, age, flow = flows[0]
            if flow in self._ended:
                heappop(flows)
            # Debts only grow, so an entry that is out of date is too far in front.
            elif due < self._flow_due(flow):
                heapreplace(flows, (rank, self._flow_due(flow), age, flow))
            else:
                return flow
        return None

    def _caller_due(self, flow: Flow) -> float:
        """What the caller of a flow owes with the turn of that flow."""
        weight = self._weights.get(flow[0], 1.0)
        return self._debts[flow[0]] + self._long_turns.get(flow, 0.0) / weight

    def _flow_due(self, flow: Flow) -> float:
        return self._flow_debts[flow] + self._long_turns.get(flow, 0.0)

    def _row_of(self, flow: Flow, taken: Collection[int]) -> QueuedRow | None:
        if flow in self._ended:
            return None
        if flow not in self._rows:
            self._rows[flow] = iter(self._queues.of_flow(flow))
        return next((row for row in self._rows[flow] if id(row) not in taken), None)


def _long_turns(queues: Queues[QueuedRow], longest: float) -> dict[Flow, float]:
    """Return the work of the turns that are longer than a row."""
    return {
        flow: longest * min(1.0, len(queues.of_flow(flow)) / ROWS_OF_WHOLE_TURN)
        for flow in queues.flows
        if len(queues.of_flow(flow)) >= MANY_ROWS
    }


def _above(debts: Mapping[Key, float], level: float) -> dict[Key, float]:
    return {key: debt - level for key, debt in debts.items() if debt > level}

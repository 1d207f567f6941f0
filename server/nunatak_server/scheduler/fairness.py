"""Queues: the rows that wait, by whom they are of and by text, kept from batch to batch.

So planning a batch looks at what the batch takes and at who waits, and not at every row that waits.

Turns: whose row goes next, fair between callers and between the tasks of each.

Virtual time in two levels, as counters of service: who has been given least goes next, and who
comes back after a pause starts level with the one who has least, so that nobody saves up turns
(Sheng et al. 2024, "Fairness in Serving Large Language Models", arXiv:2401.00588, algorithm 2,
whose counters are of one level; the lift on arrival is that of start-time fair queueing, Goyal et
al. 1996). Callers weigh what the operator says; tasks of one caller weigh the same.

A turn is one row. Where the planner says so, flows of which many rows wait have longer ones, as
with deficit round-robin (Shreedhar and Varghese 1996), so that a batch is of few tasks: each costs
the weights of its branch. A long turn counts as owed before it is taken, so that those with short
turns do not wait for it, as with finish tags (Demers, Keshav and Shenker 1989).

Usage: what was given lately, by which a heavy flow is told from those who ask for little.

Turns (`turns.py`) remember what a flow owes while others wait, and forgive it when nobody does. So
they tell who goes next, and not who has asked for more in the last moments. That is told by usage
that decays with time (Kay and Lauder 1988, "A Fair Share Scheduler").
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import count
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from nunatak_server.scheduler.rows import Priority


class Queued(Protocol):
    """What a row is queued by."""

    @property
    def caller(self) -> str:
        """Who asks."""
        ...

    @property
    def task(self) -> str:
        """The name that gets a turn: one task, whatever its version."""
        ...

    @property
    def priority(self) -> Priority:
        """How the row ranks among those of its caller."""
        ...

    @property
    def group(self) -> Hashable:
        """Equal for the rows of one request that read the same text."""
        ...


QueuedRow = TypeVar("QueuedRow", bound=Queued)
QueueKey = TypeVar("QueueKey", bound=Hashable)
Flow = tuple[str, Priority, str]
"""A caller's rows of one priority for one task: they keep their order."""


def flow_of(row: Queued) -> Flow:
    """Return the flow that a row belongs to."""
    return row.caller, row.priority, row.task


class Queues(Generic[QueuedRow]):
    """Rows in the order in which they came: all of them, those of each flow and of each text."""

    def __init__(self, rows: Iterable[QueuedRow] = ()) -> None:
        """Begin with these rows, oldest first."""
        self._arrivals = count()
        self._number_of: dict[int, int] = {}
        """By the `id` of a row: the how manieth it was."""
        self._rows: dict[int, QueuedRow] = {}
        self._flows: dict[Flow, dict[int, QueuedRow]] = {}
        self._texts: dict[Hashable, dict[int, QueuedRow]] = {}
        self.add(rows)

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._rows)

    def __contains__(self, row: QueuedRow) -> bool:
        """Return whether this very row waits."""
        return id(row) in self._number_of

    def __iter__(self) -> Iterator[QueuedRow]:
        """Return the rows, oldest first."""
        return iter(self._rows.values())

    @property
    def flows(self) -> KeysView[Flow]:
        """The flows that have rows here, in no order."""
        return self._flows.keys()

    def add(self, rows: Iterable[QueuedRow]) -> None:
        """Queue rows, none of which is here, behind all others."""
        for row in rows:
            number = next(self._arrivals)
            self._number_of[id(row)] = number
            self._rows[number] = row
            self._flows.setdefault(flow_of(row), {})[number] = row
            self._texts.setdefault(row.group, {})[number] = row

    def remove(self, rows: Iterable[QueuedRow]) -> None:
        """Let go of rows that are here."""
        for row in rows:
            number = self._number_of.pop(id(row))
            del self._rows[number]
            _remove(self._flows, flow_of(row), number)
            _remove(self._texts, row.group, number)

    def of_flow(self, flow: Flow) -> Collection[QueuedRow]:
        """Return the rows of a flow, oldest first."""
        return self._flows[flow].values()

    def of_text(self, group: Hashable) -> Collection[QueuedRow]:
        """Return the rows of one request that read the same text, oldest first."""
        return self._texts[group].values()

    def age_rank(self, flow: Flow) -> int:
        """Return a number that is the smaller the older the oldest row of a flow is."""
        return next(iter(self._flows[flow]))

    def flows_beside(self, rows: Sequence[QueuedRow]) -> frozenset[Flow]:
        """Return the flows that have rows here besides these, which are here."""
        numbers: dict[Flow, int] = {}
        for row in rows:
            flow = flow_of(row)
            numbers[flow] = numbers.get(flow, 0) + 1
        return frozenset(
            flow for flow, queue in self._flows.items() if len(queue) > numbers.get(flow, 0)
        )


def _remove(queues: dict[QueueKey, dict[int, QueuedRow]], key: QueueKey, number: int) -> None:
    queue = queues[key]
    del queue[number]
    if not queue:
        del queues[key]


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
class VirtualTimes:
    """What callers, and flows of a caller, were given beyond the one of them that has least.

    In tokens, divided by the weight of the caller; who is not named owes nothing.
    """

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))


class FairQueue(Generic[QueuedRow]):
    """The turns of one batch."""

    def __init__(
        self,
        queues: Queues[QueuedRow],
        *,
        virtual_times: VirtualTimes,
        weights: Mapping[str, float],
        longest_turn: float = 0.0,
    ) -> None:
        """Give turns to the rows of `queues`, which stay there.

        `longest_turn` is in tokens through all layers; without it all turns are of one row.
        """
        self._caller_times = defaultdict[str, float](float, virtual_times.callers)
        self._flow_times = defaultdict[Flow, float](float, virtual_times.flows)
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
        self._caller_times[row.caller] += cost / self._weights.get(row.caller, 1.0)
        self._flow_times[flow] += cost
        self.given[flow] = self.given.get(flow, 0.0) + cost
        turn = self._turn
        if turn is not None and turn.flow == flow:
            turn.work_left -= cost

    def carry_over(self, waiting: Iterable[Flow]) -> VirtualTimes:
        """Return the virtual_times after the batch, above the least of those who still wait.

        Who waits no more is forgotten as soon as the others have caught up.
        """
        levels: dict[Rank, float] = {}
        callers = set[str]()
        for flow in waiting:
            time = self._flow_times[flow]
            levels[flow[:2]] = min(time, levels.get(flow[:2], time))
            callers.add(flow[0])
        level = min((self._caller_times[caller] for caller in callers), default=None)
        return VirtualTimes(
            callers={} if level is None else _above(self._caller_times, level),
            flows={
                flow: time - levels[flow[:2]]
                for flow, time in self._flow_times.items()
                if flow[:2] in levels and time > levels[flow[:2]]
            },
        )

    def _first_of_turn(self, taken: Collection[int]) -> QueuedRow | None:
        while self._callers:
            due, age, caller = self._callers[0]
            flow = self._next_flow(self._flows[caller])
            if flow is None:
                heappop(self._callers)
            # Its virtual_times, or its next flow, have changed; of others they have not, but for the one
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
            # VirtualTimes only grow, so an entry that is out of date is too far in front.
            elif due < self._flow_due(flow):
                heapreplace(flows, (rank, self._flow_due(flow), age, flow))
            else:
                return flow
        return None

    def _caller_due(self, flow: Flow) -> float:
        """What the caller of a flow owes with the turn of that flow."""
        weight = self._weights.get(flow[0], 1.0)
        return self._caller_times[flow[0]] + self._long_turns.get(flow, 0.0) / weight

    def _flow_due(self, flow: Flow) -> float:
        return self._flow_times[flow] + self._long_turns.get(flow, 0.0)

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


def _above(virtual_times: Mapping[Key, float], level: float) -> dict[Key, float]:
    return {key: time - level for key, time in virtual_times.items() if time > level}


HALF_LIFE_S: Final = 0.25
"""Of what was given: a few batches of a processor."""
MAX_LIGHT_USAGE: Final = 2 / 3
"""What a light flow may have been given, as a part of what the heavy flow was."""
NEXT_TO_NOTHING: Final = MIN_COST / 64
"""What has decayed to less is forgotten: 64 tokens after 3 s, 16,384 after 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What callers and flows were given lately, in tokens through all layers."""

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))
    as_of: float = 0.0
    """The clock reading, in seconds, up to which it has decayed: when the last batch began.

    While that runs, what preempts it weighs as much as the batch itself.
    """

    def at(self, now: float) -> "Usage":
        """Return what is left of it at a clock reading, without what is next to nothing."""
        now = max(now, self.as_of)
        part = 0.5 ** ((now - self.as_of) / HALF_LIFE_S)
        return Usage(
            callers=_decayed(self.callers, part), flows=_decayed(self.flows, part), as_of=now
        )

    def plus(self, given: Mapping[Flow, float]) -> "Usage":
        """Return it with what a batch gives to flows, in tokens."""
        callers, flows = dict(self.callers), dict(self.flows)
        for flow, work in given.items():
            callers[flow[0]] = callers.get(flow[0], 0.0) + work
            flows[flow] = flows.get(flow, 0.0) + work
        return Usage(callers=callers, flows=flows, as_of=self.as_of)

    def is_light(self, flow: Flow, *, beside: Flow, weights: Mapping[str, float]) -> bool:
        """Tell whether a flow asks for little beside another.

        Between callers: what the caller was given is little, by weight. Between priorities of one
        caller: the higher one is light. Else: what the flow was given is little.
        """
        (caller, priority, _), (other, other_priority, _) = flow, beside
        if caller != other:
            given, most = self._of_caller(caller, weights), self._of_caller(other, weights)
            return given <= MAX_LIGHT_USAGE * most
        if priority is not other_priority:
            return priority.rank < other_priority.rank
        return self._of_flow(flow) <= MAX_LIGHT_USAGE * self._of_flow(beside)

    def heaviest(self, flows: Collection[Flow], *, weights: Mapping[str, float]) -> frozenset[Flow]:
        """Return those of the flows that are light beside none of the others."""
        callers = {flow[0]: self._of_caller(flow[0], weights) for flow in flows}
        ranks, most = dict[str, int](), dict[Rank, float]()
        for flow in flows:
            ranks[flow[0]] = max(flow[1].rank, ranks.get(flow[0], 0))
            most[flow[:2]] = max(self._of_flow(flow), most.get(flow[:2], 0.0))
        most_given = max(callers.values(), default=0.0)
        return frozenset(
            flow
            for flow in flows
            if callers[flow[0]] > MAX_LIGHT_USAGE * most_given
            and flow[1].rank == ranks[flow[0]]
            and self._of_flow(flow) > MAX_LIGHT_USAGE * most[flow[:2]]
        )

    def _of_flow(self, flow: Flow) -> float:
        return self.flows.get(flow, 0.0)

    def _of_caller(self, caller: str, weights: Mapping[str, float]) -> float:
        return self.callers.get(caller, 0.0) / weights.get(caller, 1.0)


def _decayed(given: Mapping[Key, float], part: float) -> dict[Key, float]:
    left = ((key, part * work) for key, work in given.items())
    return {key: work for key, work in left if work >= NEXT_TO_NOTHING}

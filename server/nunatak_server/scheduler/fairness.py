"""Fair queueing: which waiting row the next batch takes next.

- `Queues` holds the waiting rows by flow and by text, from batch to batch. A batch therefore costs
  time for the rows it takes and the flows that wait, not for every waiting row.
- `FairQueue` picks the rows of one batch by virtual time, first between callers, then between the
  flows of a caller. Virtual time counts service: the least served goes next (Sheng et al. 2024,
  arXiv:2401.00588, algorithm 2, there with one level). A flow that returns starts level with the
  least served one, as in start-time fair queueing (Goyal et al. 1996), so no flow saves up turns.
  A long turn is a quantum of deficit round-robin (Shreedhar and Varghese 1996).
- `Usage` is recent service with exponential decay (Kay and Lauder 1988). Virtual time is forgiven
  once no other flow waits; usage still tells heavy flows from light ones.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import count
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from nunatak_server.scheduler.rows import Priority

Flow = tuple[str, Priority, str]
"""Caller, priority and task. The rows of a flow keep their order."""
Rank = tuple[str, Priority]
"""Caller and priority."""
QueueKey = TypeVar("QueueKey", bound=Hashable)
TimeKey = TypeVar("TimeKey", str, Flow)

MIN_COST: Final = 1.0
"""Tokens charged for a row at least: a row that costs no work still takes a place in the batch."""
MANY_ROWS: Final = 16
"""A flow with fewer waiting rows has turns of one row."""
ROWS_OF_WHOLE_TURN: Final = 64
"""A flow with this many waiting rows has the longest turn. With half as many it has half of it."""
HALF_LIFE_S: Final = 0.25
"""Half-life of usage: the time of a few batches on a CPU."""
MAX_LIGHT_USAGE: Final = 2 / 3
"""A light flow has at most this share of the usage of the heavy flow."""
MIN_USAGE: Final = MIN_COST / 64
"""Usage below this is dropped: 64 tokens decay to it in 3 s, 16,384 tokens in 5 s."""


class Queued(Protocol):
    """The attributes by which a row is queued."""

    @property
    def caller(self) -> str:
        """The caller of the request."""
        ...

    @property
    def task(self) -> str:
        """The task, whatever its version."""
        ...

    @property
    def priority(self) -> Priority:
        """The rank of the row among the rows of its caller."""
        ...

    @property
    def group(self) -> Hashable:
        """Equal for the rows of one request that read the same text."""
        ...


QueuedRow = TypeVar("QueuedRow", bound=Queued)


def flow_of(row: Queued) -> Flow:
    """Return the flow of a row."""
    return row.caller, row.priority, row.task


class Queues(Generic[QueuedRow]):
    """Waiting rows in the order of arrival: all rows, the rows of each flow and of each text."""

    def __init__(self, rows: Iterable[QueuedRow] = ()) -> None:
        """Begin with these rows, oldest first."""
        self._arrivals = count()
        self._number_of: dict[int, int] = {}
        """The arrival number of a row, by the `id` of the row."""
        self._rows: dict[int, QueuedRow] = {}
        self._flows: dict[Flow, dict[int, QueuedRow]] = {}
        self._texts: dict[Hashable, dict[int, QueuedRow]] = {}
        self.add(rows)

    def __len__(self) -> int:
        """Return the number of waiting rows."""
        return len(self._rows)

    def __contains__(self, row: QueuedRow) -> bool:
        """Return whether this row waits; rows are compared by identity."""
        return id(row) in self._number_of

    def __iter__(self) -> Iterator[QueuedRow]:
        """Return the rows, oldest first."""
        return iter(self._rows.values())

    @property
    def flows(self) -> KeysView[Flow]:
        """The flows with waiting rows, in no order."""
        return self._flows.keys()

    def add(self, rows: Iterable[QueuedRow]) -> None:
        """Queue rows behind all others; none of the rows may be queued already."""
        for row in rows:
            number = next(self._arrivals)
            self._number_of[id(row)] = number
            self._rows[number] = row
            self._flows.setdefault(flow_of(row), {})[number] = row
            self._texts.setdefault(row.group, {})[number] = row

    def remove(self, rows: Iterable[QueuedRow]) -> None:
        """Remove rows; each of the rows must be queued."""
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
        """Return the arrival number of the oldest row of a flow."""
        return next(iter(self._flows[flow]))

    def flows_without(self, rows: Sequence[QueuedRow]) -> frozenset[Flow]:
        """Return the flows that still have rows here once these queued rows are left out."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTimes:
    """Service of callers and of flows, above the least served caller and flow that wait.

    In tokens, divided by the weight of the caller. A caller or flow without an entry has 0.
    """

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))


_Standing = tuple[int, float, int, Flow]
"""Rank of the priority, virtual time after the next turn, age of the oldest row, flow."""


@dataclass(slots=True, kw_only=True)
class _Turn:
    """A long turn in progress. The row that brings `work_left` to 0 still belongs to the turn."""

    flow: Flow
    work_left: float
    """In tokens through all layers."""


class FairQueue(Generic[QueuedRow]):
    """The order in which one batch takes rows."""

    def __init__(
        self,
        queues: Queues[QueuedRow],
        *,
        virtual_times: VirtualTimes,
        weights: Mapping[str, float],
        longest_turn: float = 0.0,
    ) -> None:
        """Order the rows of `queues`, which stay there.

        Args:
            queues: the waiting rows.
            virtual_times: as the batch before has left them.
            weights: shares of callers relative to each other; 1 for a caller without an entry.
            longest_turn: in tokens through all layers; with 0 all turns are of one row.
        """
        self._caller_times = defaultdict[str, float](float, virtual_times.callers)
        self._flow_times = defaultdict[Flow, float](float, virtual_times.flows)
        self._weights = weights
        self.given: dict[Flow, float] = {}
        """The service of each flow in this batch, in tokens through all layers."""
        self._queues = queues
        self._long_turns = _long_turns(queues, longest_turn) if longest_turn else {}
        self._turn: _Turn | None = None
        """The long turn in progress."""
        self._rows: dict[Flow, Iterator[QueuedRow]] = {}
        """The unseen rows of each flow that was looked at."""
        self._ended: set[Flow] = set()
        """Flows that have no rows left, or may give no more rows to this batch."""
        self._flows = defaultdict[str, list[_Standing]](list)
        """A heap for each caller."""
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
        """Return the next row, and count the row as seen; None once all rows were seen.

        A long turn in progress goes on. Otherwise the next row comes from the caller with the
        least virtual time, from its highest priority, and there from the flow with the least
        virtual time. A long turn counts before it is taken, like a finish tag (Demers, Keshav and
        Shenker 1989), so short turns do not wait for it. The age of the oldest row breaks ties.
        Rows whose `id` is in `taken` are skipped.
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
        """Skip the flow of a row that does not fit the batch, so that the flow keeps its order."""
        self._ended.add(flow_of(row))

    def charge(self, row: QueuedRow, cost: float) -> None:
        """Add the cost of a row, in tokens, to the virtual times of its caller and its flow."""
        cost, flow = max(cost, MIN_COST), flow_of(row)
        self._caller_times[row.caller] += cost / self._weights.get(row.caller, 1.0)
        self._flow_times[flow] += cost
        self.given[flow] = self.given.get(flow, 0.0) + cost
        turn = self._turn
        if turn is not None and turn.flow == flow:
            turn.work_left -= cost

    def carry_over(self, waiting: Iterable[Flow]) -> VirtualTimes:
        """Return the virtual times after the batch, above the least among the waiting flows.

        A caller that waits no more is forgotten once the others have caught up with it. A flow is
        forgotten once no flow of its caller and priority waits, or once those have caught up.
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
            # The entry is out of date: the caller was charged, or its next flow is another one.
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
            # Virtual times only grow, so an entry that is out of date is too far in front.
            elif due < self._flow_due(flow):
                heapreplace(flows, (rank, self._flow_due(flow), age, flow))
            else:
                return flow
        return None

    def _caller_due(self, flow: Flow) -> float:
        """Return the virtual time of the caller of a flow after the next long turn of the flow."""
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
    """Return the work of each turn that is longer than one row."""
    return {
        flow: longest * min(1.0, len(queues.of_flow(flow)) / ROWS_OF_WHOLE_TURN)
        for flow in queues.flows
        if len(queues.of_flow(flow)) >= MANY_ROWS
    }


def _above(times: Mapping[TimeKey, float], level: float) -> dict[TimeKey, float]:
    return {key: time - level for key, time in times.items() if time > level}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Recent service of callers and flows with decay, in tokens through all layers."""

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))
    as_of: float = 0.0
    """The clock reading up to which usage has decayed, in seconds: the start of the last batch.

    Usage does not decay while a batch runs, so rows that preempt the batch weigh as much as it.
    """

    def at(self, now: float) -> "Usage":
        """Return the usage at a clock reading, without entries below `MIN_USAGE`."""
        now = max(now, self.as_of)
        part = 0.5 ** ((now - self.as_of) / HALF_LIFE_S)
        return Usage(
            callers=_decayed(self.callers, part), flows=_decayed(self.flows, part), as_of=now
        )

    def plus(self, given: Mapping[Flow, float]) -> "Usage":
        """Return the usage with the service of one batch, in tokens by flow."""
        callers, flows = dict(self.callers), dict(self.flows)
        for flow, work in given.items():
            callers[flow[0]] = callers.get(flow[0], 0.0) + work
            flows[flow] = flows.get(flow, 0.0) + work
        return Usage(callers=callers, flows=flows, as_of=self.as_of)

    def is_light(self, flow: Flow, *, compared_with: Flow, weights: Mapping[str, float]) -> bool:
        """Tell whether a flow is light compared with another.

        Between two callers, the usage of the callers by weight decides. Between two priorities of
        one caller, the higher priority is light. Otherwise the usage of the flows decides.
        """
        (caller, priority, _), (other, other_priority, _) = flow, compared_with
        if caller != other:
            given, most = self._of_caller(caller, weights), self._of_caller(other, weights)
            return given <= MAX_LIGHT_USAGE * most
        if priority is not other_priority:
            return priority.rank < other_priority.rank
        return self._of_flow(flow) <= MAX_LIGHT_USAGE * self._of_flow(compared_with)

    def heaviest(self, flows: Collection[Flow], *, weights: Mapping[str, float]) -> frozenset[Flow]:
        """Return the flows that no other flow exceeds: each is light compared with none."""
        callers = {flow[0]: self._of_caller(flow[0], weights) for flow in flows}
        ranks, most = dict[str, int](), dict[Rank, float]()
        for flow in flows:
            ranks[flow[0]] = max(flow[1].rank, ranks.get(flow[0], 0))
            most[flow[:2]] = max(self._of_flow(flow), most.get(flow[:2], 0.0))
        most_of_caller = max(callers.values(), default=0.0)
        return frozenset(
            flow
            for flow in flows
            if callers[flow[0]] > MAX_LIGHT_USAGE * most_of_caller
            and flow[1].rank == ranks[flow[0]]
            and self._of_flow(flow) > MAX_LIGHT_USAGE * most[flow[:2]]
        )

    def _of_flow(self, flow: Flow) -> float:
        return self.flows.get(flow, 0.0)

    def _of_caller(self, caller: str, weights: Mapping[str, float]) -> float:
        return self.callers.get(caller, 0.0) / weights.get(caller, 1.0)


def _decayed(given: Mapping[TimeKey, float], part: float) -> dict[TimeKey, float]:
    left = ((key, part * work) for key, work in given.items())
    return {key: work for key, work in left if work >= MIN_USAGE}

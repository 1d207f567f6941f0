"""Turns: whose row goes next, fair between callers and between the tasks of each.

Virtual time in two levels, as counters of service: who has been given least goes next, and who
comes back after a pause starts level with the one who has least, so that nobody saves up turns
(Sheng et al. 2024, "Fairness in Serving Large Language Models", arXiv:2401.00588, algorithm 2,
whose counters are of one level; the lift on arrival is that of start-time fair queueing, Goyal et
al. 1996). Callers weigh what the operator says; tasks of one caller weigh the same.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from nunatak_server.batching.senders import Priority


class Queued(Protocol):
    """What a turn is given by."""

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


MIN_COST: Final = 1.0
QueuedRow = TypeVar("QueuedRow", bound=Queued)
Key = TypeVar("Key", bound=Hashable)
Rank = tuple[str, Priority]
"""A caller's rows of one priority."""
Flow = tuple[str, Priority, str]
"""A caller's rows of one priority for one task: they keep their order."""


def flow_of(row: Queued) -> Flow:
    """Return the flow that a row belongs to."""
    return row.caller, row.priority, row.task


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
        self, rows: Sequence[QueuedRow], *, debts: Debts, weights: Mapping[str, float]
    ) -> None:
        self._callers = defaultdict[str, float](float, debts.callers)
        self._flows = defaultdict[Flow, float](float, debts.flows)
        self._weights = weights
        self._queues: dict[str, dict[Flow, deque[QueuedRow]]] = {}
        for row in rows:
            queues = self._queues.setdefault(row.caller, {})
            queues.setdefault(flow_of(row), deque()).append(row)

    def next_row(self, taken: Collection[int]) -> QueuedRow | None:
        """Return the row whose turn it is, and count it as seen; None once all were seen.

        The caller that owes least, its highest priority, of that the flow that owes least; equal
        debts are decided by age. Rows whose `id` is in `taken` have had their turn.
        """
        while self._queues:
            # Both are in the order of their oldest rows, and `min` takes the first of equals.
            caller = min(self._queues, key=self._callers.__getitem__)
            flow = min(self._queues[caller], key=self._flow_standing)
            queue = self._queues[caller][flow]
            row = queue.popleft()
            if not queue:
                self._drop(flow)
            if id(row) not in taken:
                return row
        return None

    def end_turns(self, row: QueuedRow) -> None:
        """Leave out what is queued behind a row that has no room, so that its flow keeps order."""
        if flow_of(row) in self._queues.get(row.caller, {}):
            self._drop(flow_of(row))

    def charge(self, row: QueuedRow, cost: float) -> None:
        """Put what a row costs, in tokens, on the account of its caller and its flow."""
        # A row that costs next to nothing takes a place all the same.
        cost = max(cost, MIN_COST)
        self._callers[row.caller] += cost / self._weights.get(row.caller, 1.0)
        self._flows[flow_of(row)] += cost

    def settle(self, waiting: Iterable[QueuedRow]) -> Debts:
        """Return the debts after the batch, above the least of those who still wait.

        Who waits no more is forgotten as soon as the others have caught up.
        """
        flows = {flow_of(row) for row in waiting}
        levels: dict[Rank, float] = {}
        for flow in flows:
            debt = self._flows[flow]
            levels[flow[:2]] = min(debt, levels.get(flow[:2], debt))
        callers = [self._callers[caller] for caller, _, _ in flows]
        level = min(callers, default=None)
        return Debts(
            callers={} if level is None else _above(self._callers, level),
            flows={
                flow: debt - levels[flow[:2]]
                for flow, debt in self._flows.items()
                if flow[:2] in levels and debt > levels[flow[:2]]
            },
        )

    def _drop(self, flow: Flow) -> None:
        queues = self._queues[flow[0]]
        del queues[flow]
        if not queues:
            del self._queues[flow[0]]

    def _flow_standing(self, flow: Flow) -> tuple[int, float]:
        return flow[1].rank, self._flows[flow]


def _above(debts: Mapping[Key, float], level: float) -> dict[Key, float]:
    return {key: debt - level for key, debt in debts.items() if debt > level}

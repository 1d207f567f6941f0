"""Usage: what was given lately, by which a flood is told from those who ask for little.

Turns (`turns.py`) remember what a flow owes while others wait, and forgive it when nobody does. So
they tell who goes next, and not who has asked for more in the last moments. That is told by usage
that decays with time (Kay and Lauder 1988, "A Fair Share Scheduler").
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

from nunatak_server.batching.queues import Flow
from nunatak_server.batching.turns import MIN_COST, Rank

HALF_LIFE_S: Final = 0.25
"""Of what was given: a few batches of a processor."""
MAX_QUIET_USAGE: Final = 2 / 3
"""What a quiet flow may have been given, as a part of what the flood was."""
NEXT_TO_NOTHING: Final = MIN_COST / 64
"""What has decayed to less is forgotten: 64 tokens after 3 s, 16,384 after 5."""
Key = TypeVar("Key", str, Flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What callers and flows were given lately, in tokens through all layers."""

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))
    as_of: float = 0.0
    """The clock reading, in seconds, up to which it has decayed: when the last batch began.

    While that runs, what overtakes it weighs as much as the batch itself.
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

    def is_quiet(self, flow: Flow, *, beside: Flow, weights: Mapping[str, float]) -> bool:
        """Tell whether a flow asks for little beside another.

        Between callers: what the caller was given is little, by weight. Between priorities of one
        caller: the higher one is quiet. Else: what the flow was given is little.
        """
        (caller, priority, _), (other, other_priority, _) = flow, beside
        if caller != other:
            given, most = self._of_caller(caller, weights), self._of_caller(other, weights)
            return given <= MAX_QUIET_USAGE * most
        if priority is not other_priority:
            return priority.rank < other_priority.rank
        return self._of_flow(flow) <= MAX_QUIET_USAGE * self._of_flow(beside)

    def loud(self, flows: Collection[Flow], *, weights: Mapping[str, float]) -> frozenset[Flow]:
        """Return those of the flows that are quiet beside none of the others."""
        callers = {flow[0]: self._of_caller(flow[0], weights) for flow in flows}
        ranks, most = dict[str, int](), dict[Rank, float]()
        for flow in flows:
            ranks[flow[0]] = max(flow[1].rank, ranks.get(flow[0], 0))
            most[flow[:2]] = max(self._of_flow(flow), most.get(flow[:2], 0.0))
        loudest = max(callers.values(), default=0.0)
        return frozenset(
            flow
            for flow in flows
            if callers[flow[0]] > MAX_QUIET_USAGE * loudest
            and flow[1].rank == ranks[flow[0]]
            and self._of_flow(flow) > MAX_QUIET_USAGE * most[flow[:2]]
        )

    def _of_flow(self, flow: Flow) -> float:
        return self.flows.get(flow, 0.0)

    def _of_caller(self, caller: str, weights: Mapping[str, float]) -> float:
        return self.callers.get(caller, 0.0) / weights.get(caller, 1.0)


def _decayed(given: Mapping[Key, float], part: float) -> dict[Key, float]:
    left = ((key, part * work) for key, work in given.items())
    return {key: work for key, work in left if work >= NEXT_TO_NOTHING}

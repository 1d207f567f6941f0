"""Usage: what was given lately, by which a flood is told from those who ask for little.

Turns (`turns.py`) remember what a flow owes while others wait, and forgive it when nobody does. So
they tell who goes next, and not who has asked for more in the last moments. That is told by usage
that decays with time (Kay and Lauder 1988, "A Fair Share Scheduler").
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

from nunatak_server.batching.queues import Flow
from nunatak_server.batching.turns import MIN_COST

HALF_LIFE_S: Final = 0.25
"""Of what was given: a few batches of a processor."""
MAX_QUIET_USAGE: Final = 2 / 3
"""What a quiet flow may have been given, as a part of what the flood was."""
Key = TypeVar("Key", str, Flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What callers and flows were given lately, in tokens through all layers."""

    callers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Flow, float] = field(default_factory=lambda: MappingProxyType({}))
    as_of: float = 0.0
    """The clock reading, in seconds, up to which it has decayed."""

    def at(self, now: float) -> "Usage":
        """Return what is left of it at a clock reading, without what is next to nothing."""
        left = 0.5 ** (max(0.0, now - self.as_of) / HALF_LIFE_S)
        return Usage(
            callers=_decayed(self.callers, left), flows=_decayed(self.flows, left), as_of=now
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
            given = self.callers.get(caller, 0.0) / weights.get(caller, 1.0)
            others = self.callers.get(other, 0.0) / weights.get(other, 1.0)
        elif priority is not other_priority:
            return priority.rank < other_priority.rank
        else:
            given, others = self.flows.get(flow, 0.0), self.flows.get(beside, 0.0)
        return given <= MAX_QUIET_USAGE * others


def _decayed(given: Mapping[Key, float], left: float) -> dict[Key, float]:
    return {key: left * work for key, work in given.items() if left * work >= MIN_COST}

"""The backlog: what is queued of whom, and how much of it a newcomer must wait for; pure counts.

Amounts are tokens through all layers, as the planner charges them.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from typing import Final, TypeVar

from nunatak_server.batching.queues import Flow

Key = TypeVar("Key", bound=Hashable)
Amount = TypeVar("Amount", int, float)
Holder = tuple[str] | tuple[str, str]
"""A caller, or a caller's task."""
ROUNDING: Final = 1e-6


class Backlog:
    """Requests and tokens that are not answered yet: of all, of callers, of tasks, of flows."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0.0
        self.flows: dict[Flow, float] = {}
        self._requests: dict[Holder, int] = {}
        self._tokens: dict[Holder, float] = {}

    def requests_of(self, holder: Holder) -> int:
        """Return how many requests of a caller, or for a caller's task, are queued."""
        return self._requests.get(holder, 0)

    def tokens_of(self, holder: Holder) -> float:
        """Return how many tokens of a caller, or for a caller's task, are queued."""
        return self._tokens.get(holder, 0.0)

    def add_request(self, caller: str, tasks: Collection[str]) -> None:
        """Count a request."""
        self.num_requests += 1
        for holder in holders(caller, tasks):
            self._requests[holder] = self._requests.get(holder, 0) + 1

    def remove_request(self, caller: str, tasks: Collection[str]) -> None:
        """Count a request no more."""
        self.num_requests -= 1
        for holder in holders(caller, tasks):
            _reduce(self._requests, holder, 1)

    def add_tokens(self, flow: Flow, num_tokens: float) -> None:
        """Count tokens; rows that cost nothing, as on a trunk that is paid for, count as none."""
        if num_tokens < ROUNDING:
            return
        caller, _, task = flow
        self.num_tokens += num_tokens
        for holder in holders(caller, (task,)):
            self._tokens[holder] = self._tokens.get(holder, 0.0) + num_tokens
        self.flows[flow] = self.flows.get(flow, 0.0) + num_tokens

    def remove_tokens(self, flow: Flow, num_tokens: float) -> None:
        """Count tokens no more."""
        if num_tokens < ROUNDING:
            return
        caller, _, task = flow
        for holder in holders(caller, (task,)):
            _reduce(self._tokens, holder, num_tokens)
        _reduce(self.flows, flow, num_tokens)
        # What rounding leaves would never be given back.
        self.num_tokens = self.num_tokens - num_tokens if self.flows else 0.0


def holders(caller: str, tasks: Collection[str]) -> list[Holder]:
    """Return who holds what a request takes."""
    return [(caller,), *[(caller, task) for task in tasks]]


def _reduce(amounts: dict[Key, Amount], key: Key, amount: Amount) -> None:
    amounts[key] -= amount
    if amounts[key] < ROUNDING:
        del amounts[key]


def tokens_ahead(
    queued: Mapping[Flow, float], flow: Flow, weights: Mapping[str, float], *, longest_turn: float
) -> float:
    """Return what is computed before a new row of `flow` at least, if rows are small.

    What the flow itself has queued goes first, and meanwhile every other flow of the caller at the
    same priority gets as much, those at higher ones all they want, and every other caller as much
    by weight: generalised processor sharing (Parekh and Gallager 1993), with no later arrivals.
    Each may be behind by two turns of so many tokens: one that it has had, and one of the flow.
    """
    caller, priority, _ = flow
    mine = queued.get(flow, 0.0)
    own, others = 0.0, defaultdict[str, float](float)
    for other, tokens in queued.items():
        if other[0] != caller:
            others[other[0]] += tokens
        elif other[1].rank < priority.rank:
            own += tokens
        elif other[1] is priority:
            own += mine if other == flow else min(tokens, max(0.0, mine - 2 * longest_turn))
    ahead, weight = own, weights.get(caller, 1.0)
    for name, tokens in others.items():
        part = weights.get(name, 1.0) / weight
        ahead += min(tokens, max(0.0, part * own - (1 + part) * longest_turn))
    return ahead

"""The backlog: what is queued of whom, and how much of it a newcomer must wait for; pure counts.

Amounts are tokens through all layers, as the planner charges them.
"""

from collections import defaultdict
from collections.abc import Mapping

from nunatak_server.batching.turns import Flow


class Backlog:
    """Requests and tokens of every caller, and tokens of every flow, that are not answered yet."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0.0
        self.flows: dict[Flow, float] = {}
        self._requests = defaultdict[str, int](int)
        self._tokens = defaultdict[str, float](float)

    def requests_of(self, caller: str) -> int:
        """Return how many requests of one caller are queued."""
        return self._requests.get(caller, 0)

    def tokens_of(self, caller: str) -> float:
        """Return how many tokens of one caller are queued."""
        return self._tokens.get(caller, 0.0)

    def add_request(self, caller: str) -> None:
        """Count a request."""
        self.num_requests += 1
        self._requests[caller] += 1

    def remove_request(self, caller: str) -> None:
        """Count a request no more."""
        self.num_requests -= 1
        self._requests[caller] -= 1
        if not self._requests[caller]:
            # Nothing is left of rounding either, and nothing of callers that are gone.
            del self._requests[caller]
            self._tokens.pop(caller, None)
        if not self.num_requests:
            self.num_tokens = 0.0

    def add_tokens(self, flow: Flow, num_tokens: float) -> None:
        """Count tokens of a request that has been counted."""
        self.num_tokens += num_tokens
        self._tokens[flow[0]] += num_tokens
        self.flows[flow] = self.flows.get(flow, 0.0) + num_tokens

    def remove_tokens(self, flow: Flow, num_tokens: float) -> None:
        """Count tokens no more, before their request."""
        self.num_tokens -= num_tokens
        self._tokens[flow[0]] -= num_tokens
        self.flows[flow] -= num_tokens
        if self.flows[flow] < ROUNDING:
            del self.flows[flow]


ROUNDING = 1e-6


def tokens_ahead(queued: Mapping[Flow, float], flow: Flow, weights: Mapping[str, float]) -> float:
    """Return what is computed before a new row of `flow`, if turns are taken by small rows.

    What the flow itself has queued goes first, and meanwhile every other flow of the caller at the
    same priority gets as much, those at higher ones all they want, and every other caller as much
    by weight: generalised processor sharing (Parekh and Gallager 1993), with no later arrivals.
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
            own += min(tokens, mine)
    share = own / weights.get(caller, 1.0)
    return own + sum(min(tokens, share * weights.get(name, 1.0)) for name, tokens in others.items())

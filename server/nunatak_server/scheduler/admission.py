"""Admission: whether the process takes requests, and the limits of its queue.

`Readiness` is the state of the process. `Admission` has the limits of the queue, in requests, in
tokens and in bytes of bodies.

A request holds one place from its arrival, and the tokens of its rows from tokenization, until the
request is answered. Early refusals bound the wait of the admitted requests.

No caller gets the whole queue. A caller may hold at most four times the free part of the queue, and
a task of a caller at most twice the free part (dynamic thresholds, Choudhury and Hahne 1998). One
caller alone can fill four fifths of the queue, and one task alone two thirds. Without API keys
there is only one caller, so only tasks have shares.

`Backlog` counts the queued requests and tokens. `tokens_ahead` returns the tokens for which a new
row must wait. Tokens are counted through all layers, like the planner's charges: a row counts at
least `MIN_COST`, so the limit of tokens bounds the rows as well. The work to make outputs counts in
tokens too, because outputs of many labels or long answers can take longer than the model.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import Final, Self, TypeVar, assert_never

from nunatak_contract.errors import NunatakError
from nunatak_server.errors import OverloadedError
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import ANONYMOUS, Flow, Priority
from nunatak_server.scheduler.turns import Quotas


@dataclass(slots=True, kw_only=True)
class RegistryLease:
    """The time for which a process may answer without word from its registry."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    ends_at: float = -inf

    @property
    def is_over(self) -> bool:
        return self.clock() >= self.ends_at

    def renew(self, begun: float) -> None:
        """Let the time count from `begun`, the moment before the registry was asked."""
        self.ends_at = begun + self.seconds


class State(StrEnum):
    """The states of a server process, in order; every state can move to FAILED."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    """The server still accepts requests, and /readyz answers 503."""
    DRAINING = "draining"
    FAILED = "failed"


class Readiness:
    """The state of the process; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        stalled_s: Callable[[], float] = lambda: 0.0,
        max_stall_s: float = inf,
        lease: RegistryLease | None = None,
        on_move: Callable[[], None] = lambda: None,
    ) -> None:
        """Start in the state STARTING.

        `stalled_s` returns the seconds in which rows have waited and no batch has ended. `on_move`
        is called after each change of the state.
        """
        self.state = State.STARTING
        self._on_move = on_move
        self._stalled_s = stalled_s
        self._max_stall_s = max_stall_s
        self._lease = lease

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY and not self._is_stalled and self._has_lease

    def move_to(self, state: State) -> None:
        """Change the state; a failed process stays failed."""
        if self.state is not State.FAILED:
            self.state = state
            self._on_move()

    @property
    def takes_requests(self) -> bool:
        return self.state in (State.READY, State.LEAVING) and self._has_lease

    def check(self, *, has_begun: bool = False) -> None:
        """Refuse a request, unless it has begun before the server drains."""
        may_end = has_begun and self.state is State.DRAINING and self._has_lease
        if not (self.takes_requests or may_end):
            self.check_ready()

    def check_ready(self) -> None:
        match self.state:
            case State.READY if self._is_stalled:
                raise NunatakError(
                    "not_ready",
                    reason=f"requests have waited for {self._max_stall_s:g} s, and no batch has "
                    "ended",
                )
            case State.READY | State.LEAVING if not self._has_lease:
                raise NunatakError(
                    "not_ready",
                    reason="its lease has ended: the registry has not answered for "
                    "NUNATAK_REGISTRY_LEASE_S",
                )
            case State.READY:
                return
            case State.STARTING:
                raise NunatakError("not_ready", reason="it is starting")
            case State.FAILED:
                raise NunatakError("not_ready", reason="it has failed")
            case State.LEAVING | State.DRAINING:
                raise NunatakError("draining")
            case _:
                assert_never(self.state)

    @property
    def _has_lease(self) -> bool:
        return self._lease is None or not self._lease.is_over

    @property
    def _is_stalled(self) -> bool:
        return self._stalled_s() > self._max_stall_s


Key = TypeVar("Key", bound=Hashable)
Amount = TypeVar("Amount", int, float)
Holder = tuple[str] | tuple[str, str]
"""A caller, or a task of a caller."""
ROUNDING: Final = 1e-6
"""Amounts below this are rounding errors of sums."""


class Backlog:
    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0.0
        self.flows: dict[Flow, float] = {}
        self._requests: dict[Holder, int] = {}
        self._tokens: dict[Holder, float] = {}

    def requests_of(self, holder: Holder) -> int:
        return self._requests.get(holder, 0)

    def tokens_of(self, holder: Holder) -> float:
        return self._tokens.get(holder, 0.0)

    def add_request(self, caller: str, tasks: Collection[str]) -> None:
        self.num_requests += 1
        for holder in holders(caller, tasks):
            self._requests[holder] = self._requests.get(holder, 0) + 1

    def remove_request(self, caller: str, tasks: Collection[str]) -> None:
        self.num_requests -= 1
        for holder in holders(caller, tasks):
            _reduce(self._requests, holder, 1)

    def add_tokens(self, flow: Flow, num_tokens: float) -> None:
        if num_tokens < ROUNDING:
            return
        caller, _, task = flow
        self.num_tokens += num_tokens
        for holder in holders(caller, (task,)):
            self._tokens[holder] = self._tokens.get(holder, 0.0) + num_tokens
        self.flows[flow] = self.flows.get(flow, 0.0) + num_tokens

    def remove_tokens(self, flow: Flow, num_tokens: float) -> None:
        if num_tokens < ROUNDING:
            return
        caller, _, task = flow
        for holder in holders(caller, (task,)):
            _reduce(self._tokens, holder, num_tokens)
        _reduce(self.flows, flow, num_tokens)
        # Rounding errors would add up: an empty backlog has exactly 0 tokens.
        self.num_tokens = self.num_tokens - num_tokens if self.flows else 0.0


def holders(caller: str, tasks: Collection[str]) -> list[Holder]:
    return [(caller,), *[(caller, task) for task in tasks]]


def _reduce(amounts: dict[Key, Amount], key: Key, amount: Amount) -> None:
    amounts[key] -= amount
    if amounts[key] < ROUNDING:
        del amounts[key]


def tokens_ahead(
    queued: Mapping[Flow, float], flow: Flow, weights: Mapping[str, float], *, lead: float
) -> float:
    """Return a lower bound of the tokens that are computed before a new row of `flow`.

    The queued rows of the flow go first. Meanwhile, each other flow of the caller at the same
    priority gets equal service, and each flow at a higher priority gets all its queued tokens. Each
    other caller gets equal service by weight. This is generalised processor sharing (Parekh and
    Gallager 1993) without later arrivals. A flow or a caller may be ahead of its share by `lead`
    tokens, and then gets less service by this amount. The same holds for `flow` itself.
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
            own += mine if other == flow else min(tokens, max(0.0, mine - 2 * lead))
    ahead, weight = own, weights.get(caller, 1.0)
    for name, tokens in others.items():
        part = weights.get(name, 1.0) / weight
        ahead += min(tokens, max(0.0, part * own - (1 + part) * lead))
    return ahead


CALLER_SHARE: Final = 4.0
TASK_SHARE: Final = 2.0
"""Largest share of one holder, as a multiple of the free part of the queue."""
MIN_RETRY_S: Final = 1
MAX_RETRY_S: Final = 60
JITTER: Final = (0.5, 1.5)
"""Random factor of the retry time, so that callers refused together do not return together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    resource: str
    limit: int
    total: float


class Permit:
    """One request, admitted while a `with` block runs; belongs to the event loop thread."""

    def __init__(
        self, admission: "Admission", *, caller: str, priority: Priority, tasks: frozenset[str]
    ) -> None:
        self._admission = admission
        self._caller = caller
        self._priority = priority
        self._tasks = tasks
        self.tokens: dict[str, float] = {}
        """Tokens of the request by task."""

    def __enter__(self) -> Self:
        self._admission.take_place(self._caller, self._tasks)
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.give_back_tokens(self._caller, self._priority, self.tokens)
        self._admission.give_back_place(self._caller, self._tasks)

    def wait_s(self, task: str) -> float:
        return self._admission.wait_s(self._caller, self._priority, task)

    def take_tokens(self, tokens: Mapping[str, float]) -> None:
        self._admission.take_tokens(self._caller, self._priority, tokens, held=self.tokens)
        for task, count in tokens.items():
            self.tokens[task] = self.tokens.get(task, 0.0) + count

    def give_back_tokens(self, tokens: Mapping[str, float]) -> None:
        self._admission.give_back_tokens(self._caller, self._priority, tokens)
        for task, count in tokens.items():
            self.tokens[task] -= count


class HeldBytes:
    def __init__(self, admission: "Admission", *, caller: str, num_bytes: int = 0) -> None:
        self._admission = admission
        self._caller = caller
        self.num_bytes = num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.give_back_bytes(self._caller, self.num_bytes)

    def moved(self) -> "HeldBytes":
        num_bytes, self.num_bytes = self.num_bytes, 0
        return HeldBytes(self._admission, caller=self._caller, num_bytes=num_bytes)

    def take(self, num_bytes: int) -> None:
        self._admission.take_bytes(self._caller, num_bytes, held=self.num_bytes)
        self.num_bytes += num_bytes


class Admission:
    """Counts admitted requests, tokens and bytes; belongs to the event loop thread."""

    def __init__(  # noqa: PLR0913 - limits and their measures, by name
        self,
        *,
        max_requests: int,
        max_tokens: int,
        max_bytes: int,
        caller_share: float | None = CALLER_SHARE,
        weights: Mapping[str, float] | None = None,
        time_model: Callable[[], BatchTimeModel] = BatchTimeModel,
        draw: Callable[[float, float], float] = random.uniform,
        quotas: Quotas | None = None,
    ) -> None:
        """`caller_share` is None where there is only one caller."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self._caller_share = caller_share
        self._smallest_share = min(TASK_SHARE, caller_share or TASK_SHARE)
        self._weights = weights or {}
        self._time_model = time_model
        self._draw = draw
        self.quotas = quotas or Quotas({})
        self._backlog = Backlog()
        self._bytes: dict[str, int] = {}
        """Bytes of bodies by caller."""
        self.num_bytes = 0

    @property
    def num_requests(self) -> int:
        return self._backlog.num_requests

    @property
    def num_tokens(self) -> float:
        return self._backlog.num_tokens

    def admit(
        self,
        caller: str = ANONYMOUS,
        priority: Priority = Priority.NORMAL,
        *,
        tasks: Collection[str] = (),
    ) -> Permit:
        return Permit(self, caller=caller, priority=priority, tasks=frozenset(tasks))

    def has_plenty(self, num_bytes: int) -> bool:
        return self._has_plenty(self.num_requests, 1, self._max_requests) and (
            not self.num_bytes or self._has_plenty(self.num_bytes, num_bytes, self._max_bytes)
        )

    def check_capacity(self, caller: str, *, tasks: Collection[str] = (), num_bytes: int) -> None:
        """Refuse a request before its body of `num_bytes` is received; count nothing.

        The tokens are not known before the body, so a request that passes may still be refused.
        """
        self._check_place(caller, frozenset(tasks))
        self._check_bytes(caller, num_bytes)

    def hold_bytes(self, caller: str = ANONYMOUS) -> HeldBytes:
        return HeldBytes(self, caller=caller)

    def take_place(self, caller: str, tasks: frozenset[str]) -> None:
        self._check_place(caller, tasks)
        self._backlog.add_request(caller, tasks)

    def give_back_place(self, caller: str, tasks: frozenset[str]) -> None:
        self._backlog.remove_request(caller, tasks)

    def take_bytes(self, caller: str, num_bytes: int, *, held: int) -> None:
        self._check_bytes(caller, held + num_bytes, held=held)
        self.num_bytes += num_bytes
        self._bytes[caller] = self._bytes.get(caller, 0) + num_bytes

    def give_back_bytes(self, caller: str, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        left = self._bytes.pop(caller, 0) - num_bytes
        if left:
            self._bytes[caller] = left

    def take_tokens(
        self,
        caller: str,
        priority: Priority,
        tokens: Mapping[str, float],
        *,
        held: Mapping[str, float],
    ) -> None:
        """Count more tokens by task, of a request that already has the tokens `held`.

        A request that is alone in the queue is never asked to retry, because a retry would find no
        more space.
        """
        backlog, own = self._backlog, sum(held.values())
        wanted = own + sum(tokens.values())
        self._check_size("caller", self._caller_share, wanted)
        for task, count in tokens.items():
            self._check_size("task", TASK_SHARE, held.get(task, 0.0) + count)
        others = backlog.num_tokens - own
        if others > ROUNDING and not self._has_plenty(others, wanted, self._max_tokens):
            in_use = Held(resource="tokens", limit=self._max_tokens, total=others)
            self._check_total(in_use, wanted)
            self._check_share(in_use, (caller,), backlog.tokens_of((caller,)) - own, wanted)
            for task, count in tokens.items():
                of_request = held.get(task, 0.0)
                of_task = backlog.tokens_of((caller, task)) - of_request
                self._check_share(in_use, (caller, task), of_task, of_request + count)
        for task, count in tokens.items():
            backlog.add_tokens((caller, priority, task), count)
        self.quotas.count_tokens(caller, sum(tokens.values()))

    def give_back_tokens(
        self, caller: str, priority: Priority, tokens: Mapping[str, float]
    ) -> None:
        for task, count in tokens.items():
            self._backlog.remove_tokens((caller, priority, task), count)

    def wait_s(self, caller: str, priority: Priority, task: str) -> float:
        """Return the least wait of new rows of a flow in seconds, by the speed of recent batches.

        The result is 0 while one batch can take everything queued, and before the first batch.
        """
        time_model = self._time_model()
        if not time_model.tokens_per_s or self._backlog.num_tokens <= time_model.largest_tokens:
            return 0.0
        # Light rows go first, at most by a batch, and so do the rows of a batch over others.
        lead = max(time_model.largest_tokens, time_model.most_tokens)
        flow = (caller, priority, task)
        ahead = tokens_ahead(self._backlog.flows, flow, self._weights, lead=lead)
        # The batch that runs may be almost done.
        return max(0.0, ahead - time_model.largest_tokens) / time_model.tokens_per_s

    def retry_after_s(self) -> int:
        return min(MAX_RETRY_S, max(MIN_RETRY_S, ceil(self.drain_s() * self._draw(*JITTER))))

    def drain_s(self) -> float:
        tokens_per_s = self._time_model().tokens_per_s
        return self._backlog.num_tokens / tokens_per_s if tokens_per_s else 0.0

    def _check_place(self, caller: str, tasks: Collection[str]) -> None:
        backlog = self._backlog
        if self._has_plenty(backlog.num_requests, 1, self._max_requests):
            return
        held = Held(resource="requests", limit=self._max_requests, total=backlog.num_requests)
        self._check_total(held, 1)
        for holder in holders(caller, tasks):
            self._check_share(held, holder, backlog.requests_of(holder), 1)

    def _check_bytes(self, caller: str, wanted: int, *, held: int = 0) -> None:
        """Check a body of `wanted` bytes in all. A body always passes while there is no other."""
        others = self.num_bytes - held
        if others and not self._has_plenty(others, wanted, self._max_bytes):
            in_use = Held(resource="bytes of bodies", limit=self._max_bytes, total=others)
            self._check_total(in_use, wanted)
            self._check_share(in_use, (caller,), self._bytes.get(caller, 0) - held, wanted)

    def _has_plenty(self, total: float, wanted: float, limit: int) -> bool:
        return total + wanted <= min(limit, self._smallest_share * (limit - total))

    def _check_size(self, holder: str, share: float | None, wanted: float) -> None:
        most = self._max_tokens if share is None else self._max_tokens * share / (1 + share)
        if wanted > most:
            raise NunatakError("request_too_large", num_tokens=wanted, limit=most, holder=holder)

    def _check_total(self, held: Held, wanted: float) -> None:
        if held.total + wanted > held.limit:
            raise OverloadedError(held.resource, held.limit, retry_after_s=self.retry_after_s())

    def _check_share(self, held: Held, holder: Holder, of_holder: float, wanted: float) -> None:
        """Refuse a holder above its share. A holder without anything may always begin."""
        kind, share = ("caller", self._caller_share) if len(holder) == 1 else ("task", TASK_SHARE)
        if share is None or of_holder < ROUNDING:
            return
        if of_holder + wanted > share * (held.limit - held.total):
            raise OverloadedError(
                held.resource, held.limit, holder=kind, retry_after_s=self.retry_after_s()
            )

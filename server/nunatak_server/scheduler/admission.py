"""Admission: whether the process takes requests, and the limits of its queue.

`Readiness` is the state of the process. `Admission` has the limits of the queue, in requests, in
tokens and in bytes of bodies.

A request holds one place from its arrival, and the tokens of its rows from tokenization, until the
request is answered. Early refusals bound the wait of the admitted requests.

No caller gets the whole queue. A caller may hold at most four times the free part of the queue, and
a task of a caller at most twice the free part (dynamic thresholds, Choudhury and Hahne 1998). One
caller alone can fill four fifths of the queue, and one task alone two thirds. Without API keys
there is only one caller, so only tasks have shares.

`tokens_ahead` returns the tokens for which a new row must wait. Tokens are counted through all
layers, like the planner's charges: a row counts at least `MIN_COST`, so the limit of tokens bounds
the rows as well. The work to make outputs counts in tokens too, because outputs of many labels or
long answers can take longer than the model.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
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
Holder = tuple[str] | tuple[str, str]
"""A caller, or a task of a caller."""
ROUNDING: Final = 1e-6
"""Amounts below this are rounding errors of sums."""


class Amounts(dict[Key, float]):
    """Amounts by key; what is absent, or a rounding error, is 0."""

    def __missing__(self, _: Key) -> float:
        return 0.0

    def change(self, key: Key, by: float) -> None:
        left = self.get(key, 0.0) + by
        if left < ROUNDING:
            self.pop(key, None)
        else:
            self[key] = left


class Resource:
    """What requests hold of a limit, in all and by holder."""

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit, self.total = name, limit, 0.0
        self.held = Amounts[Holder]()

    def change(self, holders: Iterable[Holder], by: float) -> None:
        for holder in holders:
            self.held.change(holder, by)
        # Rounding errors would add up: without a holder, the total is exactly 0.
        self.total = self.total + by if self.held else 0.0


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


class Permit:
    """One request, admitted while a `with` block runs; belongs to the event loop thread."""

    def __init__(
        self, admission: "Admission", *, caller: str, priority: Priority, tasks: frozenset[str]
    ) -> None:
        self._admission = admission
        self._caller = caller
        self._priority = priority
        self._tasks = tasks
        self._holders: list[Holder] = [(caller,), *((caller, task) for task in tasks)]
        self._tokens = Amounts[str]()
        """Tokens of the request by task."""

    def __enter__(self) -> Self:
        self._admission.check_place(self._caller, self._tasks)
        self._admission.requests.change(self._holders, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back_tokens(self._tokens.copy())
        self._admission.requests.change(self._holders, -1)

    def wait_s(self, task: str) -> float:
        return self._admission.wait_s((self._caller, self._priority, task))

    def take_tokens(self, tokens: Mapping[str, float]) -> None:
        self._admission.check_tokens(self._caller, tokens, held=self._tokens)
        for task, count in tokens.items():
            self._change(task, count)
        self._admission.quotas.count_tokens(self._caller, sum(tokens.values()))

    def give_back_tokens(self, tokens: Mapping[str, float]) -> None:
        for task, count in tokens.items():
            self._change(task, -count)

    def _change(self, task: str, by: float) -> None:
        self._tokens.change(task, by)
        self._admission.flows.change((self._caller, self._priority, task), by)
        self._admission.tokens.change(((self._caller,), (self._caller, task)), by)


class HeldBytes:
    def __init__(self, admission: "Admission", *, caller: str, num_bytes: int = 0) -> None:
        self._admission = admission
        self._caller = caller
        self.num_bytes = num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.bytes.change([(self._caller,)], -self.num_bytes)

    def moved(self) -> "HeldBytes":
        num_bytes, self.num_bytes = self.num_bytes, 0
        return HeldBytes(self._admission, caller=self._caller, num_bytes=num_bytes)

    def take(self, num_bytes: int) -> None:
        after = self.num_bytes + num_bytes
        self._admission.check_bytes(self._caller, after, held=self.num_bytes)
        self._admission.bytes.change([(self._caller,)], num_bytes)
        self.num_bytes = after


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
        self.requests = Resource("requests", max_requests)
        self.tokens = Resource("tokens", max_tokens)
        self.bytes = Resource("bytes of bodies", max_bytes)
        self.flows = Amounts[Flow]()
        """Tokens by flow."""
        self._caller_share = caller_share
        self._smallest_share = min(TASK_SHARE, caller_share or TASK_SHARE)
        self._weights = weights or {}
        self._time_model = time_model
        self._draw = draw
        self.quotas = quotas or Quotas({})

    def admit(
        self,
        caller: str = ANONYMOUS,
        priority: Priority = Priority.NORMAL,
        *,
        tasks: Collection[str] = (),
    ) -> Permit:
        return Permit(self, caller=caller, priority=priority, tasks=frozenset(tasks))

    def hold_bytes(self, caller: str = ANONYMOUS) -> HeldBytes:
        return HeldBytes(self, caller=caller)

    def has_plenty(self, num_bytes: int) -> bool:
        return self._has_plenty(self.requests.total, 1, self.requests.limit) and (
            not self.bytes.total or self._has_plenty(self.bytes.total, num_bytes, self.bytes.limit)
        )

    def check_capacity(self, caller: str, *, tasks: Collection[str] = (), num_bytes: int) -> None:
        """Refuse a request before its body of `num_bytes` is received; count nothing.

        The tokens are not known before the body, so a request that passes may still be refused.
        """
        self.check_place(caller, tasks)
        self.check_bytes(caller, num_bytes)

    def check_place(self, caller: str, tasks: Collection[str]) -> None:
        self._check(self.requests, caller, 1, of_tasks=((task, 0, 1) for task in tasks))

    def check_bytes(self, caller: str, wanted: float, *, held: float = 0) -> None:
        self._check(self.bytes, caller, wanted, held=held)

    def check_tokens(
        self, caller: str, tokens: Mapping[str, float], *, held: Mapping[str, float]
    ) -> None:
        """Refuse more tokens by task, for a request that already has the tokens `held`."""
        own = sum(held.values())
        wanted = own + sum(tokens.values())
        self._check_size("caller", self._caller_share, wanted)
        of_tasks = [(task, held[task], held[task] + count) for task, count in tokens.items()]
        for _, _, of_task in of_tasks:
            self._check_size("task", TASK_SHARE, of_task)
        self._check(self.tokens, caller, wanted, held=own, of_tasks=of_tasks)

    def wait_s(self, flow: Flow) -> float:
        """Return the least wait of new rows of a flow in seconds, by the speed of recent batches.

        The result is 0 while one batch can take everything queued, and before the first batch.
        """
        time_model = self._time_model()
        if not time_model.tokens_per_s or self.tokens.total <= time_model.largest_tokens:
            return 0.0
        # Light rows go first, at most by a batch, and so do the rows of a batch over others.
        lead = max(time_model.largest_tokens, time_model.most_tokens)
        ahead = tokens_ahead(self.flows, flow, self._weights, lead=lead)
        # The batch that runs may be almost done.
        return max(0.0, ahead - time_model.largest_tokens) / time_model.tokens_per_s

    def retry_after_s(self) -> int:
        return min(MAX_RETRY_S, max(MIN_RETRY_S, ceil(self.drain_s() * self._draw(*JITTER))))

    def drain_s(self) -> float:
        tokens_per_s = self._time_model().tokens_per_s
        return self.tokens.total / tokens_per_s if tokens_per_s else 0.0

    def _check(
        self,
        resource: Resource,
        caller: str,
        wanted: float,
        *,
        held: float = 0,
        of_tasks: Iterable[tuple[str, float, float]] = (),
    ) -> None:
        """Refuse a request that wants `wanted` in all and has `held` of it; `of_tasks` by task.

        A request that is alone in the queue always passes: a retry would find no more space.
        """
        others = resource.total - held
        if others < ROUNDING or self._has_plenty(others, wanted, resource.limit):
            return
        limit, free, retry_s = resource.limit, resource.limit - others, self.retry_after_s
        if wanted > free:
            raise OverloadedError(resource.name, limit, retry_after_s=retry_s())
        asked = [("caller", self._caller_share, (caller,), held, wanted)]
        asked += [("task", TASK_SHARE, (caller, task), *amounts) for task, *amounts in of_tasks]
        for kind, share, holder, own, wish in asked:
            # A holder without anything may always begin.
            before = resource.held[holder] - own
            if share is not None and before >= ROUNDING and before + wish > share * free:
                raise OverloadedError(resource.name, limit, holder=kind, retry_after_s=retry_s())

    def _has_plenty(self, total: float, wanted: float, limit: int) -> bool:
        return total + wanted <= min(limit, self._smallest_share * (limit - total))

    def _check_size(self, holder: str, share: float | None, wanted: float) -> None:
        limit = self.tokens.limit
        most = limit if share is None else limit * share / (1 + share)
        if wanted > most:
            raise NunatakError("request_too_large", num_tokens=wanted, limit=most, holder=holder)

"""Turns and quotas: what requests do outside the engine, by caller in turn, and how much.

The event loop and the threads belong to all callers. A request with many rows therefore works on
the event loop in slices, at most one slice of all requests between two looks for other work. Work
on threads goes through `FairSemaphore`, and ends early if nobody waits for its result any more.
`within` limits the time of work.

A quota is the most requests or tokens of one caller in one minute or one day of UTC. A request is
refused once a quota is spent. The request that spends the rest of a quota is answered whole,
and so are the requests in progress: no stream of verdicts stays unjudged from some place on. Each
process counts for itself.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import StrEnum
from itertools import islice
from math import ceil, inf
from typing import Final, TypeVar

from cachetools import LRUCache

from nunatak_contract.errors import NunatakError
from nunatak_server.errors import DeadlineExceededError

Item = TypeVar("Item")
Result = TypeVar("Result")
Check = Callable[[], None]
"""Called between parts of work; raises `UnawaitedError` once nobody waits for the result."""

SLICE: Final = 256
"""Rows that a request handles in one go on the event loop, in about a millisecond."""


class UnawaitedError(Exception):
    """Nobody waits for the result of work on the thread any more."""


class FairSemaphore:
    """A semaphore that serves callers in turn; only the event loop thread may use it.

    A caller that gives a slot back goes behind all callers that wait (round-robin, Nagle 1987). A
    new caller therefore waits for at most one slot of each other caller. The requests of one caller
    keep their order.
    """

    def __init__(self, *, num_slots: int) -> None:
        self._num_free = num_slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests by caller, next caller first; empty while a slot is free."""

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None]:
        await self._enter(caller)
        try:
            yield
        finally:
            self._leave(caller)

    async def _enter(self, caller: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # The slot arrived at the moment of the cancellation.
                self._leave(caller)
            raise

    def _leave(self, caller: str) -> None:
        self._put_behind(caller)
        if not self._admit_next():
            self._num_free += 1

    def _admit_next(self) -> bool:
        while self._waiting:
            caller, queue = next(iter(self._waiting.items()))
            # A cancelled request takes no slot, and costs its caller no turn.
            while queue and queue[0].done():
                queue.popleft()
            turn = queue.popleft() if queue else None
            self._put_behind(caller)
            if turn is not None:
                turn.set_result(None)
                return True
        return False

    def _put_behind(self, caller: str) -> None:
        queue = self._waiting.pop(caller, None)
        if queue:
            self._waiting[caller] = queue


class Turns:
    """The turns of all requests at the event loop and at a thread; for the event loop thread."""

    def __init__(self) -> None:
        self._slices = FairSemaphore(num_slots=1)
        self._outputs = FairSemaphore(num_slots=1)
        # One thread, because more would only compete for the lock of the interpreter.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nunatak-outputs")

    def pace(self, caller: str, *, deadline: float = inf) -> "Pace":
        return Pace(self, caller, deadline=deadline)

    async def pause(self, caller: str) -> None:
        """Let others use the event loop, until the caller may run one slice."""
        async with self._slices.slot(caller):
            await asyncio.sleep(0)

    async def on_thread(self, work: Callable[[Check], Result], *, caller: str) -> Result:
        is_awaited = True

        def check() -> None:
            if not is_awaited:
                raise UnawaitedError

        async with self._outputs.slot(caller):
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, work, check)
            finally:
                is_awaited = False

    def close(self) -> None:
        self._pool.shutdown()


class Pace:
    """Counts what one request does on the event loop, and pauses after each `SLICE` rows."""

    def __init__(self, turns: Turns, caller: str, *, deadline: float) -> None:
        self.deadline = deadline
        """The reading of `time.monotonic` after which the answer of the request is useless."""
        self._turns = turns
        self._caller = caller
        self._num_rows = 0

    async def count(self, num_rows: int) -> None:
        self._num_rows += num_rows
        if self._num_rows >= SLICE:
            self._num_rows = 0
            await self._turns.pause(self._caller)

    async def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of a function, with pauses. An item counts as a row."""
        found, left = list[Result](), iter(items)
        while part := list(islice(left, SLICE - self._num_rows)):
            found += map(function, part)
            await self.count(len(part))
        return found

    async def on_thread(self, work: Callable[[Check], Result]) -> Result:
        """Return the result of work, which ends at its first check after the deadline.

        Raises:
            DeadlineExceededError: there is no result in time.
        """
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceededError
        waiting = self._turns.on_thread(work, caller=self._caller)
        return await within(left_s, waiting, late=DeadlineExceededError)


async def within(
    seconds: float, work: Awaitable[Result], *, late: Callable[[], Exception]
) -> Result:
    """Await `work`; after the time limit, cancel `work` and raise the error that `late` makes."""
    limit = asyncio.timeout(None if seconds == inf else seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise late() from None
        raise


class Quota(StrEnum):
    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"


Limits = Mapping[Quota, int]
MAX_CALLERS: Final = 100_000
"""Callers with counts. Only more callers than this make the process forget a count."""
_PERIODS_S: Final = {"minute": 60, "day": 86_400}
_Count = tuple[int, float]  # the number of a period, and the amount in this period


class Quotas:
    """Counts requests and tokens of callers; belongs to the event loop thread."""

    def __init__(self, default: Limits, *, now: Callable[[], float] = time.time) -> None:
        """`default` holds the limits of callers without an own limit for a quota."""
        self._default = default
        self._now = now
        self._counts: MutableMapping[str, dict[Quota, _Count]] = LRUCache(MAX_CALLERS)

    def count_request(self, caller: str, limits: Limits) -> None:
        """Count one request of a caller, or refuse it and do not count it."""
        limits = {**self._default, **limits}
        now, known = self._now(), self._counts.pop(caller, {})
        if not limits:
            return
        counts = {quota: _count_at(now, quota, known.get(quota)) for quota in limits}
        self._counts[caller] = counts
        spent = [quota for quota, limit in limits.items() if counts[quota][1] >= limit]
        if spent:
            end, last = max(((counts[it][0] + 1) * _period_s(it), it) for it in spent)
            resource, _, period = last.split("_")
            most, wait_s = limits[last], ceil(end - now)
            raise NunatakError(
                "quota_exceeded", resource=resource, limit=most, period=period, retry_after_s=wait_s
            )
        self._add(caller, "requests", 1)

    def count_tokens(self, caller: str, num_tokens: float) -> None:
        self._add(caller, "tokens", num_tokens)

    def _add(self, caller: str, resource: str, amount: float) -> None:
        counts = self._counts.get(caller, {})
        for quota, known in counts.items():
            if quota.startswith(resource):
                period, before = _count_at(self._now(), quota, known)
                counts[quota] = period, before + amount


def _period_s(quota: Quota) -> int:
    return _PERIODS_S[quota.rpartition("_")[2]]


def _count_at(now: float, quota: Quota, known: _Count | None) -> _Count:
    """Return the count of the running period; a clock that goes back a little frees nothing.

    After a clock that was far ahead, a caller would else be refused until that time comes again.
    """
    period = int(now // _period_s(quota))
    return known if known and period <= known[0] <= period + 1 else (period, 0.0)

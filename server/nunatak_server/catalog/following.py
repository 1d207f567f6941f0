"""Following the registry: its changes, the holds on versions in memory, and a replica's beats."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from nunatak_contract.errors import NunatakError
from nunatak_registry import Generation, StoreUnavailableError
from nunatak_server.scheduler.admission import RegistryLease

logger = logging.getLogger(__name__)


Result = TypeVar("Result")

PATIENCE_S = 5.0
"""A poll without an answer for so long counts as failed: a locked index answers no error."""

START_RETRY_S = 0.5
"""Time between two attempts of a start to read the registry."""


class RegistryWatch:
    """Polls the generation of the registry; while a poll fails, nothing changes."""

    def __init__(
        self,
        *,
        generation: Callable[[], Awaitable[Generation]],
        on_change: Callable[[Generation], Awaitable[None]],
        on_restore: Callable[[], Awaitable[None]],
        interval_s: float,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_change` repeats if it raises; `on_restore` follows if the number is no higher."""
        self._generation = generation
        self._on_change = on_change
        self._on_restore = on_restore
        self._interval_s = interval_s
        self._pause = pause
        self.is_readable = True

    async def run(self) -> None:
        seen: Generation | None = None
        silence = StoreUnavailableError(f"no answer for {PATIENCE_S:g} s")
        while True:
            late = asyncio.get_running_loop().call_later(PATIENCE_S, self._tell_refused, silence)
            try:
                found = await self._generation()
                if found != seen:
                    await self._on_change(found)
                    self._tell_readable()
                    await self._look_for_restore(seen, found)
                    seen = found
            except Exception as error:  # noqa: BLE001 - a lack of descriptors must end no server
                self._tell_refused(error)
            else:
                self._tell_readable()
            finally:
                late.cancel()
            await self._pause(self._interval_s)

    def _tell_refused(self, error: Exception) -> None:
        if self.is_readable:
            log_refusal("the registry cannot be read, serving the known versions", error)
        self.is_readable = False

    def _tell_readable(self) -> None:
        if not self.is_readable:
            logger.warning("the registry can be read again")
        self.is_readable = True

    async def _look_for_restore(self, before: Generation | None, found: Generation) -> None:
        # Numbers only increase, unless the index is an older copy.
        if before is not None and found.number <= before.number:
            logger.warning(
                "the registry was restored: its generation was %d and is now %d; versions that it "
                "lacks are not served any more",
                before.number,
                found.number,
            )
            await self._on_restore()


def log_refusal(what: str, error: Exception) -> None:
    trace = None if isinstance(error, NunatakError) else error
    logger.warning("%s: %s", what, error or type(error).__name__, exc_info=trace)


async def until_answered(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Ask the registry until it answers: a process that knows nothing of it must not be ready."""
    is_told = False
    while True:
        try:
            return await ask()
        except StoreUnavailableError as error:
            if not is_told:
                log_refusal("the start waits for the registry", error)
            is_told = True
            await asyncio.sleep(START_RETRY_S)


ALONE_S = 40.0
"""Time between two beats of a process that has no lease and saw no other replica."""
TOGETHER_S = 2.0
"""Time between two beats of a process that has no lease and saw other replicas."""
BEATS_PER_LEASE = 5


class Membership:
    """Keeps this process among the replicas of its registry.

    With a lease, the process may answer only for a time after the start of its last beat. The
    row of that beat lives longer, so a process without a live row answers nothing. After a lapse,
    the row was perhaps missing while an operator waited for the replicas. So `on_return` runs
    before the process answers again, and must forget everything that was read before.
    """

    def __init__(
        self,
        *,
        beat: Callable[[Generation], Awaitable[int]],
        leave: Callable[[], Awaitable[object]],
        lease: RegistryLease | None,
        on_return: Callable[[], None],
        pause: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        """Take functions that may raise `NunatakError`; `beat` returns the number of others."""
        self._beat = beat
        self._leave = leave
        self._lease = lease
        self._on_return = on_return
        self._pause = pause or _pause
        self._seen: Generation | None = None
        self._has_news = asyncio.Event()
        self._asked: asyncio.Future[int] | None = None
        self._interval_s = ALONE_S if lease is None else lease.seconds / BEATS_PER_LEASE
        self._is_refused = False

    def see(self, generation: Generation) -> None:
        if generation != self._seen:
            self._seen = generation
            self.tell()

    def tell(self) -> None:
        self._has_news.set()

    async def run(self) -> None:
        while True:
            await self._pause(self._has_news, self._interval_s)
            await self.beat()

    async def beat(self) -> None:
        """Beat once. A refusal is logged, and does not end a lease that has not ended yet."""
        self._has_news.clear()
        if self._seen is None:
            return
        begun = 0.0 if self._lease is None else self._lease.clock()
        self._asked = asyncio.ensure_future(self._beat(self._seen))
        try:
            num_others = await asyncio.shield(self._asked)
        except Exception as error:  # noqa: BLE001 - as for a poll
            self._refuse(error)
            return
        if self._lease is None:
            self._interval_s = TOGETHER_S if num_others else ALONE_S
        else:
            if self._lease.is_over:
                self._on_return()
            self._lease.renew(begun)
        self._is_refused = False

    async def leave(self) -> None:
        if self._asked is None:
            return
        # The beat that `run` was writing when it was cancelled must not come after the leave.
        await asyncio.wait([self._asked])
        try:
            await self._leave()
        except NunatakError as error:
            logger.warning("cannot leave the replicas of the registry: %s", error)

    def _refuse(self, error: Exception) -> None:
        is_foreign = not isinstance(error, NunatakError)
        if not self._is_refused and (self._lease is not None or is_foreign):
            log_refusal("the registry takes no beats, and a lease will end", error)
        self._is_refused = True


HOLD_S = 120.0
"""Lifetime of a hold: a killed process holds its versions for at most this long."""
RENEWAL_S = HOLD_S / 3
"""Time between two renewals of a hold."""
RETRY_S = 5.0
"""Time until the next attempt after the registry has refused a hold."""

Version = tuple[str, int]
"""A task name and a version number."""


class HoldRenewal:
    """Renews the holds on the versions in memory, so that these cannot be deleted.

    The server also serves without holds, and the holds of a killed process expire. A restored
    registry has lost the holds written since its backup, so each turn checks them.
    """

    def __init__(
        self,
        *,
        resident: Callable[[], Collection[Version]],
        hold: Callable[[Collection[Version], float], Awaitable[AbstractSet[Version]]],
        held: Callable[[], Awaitable[AbstractSet[Version]]],
        interval_s: float,
        on_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        """`hold` replaces the holds for some seconds; `on_first` is for a first version."""
        self._resident = resident
        self._hold = hold
        self._held = held
        self._interval_s = interval_s
        self._on_first = on_first
        self._clock = clock
        self._pause = pause or _pause
        self._look = asyncio.Event()
        self._asked: asyncio.Future[AbstractSet[Version]] | None = None
        self._wanted: frozenset[Version] = frozenset()
        self._taken: AbstractSet[Version] = frozenset()
        self._renew_at = self._over_at = self._retry_at = 0.0
        self._has_logged_expiry = False
        self.is_refused = False

    @property
    def is_over(self) -> bool:
        return self.is_refused and self._clock() >= self._over_at

    def look(self) -> None:
        self._retry_at = 0.0
        self._look.set()

    async def run(self) -> None:
        while True:
            self._look.clear()
            if self._clock() >= self._retry_at:
                await self._turn()
            await self._pause(self._look, self._interval_s)

    async def release(self) -> None:
        if self._asked is None:
            return
        # The hold that `run` was writing when it was cancelled must not come after the release.
        await asyncio.wait([self._asked])
        try:
            await self._ask(())
        except NunatakError as error:
            logger.warning("cannot release holds, which expire within %.0f s: %s", HOLD_S, error)

    async def _turn(self) -> None:
        wanted, now = frozenset(self._resident()), self._clock()
        if wanted and not self._wanted:
            self._on_first()
        try:
            is_due = now >= self._renew_at
            if wanted != self._wanted or (wanted and (is_due or await self._held() != self._taken)):
                self._taken = await self._ask(wanted)
                self._wanted = wanted
                self._renew_at, self._over_at = now + RENEWAL_S, now + HOLD_S
        except Exception as error:  # noqa: BLE001 - as for a poll
            self._refuse(error, now)
        else:
            self.is_refused = self._has_logged_expiry = False

    def _refuse(self, error: Exception, now: float) -> None:
        if not self.is_refused:
            log_refusal("the registry takes no holds, serving on", error)
        self.is_refused = True
        self._over_at = self._over_at or now + HOLD_S
        self._retry_at = now + RETRY_S
        if self.is_over and not self._has_logged_expiry:
            self._has_logged_expiry = True
            logger.error("the holds have expired, so any version may be deleted: %s", error)

    async def _ask(self, versions: Collection[Version]) -> AbstractSet[Version]:
        self._asked = asyncio.ensure_future(self._hold(versions, HOLD_S))
        return await asyncio.shield(self._asked)


async def run_together(*parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run all parts; if one fails, end the others and raise its error."""
    # Called here, because a task that is cancelled before its first step awaits no coroutine.
    running = [asyncio.ensure_future(it()) for it in parts]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def _pause(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

"""Watches the registry for changes that other processes make, and for restores of a backup.

Holds what is in memory: tells the registry which versions this process serves.

So that nobody deletes a version that answers requests here. A process that is killed lets go when
the time of its last hold is over. A registry that was restored has lost the holds written since its
backup, so the process looks at them with each turn.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Protocol

from nunatak_registry import Generation, RegistryError

logger = logging.getLogger(__name__)


class RegistryWatch:
    """Polls the registry's generation; a registry that cannot be read changes nothing."""

    def __init__(
        self,
        *,
        generation: Callable[[], Awaitable[Generation]],
        on_change: Callable[[], None],
        on_restore: Callable[[], Awaitable[None]],
        interval_s: float,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_restore` is called after `on_change`, where the generation did not go up."""
        self._generation = generation
        self._on_change = on_change
        self._on_restore = on_restore
        self._interval_s = interval_s
        self._pause = pause
        self.is_readable = True
        """Whether the last poll could read the registry."""

    async def run(self) -> None:
        """Poll until cancelled."""
        seen: Generation | None = None
        while True:
            try:
                found = await self._generation()
            except RegistryError as error:
                if self.is_readable:
                    logger.warning("the registry cannot be read, serving what is known: %s", error)
                self.is_readable = False
            else:
                self.is_readable = True
                if found != seen:
                    before, seen = seen, found
                    await self._tell(before, found)
            await self._pause(self._interval_s)

    async def _tell(self, before: Generation | None, found: Generation) -> None:
        self._on_change()
        # Each number comes once, unless the index is a copy from before it.
        if before is not None and found.number <= before.number:
            logger.warning(
                "the registry was restored: its generation was %d and is now %d; what it does not "
                "name is served no more",
                before.number,
                found.number,
            )
            await self._on_restore()


HOLD_S = 120.0
"""How long a version stays held by a process that was killed."""
RENEWAL_S = HOLD_S / 3
RETRY_S = 5.0
"""How long a registry that took no hold is left alone."""

Version = tuple[str, int]
"""A task and a number: what the registry holds."""


class Holds(Protocol):
    """The holds of this process in the registry; both raise `RegistryError` if it cannot."""

    def hold(
        self, versions: Collection[Version], *, seconds: float
    ) -> Awaitable[AbstractSet[Version]]:
        """Hold these versions, and no others, for a while; return those that exist."""
        ...

    def held(self) -> Awaitable[AbstractSet[Version]]:
        """Return what this process holds now."""
        ...


class VersionHolding:
    """Renews the hold on the resident versions; a registry that takes none changes nothing."""

    def __init__(
        self,
        *,
        resident: Callable[[], Collection[Version]],
        holds: Holds,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        """`pause` waits for so many seconds, or until the event is set."""
        self._resident = resident
        self._holds = holds
        self._interval_s = interval_s
        self._clock = clock
        self._pause = pause or _pause
        self._look = asyncio.Event()
        self._asked: asyncio.Future[AbstractSet[Version]] | None = None
        self._wanted: frozenset[Version] = frozenset()
        self._taken: AbstractSet[Version] = frozenset()
        self._renew_at = self._over_at = self._retry_at = 0.0
        self._is_over_told = False
        self.is_refused = False
        """Whether the registry did not take the last hold."""

    @property
    def is_over(self) -> bool:
        """Whether what was held can be deleted, for the registry has taken no hold for so long."""
        return self.is_refused and self._clock() >= self._over_at

    def look(self) -> None:
        """Look at once whether the holds are still there: the registry has changed."""
        self._retry_at = 0.0
        self._look.set()

    async def run(self) -> None:
        """Hold until cancelled."""
        while True:
            self._look.clear()
            if self._clock() >= self._retry_at:
                await self._turn()
            await self._pause(self._look, self._interval_s)

    async def release(self) -> None:
        """Let go of everything; call it once `run` has ended."""
        if self._asked is None:
            return
        # A hold that was being written when `run` was cancelled must not come after this one.
        await asyncio.wait([self._asked])
        try:
            await self._ask(())
        except RegistryError as error:
            logger.warning("holds end by themselves within %.0f s: %s", HOLD_S, error)

    async def _turn(self) -> None:
        wanted, now = frozenset(self._resident()), self._clock()
        try:
            if wanted != self._wanted or (wanted and await self._is_due(now)):
                self._taken = await self._ask(wanted)
                self._wanted = wanted
                self._renew_at, self._over_at = now + RENEWAL_S, now + HOLD_S
        except RegistryError as error:
            self._refuse(error, now)
        else:
            self.is_refused = self._is_over_told = False

    async def _is_due(self, now: float) -> bool:
        return now >= self._renew_at or await self._holds.held() != self._taken

    def _refuse(self, error: RegistryError, now: float) -> None:
        if not self.is_refused:
            logger.warning("the registry takes no holds, serving on: %s", error)
        self.is_refused = True
        self._over_at = self._over_at or now + HOLD_S
        self._retry_at = now + RETRY_S
        if self.is_over and not self._is_over_told:
            self._is_over_told = True
            logger.error("no version is held any more, and any may be deleted: %s", error)

    async def _ask(self, versions: Collection[Version]) -> AbstractSet[Version]:
        self._asked = asyncio.ensure_future(self._holds.hold(versions, seconds=HOLD_S))
        return await asyncio.shield(self._asked)


async def _pause(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

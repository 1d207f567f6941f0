"""Holds what is in memory: tells the registry which versions this process serves.

So that nobody deletes a version that answers requests here. A process that is killed lets go when
the time of its last hold is over.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from nunatak_registry import RegistryError
from nunatak_server.residency.keys import VersionKey

HOLD_S = 120.0
"""How long a version stays held by a process that was killed."""
RENEWAL_S = HOLD_S / 3
RETRY_S = 5.0
"""How long a registry that took no hold is left alone."""

logger = logging.getLogger(__name__)


class Hold(Protocol):
    """Lets this process hold these versions, and no others, for a while."""

    def __call__(self, versions: Collection[VersionKey], *, seconds: float) -> Awaitable[None]:
        """Return once the registry has taken it; raise `RegistryError` if it does not."""
        ...


class VersionHolding:
    """Renews the hold on the resident versions; a registry that takes none changes nothing."""

    def __init__(
        self,
        *,
        resident: Callable[[], Collection[VersionKey]],
        hold: Hold,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._resident = resident
        self._hold = hold
        self._interval_s = interval_s
        self._clock = clock
        self._pause = pause
        self._asked: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Hold until cancelled."""
        held: frozenset[VersionKey] = frozenset()
        renew_at, retry_at, is_taken = 0.0, 0.0, True
        while True:
            wanted, now = frozenset(self._resident()), self._clock()
            is_due = wanted != held or (wanted and now >= renew_at)
            if is_due and now >= retry_at:
                try:
                    await self._ask(wanted)
                except RegistryError as error:
                    if is_taken:
                        logger.warning("the registry takes no holds, serving on: %s", error)
                    retry_at, is_taken = now + RETRY_S, False
                else:
                    held, is_taken = wanted, True
                    renew_at = now + RENEWAL_S
            await self._pause(self._interval_s)

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

    async def _ask(self, versions: Collection[VersionKey]) -> None:
        self._asked = asyncio.ensure_future(self._hold(versions, seconds=HOLD_S))
        await asyncio.shield(self._asked)

"""Watches the registry for changes that other processes make, and for restores of a backup."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

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

"""Watches the registry for changes that other processes make."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nunatak_registry import RegistryError

logger = logging.getLogger(__name__)


class RegistryWatch:
    """Polls the registry's generation; a registry that cannot be read changes nothing."""

    def __init__(
        self,
        *,
        generation: Callable[[], Awaitable[int]],
        on_change: Callable[[], None],
        interval_s: float,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._generation = generation
        self._on_change = on_change
        self._interval_s = interval_s
        self._pause = pause

    async def run(self) -> None:
        """Poll until cancelled."""
        seen: int | None = None
        is_readable = True
        while True:
            try:
                generation = await self._generation()
            except RegistryError as error:
                if is_readable:
                    logger.warning("the registry cannot be read, serving what is known: %s", error)
                is_readable = False
            else:
                is_readable = True
                if generation != seen:
                    seen = generation
                    self._on_change()
            await self._pause(self._interval_s)

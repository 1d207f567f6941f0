"""Watches the registry for changes that other processes make."""

import asyncio
import logging
import threading
from collections.abc import Callable

from nunatak_registry import RegistryError

logger = logging.getLogger(__name__)


class RegistryWatch:
    """Polls the registry's generation; a registry that cannot be read changes nothing."""

    def __init__(
        self,
        *,
        generation: Callable[[], int],
        on_change: Callable[[], None],
        interval_s: float,
    ) -> None:
        """`generation` is called on a thread of its own, `on_change` on that of the event loop."""
        self._generation = generation
        self._on_change = on_change
        self._interval_s = interval_s

    async def run(self) -> None:
        """Poll until cancelled; the event loop is woken by changes alone."""
        loop, is_over = asyncio.get_running_loop(), threading.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(self._on_change)

        try:
            await asyncio.to_thread(self._poll, tell, is_over)
        finally:
            is_over.set()

    def _poll(self, tell: Callable[[], None], is_over: threading.Event) -> None:
        seen: int | None = None
        is_readable = True
        while not is_over.is_set():
            try:
                generation = self._generation()
            except RegistryError as error:
                if is_readable:
                    logger.warning("the registry cannot be read, serving what is known: %s", error)
                is_readable = False
            else:
                is_readable = True
                if generation != seen:
                    seen = generation
                    tell()
            is_over.wait(self._interval_s)

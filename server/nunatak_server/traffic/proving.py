"""Proving: a candidate is loaded and probed on this server before any request goes to it.

Whoever set it, on whatever server: here it is loaded when the first request asks for its alias,
in the background, while the alias's own version answers. Once it has been in memory it is as good
as any version: it may be evicted and come back like the others.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nunatak_registry import TaskManifest
from nunatak_server.errors.known import KNOWN_ERRORS
from nunatak_server.residency.keys import VersionKey, key_of

RETRY_S = 5.0
"""How long a candidate that could not be loaded, or that went again, is left alone."""
MAX_PROVEN = 10_000
"""Far above the candidates of a real registry; versions beyond it are proven again."""


class Proving:
    """Knows which candidates may answer; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        is_resident: Callable[[TaskManifest], bool],
        preload: Callable[[TaskManifest], Awaitable[object]],
        clock: Callable[[], float],
    ) -> None:
        self._is_resident = is_resident
        self._preload = preload
        self._clock = clock
        self._proven: set[VersionKey] = set()
        self._retry_at: dict[VersionKey, float] = {}
        self._loading: dict[VersionKey, asyncio.Task[None]] = {}

    def is_proven(self, manifest: TaskManifest) -> bool:
        """Tell whether a candidate may answer; if not, it is on its way."""
        key = key_of(manifest)
        if key in self._proven:
            return True
        if not self._is_resident(manifest):
            self.warm(manifest)
            return False
        self._remember(key)
        return True

    def warm(self, manifest: TaskManifest) -> None:
        """Load a candidate in the background, unless that was tried a moment ago."""
        key, now = key_of(manifest), self._clock()
        if key in self._loading or now < self._retry_at.get(key, now):
            return
        if len(self._retry_at) >= MAX_PROVEN:
            self._retry_at.clear()
        self._retry_at[key] = now + RETRY_S
        loading = asyncio.create_task(self._load(manifest))
        self._loading[key] = loading
        loading.add_done_callback(lambda _: self._loading.pop(key))

    async def aclose(self) -> None:
        """Stop waiting for loads."""
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    async def _load(self, manifest: TaskManifest) -> None:
        try:
            await self._preload(manifest)
        except KNOWN_ERRORS:
            # The loads have logged why; it is tried again, for its blob may be healed.
            return
        self._remember(key_of(manifest))

    def _remember(self, key: VersionKey) -> None:
        if len(self._proven) >= MAX_PROVEN:
            self._proven.clear()
        self._proven.add(key)

"""References: what names mean, remembered until the registry changes."""

from collections.abc import Awaitable, Callable

from nunatak_registry import TaskReference, Traffic
from nunatak_server.residency.keys import VersionKey, key_of

# Bounds a hostile stream of `name/1`, `name/2`, ... ; far above the references in real use.
MAX_CACHED_REFERENCES = 10_000


class References:
    """Resolves references, each once; belongs to the event loop thread."""

    def __init__(
        self,
        resolve: Callable[[TaskReference], Awaitable[Traffic]],
        *,
        on_move: Callable[[str], None],
    ) -> None:
        """`on_move` is told the task of a reference found to mean another version than before."""
        self._resolve = resolve
        self._on_move = on_move
        self._resolved: dict[TaskReference, Traffic] = {}
        self._last_meant: dict[TaskReference, tuple[VersionKey, int]] = {}
        self._epoch = 0

    def known(self, reference: TaskReference) -> Traffic | None:
        """Return what a reference means if that is known; never waits."""
        return self._resolved.get(reference)

    async def resolve(self, reference: TaskReference) -> Traffic:
        """Return what a reference means, from memory as long as the registry has not changed.

        Raises:
            RegistryError: no such task, version or alias, or the store cannot be read.
        """
        known = self._resolved.get(reference)
        if known is not None:
            return known
        epoch = self._epoch
        traffic = await self._resolve(reference)
        # An answer from before a change must not outlive it.
        if epoch == self._epoch and len(self._resolved) < MAX_CACHED_REFERENCES:
            self._resolved[reference] = traffic
        self._note_meaning(reference, key_of(traffic.manifest), epoch)
        return traffic

    async def look_up(self, reference: TaskReference) -> Traffic:
        """Ask the registry what a reference means, even if that is known; raises as `resolve`."""
        return await self._resolve(reference)

    def invalidate(self) -> None:
        """Forget everything: the registry has changed."""
        self._epoch += 1
        self._resolved.clear()

    def _note_meaning(self, reference: TaskReference, version: VersionKey, epoch: int) -> None:
        """Tell of a move, unless the answer was asked for before one that is known already."""
        last = self._last_meant.get(reference)
        if last is None:
            if len(self._last_meant) < MAX_CACHED_REFERENCES:
                self._last_meant[reference] = (version, epoch)
            return
        last_version, last_epoch = last
        if epoch >= last_epoch:
            self._last_meant[reference] = (version, epoch)
            if version != last_version:
                self._on_move(reference.task)

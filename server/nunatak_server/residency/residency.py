"""References: what names mean, remembered until the registry changes.

Residency: which task versions are in memory, who uses them, and how they get in and out.

A request leases the immutable versions it was resolved to; an alias that moves meanwhile changes
nothing for it. What is in memory keeps to a budget of bytes, and more tasks than fit is a normal
state: a cold version waits for room and for its load, and disturbs no request for another. All
methods belong to the event loop thread.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from nunatak_artifact import LoadedTask
from nunatak_registry import (
    RegistryError,
    TaskManifest,
    TaskNotFoundError,
    TaskReference,
    Traffic,
    VersionNotFoundError,
)
from nunatak_server.residency.loads import Loader, Loads, ResidencyObserver
from nunatak_server.residency.resident_set import (
    ResidentSet,
    ResidentStats,
    VersionKey,
    key_of,
    versions_of,
)

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


logger = logging.getLogger(__name__)


class Lease:
    """One user of one version: it stays in memory until `release`, which may be called again."""

    def __init__(self, task: LoadedTask, *, end: Callable[[TaskManifest], None]) -> None:
        self.task = task
        self._end: Callable[[TaskManifest], None] | None = end

    def release(self) -> None:
        """End the use."""
        end, self._end = self._end, None
        if end is not None:
            end(self.task.manifest)


class Residency:
    """Resolves references, and leases the versions they mean."""

    def __init__(
        self,
        *,
        resolve: Callable[[TaskReference], Awaitable[Traffic]],
        loader: Loader,
        budget_bytes: int,
        observer: ResidencyObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._references = References(resolve, on_move=observer.observe_alias_move)
        self._size_of = loader.size_of
        self._resident_set = ResidentSet(budget_bytes=budget_bytes)
        self._loads = Loads(loader, resident_set=self._resident_set, observer=observer, clock=clock)

    def known(self, reference: TaskReference) -> Traffic | None:
        """Return what a reference means if that is known; never waits."""
        return self._references.known(reference)

    async def resolve(self, reference: TaskReference) -> Traffic:
        """Return what a reference means, from memory as long as the registry has not changed.

        Raises:
            RegistryError: no such task, version or alias, or the store cannot be read.
        """
        return await self._references.resolve(reference)

    async def look_up(self, reference: TaskReference) -> Traffic:
        """Ask the registry what a reference means, even if that is known; raises as `resolve`."""
        return await self._references.look_up(reference)

    def lease_resident(self, manifest: TaskManifest) -> Lease | None:
        """Lease a version for a request if it is in memory; never waits."""
        key = key_of(manifest)
        task = self._resident_set.lease(key)
        if task is None:
            return None
        self._resident_set.record_use(key)
        return Lease(task, end=self._end_lease)

    async def lease(self, manifest: TaskManifest) -> Lease:
        """Lease a version for a request, loading it if need be.

        Raises:
            RegistryError: its bytes cannot be trusted.
            ModelError: its parameters do not fit.
            ArtifactError: it does not fit the backbone or fails its probe.
            TaskDoesNotFitError: it needs more memory than there is.
            TaskUnhealthyError: it fails to load for a reason that is nobody's.
            EngineFailedError: the device is lost.
        """
        leased = self.lease_resident(manifest)
        if leased is not None:
            return leased
        # Counted before it is loaded, so that its use so far ranks it from the start.
        self._resident_set.record_use(key_of(manifest))
        task = await self._loads.lease(manifest, remember_failures=True)
        return Lease(task, end=self._end_lease)

    async def bring(self, manifest: TaskManifest) -> None:
        """Load a version for a request that will lease it before long; raises as `lease`."""
        # It may have come since the request looked; loaded again it would lose its leases.
        if self._resident_set.lease(key_of(manifest)) is None:
            await self._loads.lease(manifest, remember_failures=True)
        self._end_lease(manifest)

    def has_free_room(self, manifests: Sequence[TaskManifest]) -> bool:
        """Tell whether versions would fit in memory together with all that is there."""
        stats = self._resident_set.stats()
        needed = sum(map(self._size_of, manifests))
        return stats.resident_bytes + stats.loading_bytes + needed <= stats.budget_bytes

    async def preload(self, manifest: TaskManifest) -> LoadedTask:
        """Load a version, trying again even if it failed a moment ago; raises as `lease`."""
        task = await self._lease_anew(manifest)
        self._end_lease(manifest)
        return task

    async def pin(self, manifest: TaskManifest) -> LoadedTask:
        """Load a version and keep it in memory until `unpin`; raises as `preload`."""
        task = await self._lease_anew(manifest)
        self._resident_set.pin(key_of(manifest))
        self._end_lease(manifest)
        return task

    def unpin(self, task: str, version: int | None = None) -> tuple[int, ...]:
        """Let one version of a task, or all, be evicted again; return those that were pinned."""
        versions, evicted = self._resident_set.unpin(task, version)
        self._loads.count_evicted(evicted)
        self._loads.start_waiting()
        return versions

    def evict(self, task: str, version: int | None = None) -> tuple[int, ...]:
        """Drop one version of a task, or all, from memory; return the versions dropped.

        All or nothing: if one of them is in use or pinned, none is dropped.

        Raises:
            TaskInUseError: a version answers requests right now.
            TaskPinnedError: a version is pinned.
        """
        dropped = self._resident_set.evict(task, version)
        self._loads.count_evicted(dropped)
        self._loads.start_waiting()
        return versions_of(dropped)

    def is_resident(self, manifest: TaskManifest) -> bool:
        """Tell whether a version is in memory, which it comes into by passing its probe."""
        return self._resident_set.get(key_of(manifest)) is not None

    def resident(self) -> tuple[LoadedTask, ...]:
        """Return the versions in memory, ordered by task and version."""
        return self._resident_set.resident()

    def is_pinned(self, task: LoadedTask) -> bool:
        """Tell whether a version is in memory and pinned."""
        return self._resident_set.is_pinned(key_of(task.manifest))

    def stats(self) -> ResidentStats:
        """Return how many bytes are held, and of how many may be."""
        return self._resident_set.stats()

    def task_bytes(self) -> Mapping[str, int]:
        """Return the bytes that each task's versions in memory take together, as of now."""
        return self._resident_set.task_bytes()

    @property
    def num_waiting_for_loads(self) -> int:
        """How many leases wait for a version; this alone may be asked from any thread."""
        return self._loads.num_waiting

    def invalidate(self) -> None:
        """Forget what references mean; versions in memory stay, they cannot change."""
        self._references.invalidate()

    async def drop_unnamed(self) -> None:
        """Drop what the registry does not name any more, pinned or not; what is in use goes later.

        A registry that was restored may name none of a version, or another content.
        """
        for task in self._resident_set.resident():
            if await self._is_unnamed(task.manifest):
                logger.warning("%s goes: the registry no longer has it", task.manifest.reference)
                self._loads.count_evicted(self._resident_set.discard(key_of(task.manifest)))
        self._loads.start_waiting()

    async def _is_unnamed(self, manifest: TaskManifest) -> bool:
        reference = TaskReference(task=manifest.task, version=manifest.version)
        try:
            named = (await self.look_up(reference)).manifest
        except (TaskNotFoundError, VersionNotFoundError):
            return True
        except RegistryError:
            return False
        return key_of(named) != key_of(manifest)

    async def aclose(self) -> None:
        """Wait for the loads that run, then end the threads."""
        await self._loads.aclose()

    async def _lease_anew(self, manifest: TaskManifest) -> LoadedTask:
        # Who asks for it to be in memory expects requests for it: not the first one to go again.
        self._resident_set.record_use(key_of(manifest))
        task = self._resident_set.lease(key_of(manifest))
        return task or await self._loads.lease(manifest, remember_failures=False)

    def _end_lease(self, manifest: TaskManifest) -> None:
        self._loads.count_evicted(self._resident_set.release(key_of(manifest)))
        self._loads.start_waiting()

"""`Residency`: the task versions in memory, and their way in and out.

A request leases the immutable versions that its references mean. An alias that moves meanwhile
changes nothing for the request. The versions in memory stay within a budget of bytes, and a server
may have more tasks than fit. A cold version waits for space and for its load, and delays no request
for another version.

Only the event loop thread may use the classes here.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import TaskNotFoundError, Traffic, VersionNotFoundError
from nunatak_server.residency.loading import Loader, Loads, ResidencyObserver
from nunatak_server.residency.resident_set import ResidentSet, key_of, versions_of
from nunatak_versions import LoadedTask

logger = logging.getLogger(__name__)


class Lease:
    def __init__(self, task: LoadedTask, *, end: Callable[[TaskManifest], None]) -> None:
        self.task = task
        self._end: Callable[[TaskManifest], None] | None = end

    def release(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(self.task.manifest)


class Residency:
    def __init__(
        self,
        *,
        loader: Loader,
        budget_bytes: int,
        observer: ResidencyObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size_of = loader.size_of
        self._resident_set = ResidentSet(budget_bytes=budget_bytes)
        self._loads = Loads(loader, resident_set=self._resident_set, observer=observer, clock=clock)
        self.resident = self._resident_set.resident
        self.stats = self._resident_set.stats
        self.task_bytes = self._resident_set.task_bytes
        self.aclose = self._loads.aclose

    def lease_resident(self, manifest: TaskManifest) -> Lease | None:
        key = key_of(manifest)
        task = self._resident_set.lease(key)
        if task is None:
            return None
        self._resident_set.record_use(key)
        return Lease(task, end=self._end_lease)

    async def lease(self, manifest: TaskManifest) -> Lease:
        leased = self.lease_resident(manifest)
        if leased is not None:
            return leased
        # Counted before the load, so that the load's evictions consider this use.
        self._resident_set.record_use(key_of(manifest))
        task = await self._loads.lease(manifest, remember_failures=True)
        return Lease(task, end=self._end_lease)

    async def bring(self, manifest: TaskManifest) -> None:
        # The version may have been loaded meanwhile. A second load would lose its leases.
        if self._resident_set.lease(key_of(manifest)) is None:
            await self._loads.lease(manifest, remember_failures=True)
        self._end_lease(manifest)

    def has_free_room(self, manifests: Sequence[TaskManifest]) -> bool:
        stats = self._resident_set.stats()
        needed = sum(map(self._size_of, manifests))
        return stats.resident_bytes + stats.loading_bytes + needed <= stats.budget_bytes

    async def preload(self, manifest: TaskManifest) -> LoadedTask:
        task = await self._lease_anew(manifest)
        self._end_lease(manifest)
        return task

    async def pin(self, manifest: TaskManifest) -> LoadedTask:
        task = await self._lease_anew(manifest)
        self._resident_set.pin(key_of(manifest))
        self._end_lease(manifest)
        return task

    def unpin(self, task: str, version: int | None = None) -> tuple[int, ...]:
        versions, evicted = self._resident_set.unpin(task, version)
        self._loads.use_room_of(evicted)
        return versions

    def evict(self, task: str, version: int | None = None) -> tuple[int, ...]:
        """Evict one version of a task, or all, unless one is in use; return the evicted ones."""
        dropped = self._resident_set.evict(task, version)
        self._loads.use_room_of(dropped)
        return versions_of(dropped)

    def is_resident(self, manifest: TaskManifest) -> bool:
        return self._resident_set.get(key_of(manifest)) is not None

    def is_pinned(self, task: LoadedTask) -> bool:
        return self._resident_set.is_pinned(key_of(task.manifest))

    @property
    def num_waiting_for_loads(self) -> int:
        return self._loads.num_waiting

    async def drop_unnamed(self, look_up: Callable[[TaskReference], Awaitable[Traffic]]) -> None:
        """Evict versions that the registry no longer has, pinned or not, once their leases end.

        A restored registry may have other content under a number. `look_up` asks it.
        """
        for task in self._resident_set.resident():
            if await _is_unnamed(task.manifest, look_up):
                logger.warning(
                    "%s is evicted: the registry no longer has it", task.manifest.reference
                )
                self._loads.count_evicted(self._resident_set.discard(key_of(task.manifest)))
        self._loads.start_waiting()

    async def _lease_anew(self, manifest: TaskManifest) -> LoadedTask:
        # Count a use: the operator expects requests, so the version must not be evicted first.
        self._resident_set.record_use(key_of(manifest))
        task = self._resident_set.lease(key_of(manifest))
        return task or await self._loads.lease(manifest, remember_failures=False)

    def _end_lease(self, manifest: TaskManifest) -> None:
        self._loads.use_room_of(self._resident_set.release(key_of(manifest)))


async def _is_unnamed(
    manifest: TaskManifest, look_up: Callable[[TaskReference], Awaitable[Traffic]]
) -> bool:
    reference = TaskReference(task=manifest.task, version=manifest.version)
    try:
        named = (await look_up(reference)).manifest
    except (TaskNotFoundError, VersionNotFoundError):
        return True
    except NunatakError:
        return False
    return key_of(named) != key_of(manifest)

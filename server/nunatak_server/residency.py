"""Residency: which task versions are in memory, who uses them, and how they get in and out.

A request leases the immutable versions it was resolved to; an alias that moves meanwhile changes
nothing for it. Loads run on a thread pool, one per version however many requests wait for it, and
a version that cannot be loaded disturbs nobody else. All methods belong to the event loop thread.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from nunatak_artifact import ArtifactError, LoadedTask
from nunatak_model import ModelError
from nunatak_registry import RegistryError, TaskManifest, TaskReference
from nunatak_server.errors import ServerError, TaskInUseError, TaskUnhealthyError

# Bounds a hostile stream of `name/1`, `name/2`, ... ; far above the references in real use.
MAX_CACHED_REFERENCES = 10_000
# Keeps a version that cannot be loaded from being read from the store by each request for it.
FAILURE_MEMORY_S = 1.0

VersionKey = tuple[str, int]

logger = logging.getLogger(__name__)


class ResidencyObserver(Protocol):
    """Is told about loads and evictions, on the event loop thread."""

    def observe_load(self, *, seconds: float, succeeded: bool) -> None:
        """Record one attempt to load a version."""
        ...

    def observe_evictions(self, count: int) -> None:
        """Record versions dropped from memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: Exception
    until: float


class Residency:
    """Resolves references, loads versions, and counts their leases."""

    def __init__(
        self,
        *,
        resolve: Callable[[TaskReference], Awaitable[TaskManifest]],
        load: Callable[[TaskManifest], LoadedTask],
        observer: ResidencyObserver,
        num_threads: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
        self._load = load
        self._observer = observer
        self._clock = clock
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-load")
        self._resolved: dict[TaskReference, TaskManifest] = {}
        self._epoch = 0
        self._resident: dict[VersionKey, LoadedTask] = {}
        self._loading: dict[VersionKey, asyncio.Task[LoadedTask]] = {}
        self._failures: dict[VersionKey, _Failure] = {}
        self._leases: Counter[VersionKey] = Counter()

    def find(self, reference: TaskReference) -> LoadedTask | None:
        """Return what a reference means if that is known and resident; never waits."""
        manifest = self._resolved.get(reference)
        return None if manifest is None else self._resident.get(_key(manifest))

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        """Return what a reference means, from memory as long as the registry has not changed.

        Raises:
            RegistryError: no such task, version or alias, or the store cannot be read.
        """
        known = self._resolved.get(reference)
        if known is not None:
            return known
        epoch = self._epoch
        manifest = await self._resolve(reference)
        # An answer from before a change must not outlive it.
        if epoch == self._epoch and len(self._resolved) < MAX_CACHED_REFERENCES:
            self._resolved[reference] = manifest
        return manifest

    async def load(self, reference: TaskReference) -> LoadedTask:
        """Return the version that a reference means, loading it if need be.

        Raises:
            RegistryError: it cannot be resolved or its bytes cannot be trusted.
            ModelError: its parameters do not fit.
            ServerError: it does not fit the backbone or fails its probe.
        """
        manifest = await self.resolve(reference)
        return await self._load_version(manifest, remember_failures=True)

    async def preload(self, manifest: TaskManifest) -> LoadedTask:
        """Load a version, trying again even if it failed a moment ago; raises as `load`."""
        return await self._load_version(manifest, remember_failures=False)

    @contextmanager
    def lease(self, tasks: Sequence[LoadedTask]) -> Generator[None]:
        """Keep versions resident while the block runs."""
        for task in tasks:
            # A version evicted between load and lease comes back: it is in use again.
            self._resident.setdefault(task.key, task)
            self._leases[task.key] += 1
        try:
            yield
        finally:
            for task in tasks:
                self._leases[task.key] -= 1
                if not self._leases[task.key]:
                    del self._leases[task.key]

    def evict(self, task: str, version: int | None = None) -> tuple[int, ...]:
        """Drop one version of a task, or all, from memory; return the versions dropped.

        All or nothing: if one of them is in use, none is dropped.

        Raises:
            TaskInUseError: a version answers requests right now.
        """
        keys = [key for key in self._resident if key[0] == task and version in (None, key[1])]
        for key in keys:
            if self._leases[key]:
                raise TaskInUseError(*key, self._leases[key])
        for key in keys:
            del self._resident[key]
        self._observer.observe_evictions(len(keys))
        return tuple(sorted(key[1] for key in keys))

    def resident(self) -> tuple[LoadedTask, ...]:
        """Return the versions in memory, ordered by task and version."""
        return tuple(self._resident[key] for key in sorted(self._resident))

    def invalidate(self) -> None:
        """Forget what references mean; versions in memory stay, they cannot change."""
        self._epoch += 1
        self._resolved.clear()

    async def aclose(self) -> None:
        """Wait for the loads that run, then end the threads."""
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        self._pool.shutdown()

    async def _load_version(self, manifest: TaskManifest, *, remember_failures: bool) -> LoadedTask:
        key = _key(manifest)
        resident = self._resident.get(key)
        if resident is not None:
            return resident
        failure = self._failures.get(key)
        if remember_failures and failure is not None and self._clock() < failure.until:
            # Each raise adds to the traceback, which would grow with every request.
            raise failure.error.with_traceback(None)
        loading = self._loading.get(key)
        if loading is None:
            loading = asyncio.create_task(self._load_once(manifest))
            loading.add_done_callback(_mark_retrieved)
            self._loading[key] = loading
        # One caller that gives up must not take the load away from the others.
        return await asyncio.shield(loading)

    async def _load_once(self, manifest: TaskManifest) -> LoadedTask:
        key = _key(manifest)
        started = self._clock()
        self._failures.pop(key, None)
        try:
            loop = asyncio.get_running_loop()
            task = await loop.run_in_executor(self._pool, self._load, manifest)
        except Exception as error:
            logger.warning("cannot load %s", manifest.reference, exc_info=error)
            failure = _as_known(error, key)
            self._failures[key] = _Failure(error=failure, until=self._clock() + FAILURE_MEMORY_S)
            self._observer.observe_load(seconds=self._clock() - started, succeeded=False)
            raise failure from error
        else:
            self._resident[key] = task
            self._observer.observe_load(seconds=self._clock() - started, succeeded=True)
            return task
        finally:
            del self._loading[key]


def _key(manifest: TaskManifest) -> VersionKey:
    return manifest.task, manifest.version


def _as_known(error: Exception, key: VersionKey) -> Exception:
    if isinstance(error, (RegistryError, ModelError, ArtifactError, ServerError)):
        return error
    # Such as memory that cannot be had: this version cannot be served, all others can.
    return TaskUnhealthyError(*key, f"cannot be loaded ({type(error).__name__})")


def _mark_retrieved(loading: asyncio.Task[LoadedTask]) -> None:
    # If every waiter has gone, nobody else reads the failure, and asyncio would complain.
    if not loading.cancelled():
        loading.exception()

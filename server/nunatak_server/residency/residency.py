"""`Residency`: the task versions in memory, and their way in and out.

A request leases the immutable versions that its references mean. An alias that moves meanwhile
changes nothing for the request. The versions in memory stay within a budget of bytes, and a server
may have more tasks than fit. A cold version waits for space and for its load, and delays no request
for another version.

`Loads` runs loads on threads, off the event loop. Many requests that wait for one version share one
load. A thread has at most one load. Loads start in the order of their requests, once the resident
set has space. A load without space delays the loads behind it, so that smaller loads do not take
its space again and again. After `patience_s` the others may pass, because the first load may wait
for versions that are always leased. A load that no request waits for any more is dropped, unless it
has started.

Only the event loop thread may use the classes here.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import TaskNotFoundError, Traffic, VersionNotFoundError
from nunatak_server import errors
from nunatak_server.engine.compute import device_failure
from nunatak_server.residency.resident_set import ResidentSet, VersionKey, key_of
from nunatak_server.telemetry.metrics import Metrics
from nunatak_versions import LoadedTask

FAILURE_MEMORY_S = 1.0
"""After a failed load, requests for the version get the same error for this time."""
PATIENCE_S = 2.0
"""Default patience: longer than most leases, and short compared with a deadline."""
LOAD_THREADS: Final = "nunatak-load"
"""Begins the names of the threads that load, which may wait for the store."""
LAST_LOADS_S: Final = 1.0
"""Wait for the running loads at the end, because a store may never answer them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    load: Callable[[TaskManifest], LoadedTask]
    """Loads a version; runs on a load thread."""
    size_of: Callable[[TaskManifest], int]
    """Returns the bytes that a version takes in memory, before it is read."""
    num_threads: int
    on_fatal: Callable[[errors.EngineFailedError], None]
    """Called on the event loop thread by each load that finds the device lost."""
    return_soon: Callable[[], None] = lambda: None
    """Lets freed memory go back to the operating system a while later."""
    patience_s: float = PATIENCE_S
    """Time for which a load without space keeps back the loads behind it."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    manifest: TaskManifest
    num_bytes: int
    done: asyncio.Future[None]
    num_waiting: int = 0
    may_be_passed: bool = False
    """Whether later loads may start while this load has no space."""
    is_held: bool = False
    """Whether the load itself still has a lease, until all waiting requests have leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: Exception
    until: float


class Loads:
    def __init__(
        self,
        loader: Loader,
        *,
        resident_set: ResidentSet,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._loader = loader
        self._resident_set = resident_set
        self._metrics = metrics
        self._clock = clock
        self._pool = ThreadPoolExecutor(loader.num_threads, thread_name_prefix=LOAD_THREADS)
        self._jobs: dict[VersionKey, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._failures: dict[VersionKey, _Failure] = {}
        self.num_waiting = 0
        """Requests that wait for a load. Other threads may read only this attribute."""

    async def lease(self, manifest: TaskManifest, *, remember_failures: bool) -> LoadedTask:
        """Load a version that is not in memory, and return it with a lease."""
        key = key_of(manifest)
        if remember_failures:
            failure = self._failures.get(key)
            if failure is not None and self._clock() < failure.until:
                # Each raise extends the traceback, so it would grow with every request.
                raise failure.error.with_traceback(None)
        job = self._jobs.get(key) or self._enqueue(manifest)
        started = self._clock()
        job.num_waiting += 1
        self.num_waiting += 1
        try:
            # A request that gives up must not cancel the load for the others.
            await asyncio.shield(job.done)
            task = self._resident_set.lease(key)
            if task is None:
                raise AssertionError(
                    f"{manifest.reference} was evicted before its waiting requests had leases"
                )
            return task
        finally:
            self._metrics.observe_load_wait(self._clock() - started)
            self._leave(job)

    def start_waiting(self) -> None:
        refused_bytes = math.inf
        # Older loads become passable first, so a load waits at most for one load's patience.
        for job in list(self._queue):
            if len(self._running) >= self._loader.num_threads:
                return
            if job.num_bytes < refused_bytes and self._take_up(job):
                continue
            refused_bytes = min(refused_bytes, job.num_bytes)
            if not job.may_be_passed:
                return

    async def aclose(self) -> None:
        while self._queue:
            self._conclude(self._queue.popleft(), NunatakError("draining"))
        if self._running:
            await asyncio.wait(self._running, timeout=LAST_LOADS_S)
        self._pool.shutdown(wait=not self._running)

    def _take_up(self, job: _Job) -> bool:
        """Start a load, or fail it if it can never fit; return False if it has no space now."""
        key = key_of(job.manifest)
        try:
            self._resident_set.check_fits(key, job.num_bytes)
        except errors.TaskDoesNotFitError as error:
            # Other versions were pinned while this load waited.
            self._queue.remove(job)
            self._conclude(job, error)
            return True
        if not self._resident_set.claim(key, job.num_bytes):
            return False
        self._queue.remove(job)
        running = asyncio.create_task(self._run(job))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return True

    def _let_pass(self, job: _Job) -> None:
        job.may_be_passed = True
        self.start_waiting()

    def _enqueue(self, manifest: TaskManifest) -> _Job:
        key, num_bytes = key_of(manifest), self._loader.size_of(manifest)
        self._resident_set.check_fits(key, num_bytes)
        loop = asyncio.get_running_loop()
        job = _Job(manifest=manifest, num_bytes=num_bytes, done=loop.create_future())
        self._jobs[key] = job
        self._queue.append(job)
        self.start_waiting()
        if self._queue and self._queue[-1] is job:
            loop.call_later(self._loader.patience_s, self._let_pass, job)
        return job

    def _leave(self, job: _Job) -> None:
        job.num_waiting -= 1
        self.num_waiting -= 1
        if job.num_waiting:
            return
        if job.is_held:
            self._let_go(job)
        elif job in self._queue:
            self._queue.remove(job)
            del self._jobs[key_of(job.manifest)]
        self.start_waiting()

    async def _run(self, job: _Job) -> None:
        key, started = key_of(job.manifest), self._clock()
        self._failures.pop(key, None)
        try:
            task = await self._load(job.manifest)
        except Exception as error:
            failure = _as_known(error, key)
            # A known error needs only its message. An unexpected error needs its traceback.
            unforeseen = error if error is not failure else None
            loss = failure if isinstance(failure, errors.EngineFailedError) else None
            level = logging.CRITICAL if loss else logging.WARNING
            reference = job.manifest.reference
            logger.log(level, "cannot load %s: %s", reference, failure, exc_info=unforeseen)
            self._failures[key] = _Failure(error=failure, until=self._clock() + FAILURE_MEMORY_S)
            self._resident_set.abandon(key)
            seconds = self._clock() - started
            self._metrics.observe_load(job.manifest.task, seconds=seconds, succeeded=False)
            if loss is not None:
                # Called first, so that the process is no longer ready when callers get the error.
                self._loader.on_fatal(loss)
            self._conclude(job, failure)
        else:
            load_s = self._clock() - started
            self._metrics.observe_load(job.manifest.task, seconds=load_s, succeeded=True)
            self._resident_set.add(task, load_s=load_s)
            # The load has freed the stored bytes and the converted tensors.
            self._loader.return_soon()
            job.is_held = True
            self._conclude(job, None)

    async def _load(self, manifest: TaskManifest) -> LoadedTask:
        """Load a version; if there is no memory for it, evict all that may go and try once more.

        The memory of a page of slots returns only with the last version in the page.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, self._loader.load, manifest)
        except Exception as error:
            is_full = isinstance(device_failure(error), errors.OutOfMemoryError)
            evicted = self._resident_set.evict_free() if is_full else 0
            if not evicted:
                raise
        # After the handler, because the error keeps the tensors of the failed load in memory.
        logger.warning(
            "no memory to load %s: %d versions are evicted for it", manifest.reference, evicted
        )
        return await loop.run_in_executor(self._pool, self._loader.load, manifest)

    def _conclude(self, job: _Job, error: Exception | None) -> None:
        del self._jobs[key_of(job.manifest)]
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
            # Marks the error as read: asyncio warns about an error that no request reads.
            job.done.exception()
        if job.is_held and not job.num_waiting:
            self._let_go(job)

    def _let_go(self, job: _Job) -> None:
        job.is_held = False
        self._resident_set.release(key_of(job.manifest))

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self.start_waiting()


def _as_known(error: Exception, key: VersionKey) -> Exception:
    if isinstance(error, NunatakError):
        # The frames of a failed load keep its bytes in memory.
        return error.with_traceback(None)
    reason = f"cannot be loaded ({type(error).__name__})"
    unhealthy = errors.TaskUnhealthyError(key.task, key.version, reason)
    return device_failure(error) or unhealthy


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
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader = loader
        self._metrics = metrics
        self._resident_set = ResidentSet(budget_bytes=budget_bytes, on_evict=self._note_evicted)
        self._loads = Loads(loader, resident_set=self._resident_set, metrics=metrics, clock=clock)
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
        # Counted before a load, so that the load's evictions consider this use.
        self._resident_set.record_use(key_of(manifest))
        return Lease(await self._leased(manifest), end=self._end_lease)

    async def bring(self, manifest: TaskManifest) -> None:
        await self._leased(manifest)
        self._end_lease(manifest)

    def has_free_room(self, manifests: Sequence[TaskManifest]) -> bool:
        stats = self._resident_set.stats()
        needed = sum(map(self._loader.size_of, manifests))
        return stats.bytes + stats.loading_bytes + needed <= stats.budget_bytes

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
        versions = self._resident_set.unpin(task, version)
        self._loads.start_waiting()
        return versions

    def evict(self, task: str, version: int | None = None) -> tuple[int, ...]:
        versions = self._resident_set.evict(task, version)
        self._loads.start_waiting()
        return versions

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
                self._resident_set.discard(key_of(task.manifest))
        self._loads.start_waiting()

    async def _lease_anew(self, manifest: TaskManifest) -> LoadedTask:
        # Count a use: the operator expects requests, so the version must not be evicted first.
        self._resident_set.record_use(key_of(manifest))
        return await self._leased(manifest, remember_failures=False)

    async def _leased(
        self, manifest: TaskManifest, *, remember_failures: bool = True
    ) -> LoadedTask:
        # A second load of a version in memory would lose its leases.
        task = self._resident_set.lease(key_of(manifest))
        return task or await self._loads.lease(manifest, remember_failures=remember_failures)

    def _end_lease(self, manifest: TaskManifest) -> None:
        self._resident_set.release(key_of(manifest))
        self._loads.start_waiting()

    def _note_evicted(self, key: VersionKey) -> None:
        self._metrics.count_task("evictions", key.task)
        self._loader.return_soon()


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

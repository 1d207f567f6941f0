"""Loads of task versions: their queue, and the way of one version from the store to the device.

`Loads` runs loads on threads, off the event loop. Many requests that wait for one version share one
load. A thread has at most one load. Loads start in the order of their requests, once the resident
set has space. A load without space delays the loads behind it, so that smaller loads do not take
its space again and again. After `patience_s` the others may pass, because the first load may wait
for versions that are always leased. A load that no request waits for any more is dropped, unless it
has started. Only the event loop thread may use `Loads`.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_model import SideStream, TrunkCache, compute_without_helpers
from nunatak_registry import Traffic
from nunatak_server import errors
from nunatak_server.engine.backbones import Backbones
from nunatak_server.engine.compute import device_failure
from nunatak_server.residency.resident_set import HostTier, ResidentSet, VersionKey, key_of
from nunatak_versions import LoadedTask, load_task

logger = logging.getLogger(__name__)

PROBE_TRUNK_BYTES = 8 * 1024**2
"""Budget of the cache: the probes of some hundred task versions, with a few short texts each."""
MAX_VALIDATED = 65_536
"""Most remembered validated versions, of about 200 bytes each. A full set is cleared."""
REST = 2.0
"""Seconds of rest for each second of work."""
MAX_REST_S = 0.02
"""Longest rest. Most batches end within this time."""


class LoadThrottle:
    """Makes load threads rest between pieces of work while batches run on the same cores.

    A batch on a CPU waits for its slowest core. A lower thread priority is no alternative: a thread
    that holds the interpreter lock and gets no core would block the server.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        *,
        rest: Callable[[float], object] = time.sleep,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._is_wanted = is_wanted
        self._rest = rest
        self._worked = worked
        self._threads = threading.local()

    def begin(self) -> None:
        self._threads.worked = self._worked()

    def __call__(self) -> None:
        """Rest for `REST` times the last piece of work, `MAX_REST_S` at most, if rest is wanted."""
        begun: float | None = getattr(self._threads, "worked", None)
        if begun is not None and self._is_wanted():
            self._rest(min(MAX_REST_S, REST * (self._worked() - begun)))
        self.begin()


class VersionLoader:
    """Loads versions onto their backbones; several threads may call it at once.

    Where batches run on the CPU, a load thread computes on one core and pauses for batches. Each
    thread caches the trunk states of probes, because versions of one task often share probe texts.
    """

    def __init__(
        self, backbones: Backbones, host_tier: HostTier, *, throttle: LoadThrottle
    ) -> None:
        self._backbones = backbones
        self._host_tier = host_tier
        self._throttle = throttle
        self._threads = threading.local()
        self._validated = set[str]()
        self._side_stream = SideStream(backbones.default.device)

    def __call__(self, manifest: TaskManifest) -> LoadedTask:
        backbone = self._backbones.of(manifest)
        trunk = self._begin()
        data = self._host_tier.read(manifest)
        content = manifest.content_digest()
        load = partial(
            load_task,
            manifest,
            data,
            is_validated=content in self._validated,
            trunk=trunk,
            pause=self._throttle,
        )
        with self._side_stream.work():
            task = self._backbones.in_use(backbone).run(load)
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated.add(content)
        return task

    def _begin(self) -> TrunkCache:
        self._throttle.begin()
        held: TrunkCache | None = getattr(self._threads, "trunk", None)
        if held is None:
            if self._backbones.default.device.type == "cpu":
                compute_without_helpers()
            held = self._threads.trunk = TrunkCache(max_bytes=PROBE_TRUNK_BYTES)
        return held


async def pin_at_start(
    references: Sequence[TaskReference],
    *,
    look_up: Callable[[TaskReference], Awaitable[Traffic]],
    pin: Callable[[TaskManifest], Awaitable[object]],
) -> None:
    """Pin the versions that references mean now. A bad version is logged, and stops no other."""
    for reference in references:
        try:
            await pin((await look_up(reference)).manifest)
        except NunatakError as error:
            logger.error("%s is not pinned: %s", reference, error)  # noqa: TRY400 - no bug of ours


FAILURE_MEMORY_S = 1.0
"""After a failed load, requests for the version get the same error for this time."""
INTERVAL_S, CHECKS = 1.0, 10
"""Time from work to a check of the memory, and the checks up to a return whatever has grown."""
MOST_GROWTH_BYTES = 2**26
"""Growth since the last return that a check lets be. Its return takes about 10 ms of a core."""
PATIENCE_S = 2.0
"""Default patience: longer than most leases, and short compared with a deadline."""


class MemoryReturn:
    """Returns freed memory a while after loads and batches, and earlier if the process grows.

    Small objects that live on lie between the freed tensors of a batch. So the C library reuses
    only a part of that memory, and a busy process would grow to several times what it needs.
    """

    def __init__(self, give_back: Callable[[], None], measure: Callable[[], int]) -> None:
        self._give_back = give_back
        self._measure = measure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._kept_bytes = 0

    async def start(self) -> None:
        """Return what the start has freed; batches count from now on."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._return)

    def after_batch(self, _report: object) -> None:
        """Any thread may call this."""
        if self._loop is not None and self._timer is None:
            self._loop.call_soon_threadsafe(self.soon)

    def soon(self) -> None:
        if self._timer is None:
            self._wait(CHECKS)

    def _wait(self, checks: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._check, checks - 1)

    def _check(self, left: int) -> None:
        self._timer = None
        if left:
            self._wait(left)
        if not left or self._measure() > self._kept_bytes + MOST_GROWTH_BYTES:
            asyncio.get_running_loop().run_in_executor(None, self._return)

    def _return(self) -> None:
        self._give_back()
        self._kept_bytes = self._measure()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ResidencyObserver(Protocol):
    def observe_load(self, task: str, *, seconds: float, succeeded: bool) -> None: ...

    def observe_load_wait(self, seconds: float) -> None: ...

    def observe_evictions(self, tasks: Sequence[str]) -> None: ...


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
        observer: ResidencyObserver,
        clock: Callable[[], float],
    ) -> None:
        self._loader = loader
        self._resident_set = resident_set
        self._observer = observer
        self._clock = clock
        self._pool = ThreadPoolExecutor(loader.num_threads, thread_name_prefix="nunatak-load")
        self._jobs: dict[VersionKey, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._failures: dict[VersionKey, _Failure] = {}
        self.num_waiting = 0
        """Requests that wait for a load. Other threads may read only this attribute."""

    def count_evicted(self, keys: Sequence[VersionKey]) -> None:
        if keys:
            self._observer.observe_evictions([key.task for key in keys])
            self._loader.return_soon()

    def use_room_of(self, keys: Sequence[VersionKey]) -> None:
        self.count_evicted(keys)
        self.start_waiting()

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
            self._observer.observe_load_wait(self._clock() - started)
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
        await asyncio.gather(*self._running, return_exceptions=True)
        self._pool.shutdown()

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
            self._observer.observe_load(job.manifest.task, seconds=seconds, succeeded=False)
            if loss is not None:
                # Called first, so that the process is no longer ready when callers get the error.
                self._loader.on_fatal(loss)
            self._conclude(job, failure)
        else:
            load_s = self._clock() - started
            self._observer.observe_load(job.manifest.task, seconds=load_s, succeeded=True)
            self.count_evicted(self._resident_set.add(task, load_s=load_s))
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
            evicted = self._resident_set.evict_free() if is_full else ()
            if not evicted:
                raise
        # After the handler, because the error keeps the tensors of the failed load in memory.
        logger.warning(
            "no memory to load %s: %d versions are evicted for it", manifest.reference, len(evicted)
        )
        self.count_evicted(evicted)
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
        self.count_evicted(self._resident_set.release(key_of(job.manifest)))

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

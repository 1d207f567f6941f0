"""Giving way: what loads do where they share cores with batches.

Loads: versions on their way into memory, off the event loop.

One load per version however many wait for it, at most one per thread at a time, in the order of
asking; each starts when the shelf has room for it. One that finds none keeps back those behind it,
or smaller ones would take its room for ever, but only for a while: it may be waiting for versions
that are always in use. A load that nobody waits for any more before it starts is dropped. All
methods belong to the event loop thread.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from nunatak_artifact import LoadedTask
from nunatak_registry import TaskManifest
from nunatak_server.errors import (
    DrainingError,
    EngineFailedError,
    TaskDoesNotFitError,
    TaskUnhealthyError,
)
from nunatak_server.failures import KnownError, device_failure
from nunatak_server.residency.memory import INTERVAL_S
from nunatak_server.residency.resident_set import ResidentSet, VersionKey, key_of

REST = 2.0
"""Seconds of rest for each of work; without rest stays what ends between two batches."""
MAX_REST_S = 0.02
"""Of a long piece: the batch that it met has ended by then, as a rule."""


class LoadThrottle:
    """Keeps the calling thread to a part of a core beside batches; for threads of the loads.

    A batch on a processor takes all cores, so it waits where a load has one of them, and with it
    all texts of the batch. A load is done in pieces, after each of which it calls this.

    Not by a lower priority of its thread: one that holds the interpreter's lock and gets no core
    keeps the server waiting for as long as others use the machine.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        *,
        rest: Callable[[float], object] = time.sleep,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """`worked` tells the processor time of the calling thread, in seconds.

        Both functions are called on the threads of the loads.
        """
        self._is_wanted = is_wanted
        self._rest = rest
        self._worked = worked
        self._threads = threading.local()

    def begin(self) -> None:
        """Begin a load: what the thread did before needs no rest."""
        self._threads.worked = self._worked()

    def __call__(self) -> None:
        """Rest for twice as long as the last piece took, if that is wanted, but not for long."""
        begun: float | None = getattr(self._threads, "worked", None)
        if begun is not None and self._is_wanted():
            self._rest(min(MAX_REST_S, REST * (self._worked() - begun)))
        self.begin()


# Keeps a version that cannot be loaded from being read from the store by each request for it.
FAILURE_MEMORY_S = 1.0
PATIENCE_S = 2.0
"""Longer than most leases, but for versions that are always asked; and little of a deadline."""

logger = logging.getLogger(__name__)


class ResidencyObserver(Protocol):
    """Is told about loads, waits, evictions and alias moves, on the event loop thread."""

    def observe_load(self, task: str, *, seconds: float, succeeded: bool) -> None:
        """Record one attempt to load a version of a task."""
        ...

    def observe_load_wait(self, seconds: float) -> None:
        """Record how long one request waited for a version to come into memory."""
        ...

    def observe_evictions(self, tasks: Sequence[str]) -> None:
        """Record versions dropped from memory, each by its task."""
        ...

    def observe_alias_move(self, task: str) -> None:
        """Record that a reference was found to mean another version than before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """How versions are brought into memory."""

    load: Callable[[TaskManifest], LoadedTask]
    """Runs on a thread of the loads."""
    size_of: Callable[[TaskManifest], int]
    """Bytes that a version will take, known before it is read."""
    num_threads: int
    on_fatal: Callable[[EngineFailedError], None]
    """Is told on the event loop thread, by each load that finds the device lost."""
    give_back: Callable[[], None] | None = None
    """Returns freed memory to the operating system, on a thread of the loads too."""
    patience_s: float = PATIENCE_S
    """How long a load that finds no room keeps back those behind it, for which there is some."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    manifest: TaskManifest
    num_bytes: int
    done: asyncio.Future[None]
    num_waiting: int = 0
    may_be_passed: bool = False
    """Whether loads behind it may start while it has no room."""
    is_held: bool = False
    """Whether the version is leased for those who wait, until the last of them has a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: Exception
    until: float


class Loads:
    """Brings versions onto a shelf."""

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
        self._return: asyncio.TimerHandle | None = None
        self.num_waiting = 0
        """Leases that wait for a version; this alone may be read from any thread."""

    def count_evicted(self, keys: Sequence[VersionKey]) -> None:
        """Take note of versions that were dropped, whose memory is to be returned before long."""
        if keys:
            self._observer.observe_evictions([key.task for key in keys])
            self._return_soon()

    async def lease(self, manifest: TaskManifest, *, remember_failures: bool) -> LoadedTask:
        """Load a version that is not on the shelf, and return it leased.

        Raises:
            RegistryError: its bytes cannot be trusted.
            ModelError: its parameters do not fit.
            ArtifactError: it does not fit the backbone or fails its probe.
            TaskDoesNotFitError: it needs more memory than there is.
            TaskUnhealthyError: it fails to load for a reason that is nobody's.
            EngineFailedError: the device is lost.
            OutOfMemoryError: its memory is given to others, against what was reckoned.
        """
        key = key_of(manifest)
        if remember_failures:
            self._check_failure(key)
        job = self._jobs.get(key) or self._enqueue(manifest)
        started = self._clock()
        job.num_waiting += 1
        self.num_waiting += 1
        try:
            # One caller that gives up must not take the load away from the others.
            await asyncio.shield(job.done)
            task = self._resident_set.lease(key)
            if task is None:
                raise AssertionError(f"{manifest.reference} is held for those who wait for it")
            return task
        finally:
            self._observer.observe_load_wait(self._clock() - started)
            self._leave(job)

    def start_waiting(self) -> None:
        """Start the loads that have become possible; to be called when room has."""
        refused_bytes = math.inf
        # The longer one has waited, the sooner it may be passed: nobody waits for two in a row.
        for job in list(self._queue):
            if len(self._running) >= self._loader.num_threads:
                return
            if job.num_bytes < refused_bytes and self._take_up(job):
                continue
            refused_bytes = min(refused_bytes, job.num_bytes)
            if not job.may_be_passed:
                return

    async def aclose(self) -> None:
        """Drop the loads that wait, wait for those that run, then end the threads."""
        while self._queue:
            self._conclude(self._queue.popleft(), DrainingError())
        if self._return is not None:
            self._return.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._pool.shutdown()

    def _take_up(self, job: _Job) -> bool:
        """Start a load that waits, or refuse it for good; return False if it has no room now."""
        key = key_of(job.manifest)
        try:
            self._resident_set.check_fits(key, job.num_bytes)
        except TaskDoesNotFitError as error:
            # Others were pinned while it waited.
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

    def _check_failure(self, key: VersionKey) -> None:
        failure = self._failures.get(key)
        if failure is not None and self._clock() < failure.until:
            # Each raise adds to the traceback, which would grow with every request.
            raise failure.error.with_traceback(None)

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
        loop = asyncio.get_running_loop()
        try:
            task = await loop.run_in_executor(self._pool, self._loader.load, job.manifest)
        except Exception as error:
            failure = _as_known(error, key)
            # A failure of ours says all there is; one that nobody foresaw, only where it happened.
            unforeseen = error if error is not failure else None
            loss = failure if isinstance(failure, EngineFailedError) else None
            level = logging.CRITICAL if loss else logging.WARNING
            reference = job.manifest.reference
            logger.log(level, "cannot load %s: %s", reference, failure, exc_info=unforeseen)
            self._failures[key] = _Failure(error=failure, until=self._clock() + FAILURE_MEMORY_S)
            self._resident_set.abandon(key)
            seconds = self._clock() - started
            self._observer.observe_load(job.manifest.task, seconds=seconds, succeeded=False)
            if loss is not None:
                # Told first: whoever is answered must find the process no longer ready.
                self._loader.on_fatal(loss)
            self._conclude(job, failure)
        else:
            load_s = self._clock() - started
            self._observer.observe_load(job.manifest.task, seconds=load_s, succeeded=True)
            self.count_evicted(self._resident_set.add(task, load_s=load_s))
            # Stored bytes and converted tensors were held beside the version.
            self._return_soon()
            job.is_held = True
            self._conclude(job, None)

    def _conclude(self, job: _Job, error: Exception | None) -> None:
        del self._jobs[key_of(job.manifest)]
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
            # If every waiter has gone, nobody else reads it, and asyncio would complain.
            job.done.exception()
        if job.is_held and not job.num_waiting:
            self._let_go(job)

    def _let_go(self, job: _Job) -> None:
        job.is_held = False
        self.count_evicted(self._resident_set.release(key_of(job.manifest)))

    def _return_soon(self) -> None:
        if self._loader.give_back is not None and self._return is None:
            loop = asyncio.get_running_loop()
            self._return = loop.call_later(INTERVAL_S, self._give_back, self._loader.give_back)

    def _give_back(self, give_back: Callable[[], None]) -> None:
        self._return = None
        self._pool.submit(give_back)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self.start_waiting()


def _as_known(error: Exception, key: VersionKey) -> Exception:
    if isinstance(error, KnownError):
        # The frames of a load that failed hold the bytes that it has read.
        return error.with_traceback(None)
    reason = f"cannot be loaded ({type(error).__name__})"
    unhealthy = TaskUnhealthyError(key.task, key.version, reason)
    return device_failure(error) or unhealthy

"""CandidateValidation: a candidate is loaded and probed on this server before any request goes to it.

Whoever set it, on whatever server: here it is loaded when the first request asks for its alias,
in the background, while the alias's own version answers. Once it has been in memory it is as good
as any version: it may be evicted and come back like the others.

Shadows: runs a candidate on the texts of the version that answers, and compares the two.

The rows of both are handed to the engine together, so that they share trunk rows in one batch.
Nobody waits for a shadow: what becomes of it is awaited by a task of its own, beside the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from nunatak_registry import TaskManifest
from nunatak_server.errors import OutOfMemoryError, TaskError
from nunatak_server.failures import KNOWN_ERRORS
from nunatak_server.inputs import TaskInput
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import (
    MAX_LOGITS_ON_LOOP,
    Output,
    ReadRow,
    output_of,
    work_of,
)
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.rollouts.comparison import (
    FULL_OPTIONS,
    Comparison,
    Reports,
    compare_outputs,
    pair_of,
)
from nunatak_server.rollouts.metrics import TrafficMetrics
from nunatak_server.scheduler.rows import PendingRow, PlannedRow, RowAnswer, RowOutcome, pending_row
from nunatak_server.tokenization import Encodings

RETRY_S = 5.0
"""How long a candidate that could not be loaded, or that went again, is left alone."""
MAX_VALIDATED = 10_000
"""Far above the candidates of a real registry; versions beyond it are proven again."""


class CandidateValidation:
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
        self._validated: set[VersionKey] = set()
        self._retry_at: dict[VersionKey, float] = {}
        self._loading: dict[VersionKey, asyncio.Task[None]] = {}

    def is_validated(self, manifest: TaskManifest) -> bool:
        """Tell whether a candidate may answer; if not, it is on its way."""
        key = key_of(manifest)
        if key in self._validated:
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
        if len(self._retry_at) >= MAX_VALIDATED:
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
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated.add(key)


PAUSE_S = 60.0
"""How long a shadow that failed is not run: a batch that it breaks is computed twice."""
MAX_RUNNING = 64
"""Runs whose outcome is open; beyond it shadows are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """What the shadow of one task of a request is to do: a row for each of its encodings."""

    answered: TaskManifest
    shadow: TaskManifest
    inputs: Sequence[TaskInput]
    encodings: Sequence[Encodings]
    """What the version that answers reads, by input."""
    shadow_encodings: Sequence[Encodings]
    rows: tuple[PlannedRow, ...]
    deadline: float


class Shadows:
    """Runs shadows; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        residency: Residency,
        validation: CandidateValidation,
        metrics: TrafficMetrics,
        join: Join,
        tolerance: float,
        clock: Callable[[], float],
    ) -> None:
        self.reports = Reports()
        self._residency = residency
        self._validation = validation
        self._metrics = metrics
        self._join = join
        self._tolerance = tolerance
        self._clock = clock
        self._paused_until: dict[VersionKey, float] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start(self, run: ShadowRun, answered: Sequence[PendingRow]) -> Sequence[PendingRow]:
        """Return the shadow's rows, to be submitted with those of the version that answers.

        None, and the run counts as dropped, while the shadow is not in memory or has just failed.
        """
        key = key_of(run.shadow)
        is_paused = self._clock() < self._paused_until.get(key, 0.0)
        if is_paused or len(self._running) >= MAX_RUNNING:
            self._drop(run)
            return ()
        lease = self._residency.lease_resident(run.shadow)
        if lease is None:
            self._validation.warm(run.shadow)
            self._drop(run)
            return ()
        rows = [
            pending_row(row, lease.task, deadline=run.deadline, now=self._clock(), is_shadow=True)
            for row in run.rows
        ]
        running = asyncio.create_task(self._follow(run, answered, rows))
        self._running.add(running)
        # Not in the task itself: one that is cancelled before it begins never runs.
        running.add_done_callback(partial(self._end, rows, lease))
        return rows

    def drop(self, answered: TaskManifest, shadow: TaskManifest, *, num_inputs: int) -> None:
        """Count inputs that the shadow is not run on."""
        self.reports.add_dropped(pair_of(answered, shadow), num_inputs)
        self._metrics.observe_dropped(answered.task, num_inputs)

    async def aclose(self) -> None:
        """Let go of what is open."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _end(self, rows: Sequence[PendingRow], lease: Lease, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        for row in rows:
            row.future.cancel()
        lease.release()

    async def _follow(
        self, run: ShadowRun, answered: Sequence[PendingRow], rows: Sequence[PendingRow]
    ) -> None:
        await asyncio.wait([row.future for row in answered])
        if any(row.is_cancelled for row in answered):
            # Its caller has gone or was too late: there is nothing to compare with.
            return
        await asyncio.wait([row.future for row in rows])
        await self._conclude(
            run,
            [row.future.result() for row in answered],
            [row.future.result() for row in rows],
        )

    async def _conclude(
        self, run: ShadowRun, answered: Sequence[RowOutcome], shadow: Sequence[RowOutcome]
    ) -> None:
        own = [it for it in answered if isinstance(it, RowAnswer)]
        other = [it for it in shadow if isinstance(it, RowAnswer)]
        if any(isinstance(outcome, TaskError) for outcome in shadow):
            self._pause(run)
            self._fail(run)
        elif any(isinstance(outcome, OutOfMemoryError) for outcome in shadow):
            # Which is no fault of the version.
            self._pause(run)
            self._drop(run)
        elif len(other) < len(shadow):
            self._drop(run)
        elif len(own) == len(answered):
            await self._compare(run, own, other)

    async def _compare(
        self, run: ShadowRun, own: Sequence[RowAnswer], other: Sequence[RowAnswer]
    ) -> None:
        work = work_of(run.answered.head, run.encodings, options=FULL_OPTIONS)
        work += work_of(run.shadow.head, run.shadow_encodings, options=FULL_OPTIONS)
        if work <= MAX_LOGITS_ON_LOOP:
            comparisons = self._comparisons(run, own, other)
        else:
            comparisons = await asyncio.to_thread(self._comparisons, run, own, other)
        self.reports.add_comparisons(pair_of(run.answered, run.shadow), comparisons)
        for comparison in comparisons:
            self._metrics.observe_comparison(run.answered.task, comparison)

    def _comparisons(
        self, run: ShadowRun, own: Sequence[RowAnswer], other: Sequence[RowAnswer]
    ) -> list[Comparison]:
        outputs = self._outputs(run.answered, run.inputs, run.encodings, own)
        shadows = self._outputs(run.shadow, run.inputs, run.shadow_encodings, other)
        return [
            compare_outputs(run.answered.head, output, shadow, tolerance=self._tolerance)
            for output, shadow in zip(outputs, shadows, strict=True)
        ]

    def _outputs(
        self,
        manifest: TaskManifest,
        inputs: Sequence[TaskInput],
        encodings: Sequence[Encodings],
        answers: Sequence[RowAnswer],
    ) -> Iterator[Output]:
        rows = (
            ReadRow(encoding=encoding, logits=answer.logits)
            for encoding, answer in zip(chain.from_iterable(encodings), answers, strict=True)
        )
        for item, read in zip(inputs, encodings, strict=True):
            own = list(islice(rows, len(read)))
            yield output_of(manifest.head, item, own, options=FULL_OPTIONS, join=self._join)

    def _drop(self, run: ShadowRun) -> None:
        self.drop(run.answered, run.shadow, num_inputs=len(run.inputs))

    def _pause(self, run: ShadowRun) -> None:
        self._paused_until[key_of(run.shadow)] = self._clock() + PAUSE_S

    def _fail(self, run: ShadowRun) -> None:
        self.reports.add_errors(pair_of(run.answered, run.shadow), len(run.inputs))
        self._metrics.observe_errors(run.answered.task, len(run.inputs))

"""`Rollouts`: the canaries and shadows of one server.

A shadow is a candidate that runs on the texts of the answering version. The engine gets the rows of
both versions together, so they share trunk rows in one batch. No request waits for a shadow: one
background task for each run awaits both versions and compares their outputs.

`choose` picks the version, and decides whether the shadow runs. A routing key makes the choice
sticky. For each canary version, a key has one fixed point in [0, 1). The canary answers while this
point is below the canary's share. Therefore:

- equal keys get one version while the canary runs, on every server and after every restart;
- a larger share moves keys to the canary, and moves no key back;
- the points of different canaries are independent, so different callers try different canaries.
"""

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Final
from uuid import uuid4

from cachetools import LRUCache

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input
from nunatak_registry import Traffic
from nunatak_server.errors import OutOfMemoryError, TaskDoesNotFitError, TaskError
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP, Output, outputs_of, work_of
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.rollouts.comparison import (
    FULL_OPTIONS,
    Comparison,
    ShadowComparison,
    compare_outputs,
)
from nunatak_server.scheduler.rows import ANONYMOUS, PendingRow, RowAnswer, RowOutcome, RowSpec
from nunatak_server.scheduler.turns import Turns
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Encodings

logger = logging.getLogger(__name__)

POINT_BYTES: Final = 6
"""A float holds 48 bits exactly, so no point rounds up to 1."""
OWN_KEYS: Final = map(f"{uuid4().hex}-{{}}".format, count())
"""Routing keys of requests without one; a random key would be a system call for each request."""
RETRY_S: Final = 5.0
"""Time between two attempts to load a candidate."""
MAX_CANDIDATES: Final = 10_000
"""Most remembered candidates, far above real use."""


class Arm(StrEnum):
    """The answering version of an alias with a canary."""

    ALIAS = "alias"
    CANARY = "canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    manifest: TaskManifest
    arm: Arm | None = None
    """The answering version; None if the alias has no canary."""
    shadow: TaskManifest | None = None


def choose(
    traffic: Traffic,
    *,
    routing_key: str,
    draw: Callable[[], float],
    may_answer: Callable[[TaskManifest], bool],
) -> Chosen:
    """Choose the versions for one request.

    While the canary may not answer, the alias's own version gets the canary's share. The shadow
    runs only where the alias's own version answers, because a report compares these two versions.
    """
    canary, shadow = traffic.canary, traffic.shadow
    arm = None if canary is None else Arm.ALIAS
    if canary is not None:
        point = point_of(routing_key, canary.manifest)
        if point < canary.share and may_answer(canary.manifest):
            return Chosen(manifest=canary.manifest, arm=Arm.CANARY)
    runs_shadow = shadow is not None and draw() < shadow.share
    return Chosen(
        manifest=traffic.manifest,
        arm=arm,
        shadow=shadow.manifest if shadow is not None and runs_shadow else None,
    )


def point_of(routing_key: str, canary: TaskManifest) -> float:
    """Return the point of a key in [0, 1): uniform over keys, fixed for each canary version."""
    digest = hashlib.sha256(f"{canary.reference}\0{routing_key}".encode()).digest()
    return int.from_bytes(digest[:POINT_BYTES], "big") / 256**POINT_BYTES


class CandidateValidation:
    """Knows the candidates that this server has validated; only the event loop thread may use it.

    The first request for an alias loads its candidate in the background, while the alias's own
    version answers. A load includes the parity probe. A validated candidate may be evicted and
    loaded again like any other version.
    """

    def __init__(self, residency: Residency, *, clock: Callable[[], float]) -> None:
        self._residency = residency
        self._clock = clock
        self._validated = LRUCache[VersionKey, None](MAX_CANDIDATES)
        self._retry_at = LRUCache[VersionKey, float](MAX_CANDIDATES)
        self._loading: dict[VersionKey, asyncio.Task[None]] = {}

    def is_validated(self, manifest: TaskManifest) -> bool:
        key = key_of(manifest)
        if key in self._validated:
            return True
        if not self._residency.is_resident(manifest):
            self.warm(manifest)
            return False
        self._validated[key] = None
        return True

    def warm(self, manifest: TaskManifest) -> None:
        """Load a candidate in the background, at most once in `RETRY_S` seconds."""
        key, now = key_of(manifest), self._clock()
        if key in self._loading or now < self._retry_at.get(key, now):
            return
        self._retry_at[key] = now + RETRY_S
        loading = asyncio.create_task(self._load(manifest))
        self._loading[key] = loading
        loading.add_done_callback(lambda _: self._loading.pop(key))

    async def aclose(self) -> None:
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    async def _load(self, manifest: TaskManifest) -> None:
        try:
            await self._residency.preload(manifest)
        except TaskDoesNotFitError as error:
            # `Loads` logs no version that it does not begin to load, and no caller gets this error.
            logger.warning("cannot load %s next to its alias: %s", manifest.reference, error)
            return
        except NunatakError:
            # `Loads` has logged the error. A later attempt may succeed: blobs can be repaired.
            return
        self._validated[key_of(manifest)] = None


PAUSE_S: Final = 60.0
"""Pause of a failed shadow, because each batch that fails is computed twice."""
MAX_RUNNING: Final = 64
"""Most runs in progress. Further runs are dropped."""
MAX_PAIRS: Final = 1000
"""Reports in memory. The pair with the oldest entry is dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """The work of one shadow for one task of a request: a row for each of its encodings."""

    answered: TaskManifest
    shadow: TaskManifest
    inputs: Sequence[Input]
    encodings: Sequence[Encodings]
    """The encodings of the version that answers, by input."""
    shadow_encodings: Sequence[Encodings]
    join: Join
    """Joins tokens of the backbone of both versions to running text."""
    rows: tuple[RowSpec, ...]
    deadline: float


class Rollouts:
    """Chooses the answering version, runs shadows, and adds up the reports of shadows.

    Only the event loop thread may use it.
    """

    def __init__(
        self,
        *,
        residency: Residency,
        tolerance: float,
        turns: Turns,
        metrics: Metrics,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tolerance` is the largest difference of regression values that counts as agreement."""
        self._validation = CandidateValidation(residency, clock=clock)
        self.choose = partial(choose, draw=draw, may_answer=self._validation.is_validated)
        self._reports = LRUCache[tuple[VersionKey, VersionKey], ShadowComparison](MAX_PAIRS)
        """By the version that answered, and the shadow."""
        self._turns = turns
        self._residency = residency
        self._metrics = metrics
        self._tolerance = tolerance
        self._clock = clock
        self._paused_until: dict[VersionKey, float] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start_shadow(self, run: ShadowRun, answered: Sequence[PendingRow]) -> Sequence[PendingRow]:
        """Return the rows of the shadow; the caller submits them with the rows in `answered`.

        None, and the run counts as dropped, if it cannot run now or failed `PAUSE_S` ago.
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
        row_of = partial(
            PendingRow,
            task=run.shadow.task,
            version=run.shadow.version,
            branch=lease.task.branch,
            deadline=run.deadline,
            submitted_at=self._clock(),
            is_shadow=True,
        )
        rows = list(map(row_of, run.rows))
        running = asyncio.create_task(self._follow(run, answered, rows))
        self._running.add(running)
        # A callback, because a task that is cancelled before it begins never runs its own clean-up.
        running.add_done_callback(partial(self._end, rows, lease))
        return rows

    def drop_shadow(self, answered: TaskManifest, shadow: TaskManifest, *, num_inputs: int) -> None:
        self._report(answered, shadow).dropped += num_inputs
        self._metrics.count_task("shadow_inputs", answered.task, "dropped", by=num_inputs)

    def report(self, answered: TaskManifest, shadow: TaskManifest) -> ShadowComparison:
        return self._reports.get((key_of(answered), key_of(shadow))) or ShadowComparison()

    async def aclose(self) -> None:
        await self._validation.aclose()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _report(self, answered: TaskManifest, shadow: TaskManifest) -> ShadowComparison:
        return self._reports.setdefault((key_of(answered), key_of(shadow)), ShadowComparison())

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
            # The caller has gone or the deadline has passed: there is no answer to compare with.
            return
        await asyncio.wait([row.future for row in rows])
        await self._conclude(
            run, [row.future.result() for row in answered], [row.future.result() for row in rows]
        )

    async def _conclude(
        self, run: ShadowRun, answered: Sequence[RowOutcome], shadow: Sequence[RowOutcome]
    ) -> None:
        own = [it for it in answered if isinstance(it, RowAnswer)]
        other = [it for it in shadow if isinstance(it, RowAnswer)]
        if any(isinstance(outcome, TaskError | OutOfMemoryError) for outcome in shadow):
            self._paused_until[key_of(run.shadow)] = self._clock() + PAUSE_S
        if any(isinstance(outcome, TaskError) for outcome in shadow):
            num_inputs = len(run.inputs)
            self._report(run.answered, run.shadow).errors += num_inputs
            self._metrics.count_task("shadow_inputs", run.answered.task, "error", by=num_inputs)
        elif len(other) < len(shadow):
            # If there was no memory, the version did not cause the failure.
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
            comparisons = await self._turns.on_thread(
                lambda _: self._comparisons(run, own, other), caller=ANONYMOUS
            )
        report = self._report(run.answered, run.shadow)
        for comparison in comparisons:
            report.add(comparison)
            outcome = "agreed" if comparison.agreement == 1.0 else "differed"
            self._metrics.count_task("shadow_inputs", run.answered.task, outcome)
            self._metrics.observe_drift(run.answered.task, comparison.max_drift)

    def _comparisons(
        self, run: ShadowRun, own: Sequence[RowAnswer], other: Sequence[RowAnswer]
    ) -> list[Comparison]:
        def outputs_from(
            manifest: TaskManifest, encodings: Sequence[Encodings], answers: Sequence[RowAnswer]
        ) -> tuple[Output, ...]:
            logits = [answer.logits for answer in answers]
            outputs, _ = outputs_of(
                manifest.head, run.inputs, encodings, logits, options=FULL_OPTIONS, join=run.join
            )
            return outputs

        outputs = outputs_from(run.answered, run.encodings, own)
        shadows = outputs_from(run.shadow, run.shadow_encodings, other)
        return [
            compare_outputs(
                run.answered.head, output, run.shadow.head, shadow, tolerance=self._tolerance
            )
            for output, shadow in zip(outputs, shadows, strict=True)
        ]

    def _drop(self, run: ShadowRun) -> None:
        self.drop_shadow(run.answered, run.shadow, num_inputs=len(run.inputs))

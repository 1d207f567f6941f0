"""`Rollouts`: the canaries and shadows of one server.

A shadow is a candidate that runs on the texts of the answering version. The engine gets the rows of
both versions together, so they share trunk rows in one batch. No request waits for a shadow: one
background task for each run awaits both versions and compares their outputs.

A canary answers once it has passed its parity probe here. `ShadowComparison` is the report of one
shadow so far.
"""

import asyncio
import logging
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final, TypeVar
from uuid import uuid4

from cachetools import LRUCache

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters
from nunatak_server.errors import OutOfMemoryError, TaskDoesNotFitError, TaskError
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP, Output, outputs_of, work_of
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.scheduler.rows import ANONYMOUS, PendingRow, RowAnswer, RowOutcome, RowSpec
from nunatak_server.scheduler.turns import Turns
from nunatak_server.telemetry.metrics import DRIFT_BOUNDS, Metrics
from nunatak_server.tokenization import Encodings

logger = logging.getLogger(__name__)

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


FULL_OPTIONS: Final = Parameters(ignore_labels=[])
"""All that a head can output: a score for each label, a label for each token."""

Items = Sequence[Mapping[str, Any]]
Name = TypeVar("Name")
PLACE: Final = itemgetter("start", "end")
NAMES: Final = {
    HeadKind.SEQUENCE_CLASSIFICATION: itemgetter("label"),
    HeadKind.QUESTION_ANSWERING: PLACE,
    HeadKind.RANKING: itemgetter("index"),
}
"""What tells the items of an output apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    agreement: float
    """1 for equal answers, else 0; for token labels the share of tokens with equal labels."""
    drifts: tuple[float, ...]
    """Absolute differences of the scores."""

    @property
    def max_drift(self) -> float:
        return max(self.drifts, default=0.0)


def compare_outputs(
    head: HeadRecord, output: Output, shadow_head: HeadRecord, shadow: Output, *, tolerance: float
) -> Comparison:
    """Compare two outputs made with `FULL_OPTIONS` by heads of one kind and problem.

    Equal are the same label, labels, best span or first document, and values within `tolerance`. A
    label that one version lacks has the score 0 there.
    """
    if head.kind is HeadKind.TOKEN_CLASSIFICATION:
        return _compare_tokens(output, shadow)
    name = NAMES[head.kind]
    scores, others = ({name(it): it["score"] for it in items} for items in (output, shadow))
    match head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return _compare_labels((head, scores), (shadow_head, others), tolerance)
        case HeadKind.QUESTION_ANSWERING:
            best, other = _first(scores), _first(others)
            drifts = () if best is None or other is None else (abs(scores[best] - others[other]),)
            return Comparison(agreement=float(best == other), drifts=drifts)
        case _:
            is_equal = _first(scores) == _first(others)
            return Comparison(agreement=float(is_equal), drifts=_drifts(scores, others))


def _compare_labels(
    own: tuple[HeadRecord, Mapping[str, float]],
    other: tuple[HeadRecord, Mapping[str, float]],
    tolerance: float,
) -> Comparison:
    (head, scores), (_, shadow) = own, other
    match head.problem_type:
        case ProblemType.REGRESSION:
            # Each output has one value, and the names of the two values may differ.
            (value,), (shadow_value,) = scores.values(), shadow.values()
            drift = abs(value - shadow_value)
            return Comparison(agreement=float(drift <= tolerance), drifts=(drift,))
        case ProblemType.MULTI_LABEL:
            is_equal = _applying(*own) == _applying(*other)
        case ProblemType.SINGLE_LABEL | None:
            is_equal = _first(scores) == _first(shadow)
    return Comparison(agreement=float(is_equal), drifts=_drifts(scores, shadow))


def _compare_tokens(output: Items, shadow: Items) -> Comparison:
    own, other = ({PLACE(it): it for it in items} for items in (output, shadow))
    pairs = [(own[place], other[place]) for place in own.keys() & other.keys()]
    num_equal = sum(one["entity"] == two["entity"] for one, two in pairs)
    num_tokens = len(own.keys() | other.keys())
    return Comparison(
        agreement=num_equal / num_tokens if num_tokens else 1.0,
        drifts=tuple(abs(one["score"] - two["score"]) for one, two in pairs),
    )


def _first(scores: Mapping[Name, float]) -> Name | None:
    return next(iter(scores), None)


def _drifts(scores: Mapping[Name, float], shadow: Mapping[Name, float]) -> tuple[float, ...]:
    names = {**scores, **shadow}
    return tuple(abs(scores.get(name, 0.0) - shadow.get(name, 0.0)) for name in names)


def _applying(head: HeadRecord, scores: Mapping[str, float]) -> set[str]:
    return {label for label, score in scores.items() if score >= head.threshold(label)}


@dataclass(slots=True, kw_only=True)
class ShadowComparison:
    """The comparison of one shadow with one version so far. Counts are inputs."""

    compared: int = 0
    agreed: float = 0.0
    errors: int = 0
    dropped: int = 0
    num_scores: int = 0
    drift_sum: float = 0.0
    max_drift: float | None = None
    drift_counts: list[int] = field(default_factory=lambda: [0] * (len(DRIFT_BOUNDS) + 1))
    """Inputs by the largest drift of their scores: a count for each bound, and one above."""

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def mean_drift(self) -> float | None:
        return self.drift_sum / self.num_scores if self.num_scores else None

    def add(self, comparison: Comparison) -> None:
        self.compared += 1
        self.agreed += comparison.agreement
        self.num_scores += len(comparison.drifts)
        self.drift_sum += sum(comparison.drifts)
        if comparison.drifts:
            self.max_drift = max(self.max_drift or 0.0, comparison.max_drift)
        self.drift_counts[bisect_left(DRIFT_BOUNDS, comparison.max_drift)] += 1


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
    """Validates canaries, runs shadows, and adds up the reports of shadows.

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
        self.draw, self.may_answer = draw, self._validation.is_validated
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

"""The service: one request from admission to outputs, whatever carried it here.

    admit -> resolve -> tokenize -> lease or load -> submit rows -> await answers -> outputs

A request for several tasks fails per task; it fails as a whole only for what all its tasks share
(the texts, admission, the deadline).
"""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from nunatak_model import Encoding
from nunatak_registry import (
    InvalidNameError,
    StoreUnavailableError,
    TaskManifest,
    TaskNotFoundError,
    TaskReference,
)
from nunatak_server.admission import Admission, Permit
from nunatak_server.asking import KNOWN_ERRORS, Answers, Asking, PlannedRow, RowSink, VersionRows
from nunatak_server.batching.rows import RowAnswer, RowOutcome, count_tokens
from nunatak_server.errors import (
    DeadlineExceededError,
    ServerError,
    TooManyInputsError,
    TooManyTasksError,
)
from nunatak_server.inputs import find_misfit, texts_to_read
from nunatak_server.metrics import Metrics
from nunatak_server.observation.records import (
    OK,
    PredictionObserver,
    PredictionRecord,
    record_versions,
)
from nunatak_server.outputs import reading_of
from nunatak_server.postprocess import Join
from nunatak_server.prediction import (
    AskedTask,
    KnownError,
    Prediction,
    PredictionRequest,
    TaskFailure,
    TaskPrediction,
    results_of,
    timings_of,
)
from nunatak_server.readiness import Readiness
from nunatak_server.residency.residency import Residency
from nunatak_server.tokenization import Tokenization, check_texts

# Failures that do not prove that the task exists; all others come after its resolution.
UNPROVEN_TASK = (InvalidNameError, TaskNotFoundError, StoreUnavailableError)
# Making outputs of this many logits takes about a millisecond; more would hold up the event loop.
MAX_LOGITS_ON_LOOP = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request may carry."""

    max_inputs: int
    max_tasks: int
    max_text_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a request passes through, in this order."""

    admission: Admission
    residency: Residency
    tokenization: Tokenization
    engine: RowSink


class PredictionService:
    """Answers prediction requests; belongs to the event loop thread."""

    def __init__(  # noqa: PLR0913 - one parameter for each thing that a request meets
        self,
        *,
        readiness: Readiness,
        limits: RequestLimits,
        stages: Stages,
        metrics: Metrics,
        observers: Sequence[PredictionObserver] = (),
        num_layers: int,
        join: Join,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._limits = limits
        self._stages = stages
        self._metrics = metrics
        self._observers = observers
        self._num_layers = num_layers
        self._join = join
        self._asking = Asking(residency=stages.residency, engine=stages.engine, clock=clock)
        self._clock = clock
        self._groups = itertools.count()

    async def predict(self, request: PredictionRequest) -> Prediction:
        """Answer a request, with an answer or a failure for each of its tasks.

        Raises:
            ServerError: the request as a whole cannot be answered.
        """
        try:
            prediction = await self._admit(request)
        except ServerError as error:
            self._metrics.observe_request(None, error.code)
            raise
        for result in prediction.results:
            self._metrics.observe_request(*_metric_labels(result))
        return prediction

    async def _admit(self, request: PredictionRequest) -> Prediction:
        self._readiness.check()
        self._check(request)
        deadline = self._clock() + request.deadline_s
        with self._stages.admission.admit() as permit:
            return await self._answer(request, permit, deadline)

    def _check(self, request: PredictionRequest) -> None:
        num_inputs = sum(len(texts_to_read(item)) for item in request.inputs)
        if num_inputs > self._limits.max_inputs:
            raise TooManyInputsError(num_inputs, self._limits.max_inputs)
        if len(request.references) > self._limits.max_tasks:
            raise TooManyTasksError(len(request.references), self._limits.max_tasks)
        check_texts(request.inputs, max_chars=self._limits.max_text_chars)

    async def _answer(
        self, request: PredictionRequest, permit: Permit, deadline: float
    ) -> Prediction:
        limit = asyncio.timeout(request.deadline_s)
        try:
            async with limit:
                asked, tokenize_s = await self._read(request)
                read_at = self._clock()
        except TimeoutError:
            if limit.expired():
                raise DeadlineExceededError from None
            raise
        rows = self._rows([item for item in asked if isinstance(item, AskedTask)])
        permit.take_tokens(
            sum(row.trunk_tokens + row.branch_tokens for each in rows for row in each.rows)
        )
        answers = await self._asking.ask(rows, deadline=deadline)
        record = PredictionRecord(
            tokenize_started_at=read_at - tokenize_s,
            tokenize_s=tokenize_s,
            versions=record_versions(rows, answers),
        )
        for observe in self._observers:
            observe(record)
        if answers and all(map(_is_late, answers)):
            raise DeadlineExceededError
        outcomes: list[RowOutcome] = [
            it for answer in answers if isinstance(answer, list) for it in answer
        ]
        timings = timings_of(outcomes, tokenize_s)
        self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=tokenize_s)
        results = await self._conclude(request, _with_failures(asked, answers), outcomes)
        return Prediction(results=results, timings=timings)

    async def _read(self, request: PredictionRequest) -> tuple[list[AskedTask | KnownError], float]:
        """Find every version, tokenize the inputs for each, and tell how long the latter took."""
        found = [
            find_misfit(request.inputs, item.head.kind) or item
            if isinstance(item, TaskManifest)
            else item
            for item in await self._find_all(request.references)
        ]
        manifests = [item for item in found if isinstance(item, TaskManifest)]
        readings = [reading_of(manifest, request.options) for manifest in manifests]
        started = self._clock()
        encodings = await self._stages.tokenization.encode(request.inputs, readings=readings)
        tokenize_s = self._clock() - started
        asked = (
            AskedTask(manifest=manifest, encodings=encodings[reading])
            for manifest, reading in zip(manifests, readings, strict=True)
        )
        return [
            next(asked) if isinstance(item, TaskManifest) else item for item in found
        ], tokenize_s

    async def _find_all(self, references: Sequence[str]) -> list[TaskManifest | KnownError]:
        found = [self._find(text) for text in references]
        unknown = [item for item in found if isinstance(item, TaskReference)]
        resolved = iter(await asyncio.gather(*map(self._resolve, unknown)) if unknown else ())
        return [next(resolved) if isinstance(item, TaskReference) else item for item in found]

    def _find(self, text: str) -> TaskManifest | KnownError | TaskReference:
        """Return the version that is meant, or the reference if it must be looked up."""
        try:
            reference = TaskReference.parse(text)
        except InvalidNameError as error:
            return error
        return self._stages.residency.known(reference) or reference

    async def _resolve(self, reference: TaskReference) -> TaskManifest | KnownError:
        try:
            return await self._stages.residency.resolve(reference)
        except KNOWN_ERRORS as error:
            return error

    def _rows(self, asked: Sequence[AskedTask]) -> list[VersionRows]:
        """Return one row for each encoding of each task, task by task and input by input."""
        # Equal encodings of one request share a trunk row, so they should meet in one batch.
        groups: dict[Encoding, int] = defaultdict(lambda: next(self._groups))
        return [
            VersionRows(
                manifest=each.manifest,
                rows=tuple(
                    self._row(encoding, groups[encoding], each.manifest.split_depth)
                    for encoding in itertools.chain.from_iterable(each.encodings)
                ),
            )
            for each in asked
        ]

    def _row(self, encoding: Encoding, group: int, split_depth: int | None) -> PlannedRow:
        trunk, own = count_tokens(encoding, split_depth, num_layers=self._num_layers)
        return PlannedRow(encoding=encoding, group=group, trunk_tokens=trunk, branch_tokens=own)

    async def _conclude(
        self,
        request: PredictionRequest,
        asked: Sequence[AskedTask | KnownError],
        outcomes: Sequence[RowOutcome],
    ) -> tuple[TaskPrediction | TaskFailure, ...]:
        conclude = partial(results_of, request, asked, outcomes, join=self._join)
        answers = (outcome for outcome in outcomes if isinstance(outcome, RowAnswer))
        if sum(len(answer.logits) for answer in answers) <= MAX_LOGITS_ON_LOOP:
            return conclude()
        return await asyncio.to_thread(conclude)


def _with_failures(
    asked: Sequence[AskedTask | KnownError], answers: Sequence[Answers]
) -> list[AskedTask | KnownError]:
    """Put the failures of versions that could not be asked in their places."""
    remaining = iter(answers)
    found = list[AskedTask | KnownError]()
    for item in asked:
        answer = next(remaining) if isinstance(item, AskedTask) else item
        found.append(item if isinstance(answer, list) else answer)
    return found


def _is_late(answer: Answers) -> bool:
    outcomes = answer if isinstance(answer, list) else [answer]
    return all(isinstance(outcome, DeadlineExceededError) for outcome in outcomes)


def _metric_labels(result: TaskPrediction | TaskFailure) -> tuple[str | None, str]:
    if isinstance(result, TaskPrediction):
        return result.task, OK
    if isinstance(result.error, UNPROVEN_TASK):
        return None, result.error.code
    return TaskReference.parse(result.reference).task, result.error.code

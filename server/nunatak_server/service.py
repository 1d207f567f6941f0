"""The service: one request from admission to outputs, whatever carried it here.

    admit -> resolve and load -> lease -> tokenize -> submit rows -> await answers -> outputs

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
from typing import Protocol

from nunatak_artifact import ArtifactError, LoadedTask
from nunatak_model import Encoding, ModelError
from nunatak_registry import (
    InvalidNameError,
    RegistryError,
    StoreUnavailableError,
    TaskNotFoundError,
    TaskReference,
)
from nunatak_server.admission import Admission, Permit
from nunatak_server.batching.rows import PendingRow, RowAnswer, RowOutcome, count_tokens
from nunatak_server.errors import (
    DeadlineExceededError,
    ServerError,
    TooManyInputsError,
    TooManyTasksError,
)
from nunatak_server.inputs import find_misfit, texts_to_read
from nunatak_server.metrics import OK, Metrics
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
from nunatak_server.residency import Residency
from nunatak_server.tokenization import Tokenization, check_texts

KNOWN_ERRORS = (RegistryError, ModelError, ArtifactError, ServerError)
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


class RowSink(Protocol):
    """Where rows are computed."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; each one's future is resolved later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a request passes through, in this order."""

    admission: Admission
    residency: Residency
    tokenization: Tokenization
    engine: RowSink


class PredictionService:
    """Answers prediction requests; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        readiness: Readiness,
        limits: RequestLimits,
        stages: Stages,
        metrics: Metrics,
        num_layers: int,
        join: Join,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._limits = limits
        self._stages = stages
        self._metrics = metrics
        self._num_layers = num_layers
        self._join = join
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
            limit = asyncio.timeout(request.deadline_s)
            try:
                async with limit:
                    return await self._answer(request, permit, deadline)
            except TimeoutError:
                if limit.expired():
                    raise DeadlineExceededError from None
                raise

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
        found = [
            (find_misfit(request.inputs, item.manifest.head.kind) or item)
            if isinstance(item, LoadedTask)
            else item
            for item in await self._find_all(request.references)
        ]
        tasks = [task for task in found if isinstance(task, LoadedTask)]
        with self._stages.residency.lease(tasks):
            started = self._clock()
            asked = await self._read(request, found)
            tokenize_s = self._clock() - started
            rows = self._rows([task for task in asked if isinstance(task, AskedTask)], deadline)
            permit.take_tokens(sum(row.trunk_tokens + row.branch_tokens for row in rows))
            outcomes = await self._compute(rows)
        timings = timings_of(outcomes, tokenize_s)
        self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=tokenize_s)
        results = await self._conclude(request, asked, outcomes)
        return Prediction(results=results, timings=timings)

    async def _find_all(self, references: Sequence[str]) -> list[LoadedTask | KnownError]:
        found = [self._find(text) for text in references]
        cold = [item for item in found if isinstance(item, TaskReference)]
        loaded = iter(await asyncio.gather(*map(self._load, cold)) if cold else ())
        return [next(loaded) if isinstance(item, TaskReference) else item for item in found]

    def _find(self, text: str) -> LoadedTask | KnownError | TaskReference:
        """Return the resident version, or the reference if it must be looked up or loaded."""
        try:
            reference = TaskReference.parse(text)
        except InvalidNameError as error:
            return error
        return self._stages.residency.find(reference) or reference

    async def _load(self, reference: TaskReference) -> LoadedTask | KnownError:
        try:
            return await self._stages.residency.load(reference)
        except KNOWN_ERRORS as error:
            return error

    async def _read(
        self, request: PredictionRequest, found: Sequence[LoadedTask | KnownError]
    ) -> list[AskedTask | KnownError]:
        """Tokenize the inputs for every task that was found."""
        tasks = [item for item in found if isinstance(item, LoadedTask)]
        readings = [reading_of(task.manifest, request.options) for task in tasks]
        encodings = await self._stages.tokenization.encode(request.inputs, readings=readings)
        asked = (
            AskedTask(task=task, encodings=encodings[reading])
            for task, reading in zip(tasks, readings, strict=True)
        )
        return [next(asked) if isinstance(item, LoadedTask) else item for item in found]

    def _rows(self, asked: Sequence[AskedTask], deadline: float) -> list[PendingRow]:
        """Return one row for each encoding of each task, task by task and input by input."""
        loop = asyncio.get_running_loop()
        now = self._clock()
        # Equal encodings of one request share a trunk row, so they should meet in one batch.
        groups: dict[Encoding, int] = defaultdict(lambda: next(self._groups))
        rows: list[PendingRow] = []
        for each in asked:
            task = each.task
            for encoding in itertools.chain.from_iterable(each.encodings):
                trunk, own = count_tokens(encoding, task.branch, num_layers=self._num_layers)
                row = PendingRow(
                    task=task.manifest.task,
                    version=task.manifest.version,
                    branch=task.branch,
                    encoding=encoding,
                    group=groups[encoding],
                    trunk_tokens=trunk,
                    branch_tokens=own,
                    deadline=deadline,
                    submitted_at=now,
                    future=loop.create_future(),
                )
                rows.append(row)
        return rows

    async def _compute(self, rows: Sequence[PendingRow]) -> list[RowOutcome]:
        if rows:
            self._stages.engine.submit(rows)
        try:
            return [await row.future for row in rows]
        finally:
            # Only when the caller has gone is any of them still open; the engine then drops it.
            for row in rows:
                row.future.cancel()

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


def _metric_labels(result: TaskPrediction | TaskFailure) -> tuple[str | None, str]:
    if isinstance(result, TaskPrediction):
        return result.task, OK
    if isinstance(result.error, UNPROVEN_TASK):
        return None, result.error.code
    return TaskReference.parse(result.reference).task, result.error.code

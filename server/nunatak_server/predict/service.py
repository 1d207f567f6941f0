"""The service: one request from admission to outputs, whatever carried it here.

    admit -> resolve -> tokenize -> lease or load -> submit rows -> await answers -> outputs

A request for several tasks fails per task; it fails as a whole only for what all its tasks share
(the texts, admission, the deadline).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial

from nunatak_registry import TaskReference
from nunatak_server.errors import (
    DeadlineExceededError,
    DeadlineTooShortError,
    ServerError,
    TooManyInputsError,
    TooManyTasksError,
)
from nunatak_server.inputs import texts_to_read
from nunatak_server.outputs.entities import Join
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP, work_of
from nunatak_server.predict.ask import Answers, Asking, RowSink
from nunatak_server.predict.prepare import Preparation, RowMaking
from nunatak_server.predict.stream import Arrivals, Part, StreamedResult, hold_refusals
from nunatak_server.predict.types import (
    AskedTask,
    Prediction,
    PredictionRequest,
    TaskFailure,
    TaskPrediction,
    Timings,
    failure_of,
    record_versions,
    results_of,
    timings_of,
)
from nunatak_server.readiness import Readiness
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.choice import Arm
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission, Permit
from nunatak_server.scheduler.rows import RowOutcome, VersionRows, work_by_task
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.telemetry.records import (
    OK,
    PredictionObserver,
    PredictionRecord,
)
from nunatak_server.tokenization import Tokenization, check_texts


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
    rollouts: Rollouts


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
        self._join = join
        self._asking = Asking(residency=stages.residency, engine=stages.engine, clock=clock)
        self._preparation = Preparation(
            residency=stages.residency,
            tokenization=stages.tokenization,
            rollouts=stages.rollouts,
            metrics=metrics,
            clock=clock,
        )
        self._making = RowMaking(rollouts=stages.rollouts, num_layers=num_layers)
        self._clock = clock

    def has_plenty_of_room(self, num_bytes: int) -> bool:
        """Tell whether `check_capacity` certainly lets in whoever sends a body of so many bytes."""
        return self._readiness.takes_requests and self._stages.admission.has_plenty(num_bytes)

    def check_capacity(self, caller: str, *, tasks: Collection[str], num_bytes: int) -> None:
        """Refuse what would be refused once it was read; counted like any refusal.

        Raises:
            UnavailableError: the server takes no requests, or no more of them now.
        """
        try:
            self._readiness.check()
            self._stages.admission.check_capacity(caller, tasks=tasks, num_bytes=num_bytes)
        except ServerError as error:
            self._metrics.observe_request(None, error.code)
            raise

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
        if prediction.lateness is not None:
            raise prediction.lateness
        return prediction

    async def stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        """Yield an answer or a failure for each task, in the order in which they come.

        A request that is refused as a whole, or late, raises at the first step; from then on a
        failure is a result too. Closing the generator gives up what is still open.

        Raises:
            ServerError: the request as a whole cannot be answered.
        """
        async with aclosing(hold_refusals(self._admit_stream(request))) as results:
            async for streamed in results:
                yield streamed

    async def _admit_stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        try:
            self._readiness.check()
            self._check(request)
            deadline = self._clock() + request.deadline_s
            with self._place(request) as permit:
                async with aclosing(self._stream(request, permit, deadline)) as results:
                    async for streamed in results:
                        self._metrics.observe_request(*_metric_labels(streamed.result))
                        yield streamed
        except ServerError as error:
            self._metrics.observe_request(None, error.code)
            raise

    async def _admit(self, request: PredictionRequest) -> Prediction:
        self._readiness.check()
        self._check(request)
        deadline = self._clock() + request.deadline_s
        with self._place(request) as permit:
            return await self._answer(request, permit, deadline)

    def _place(self, request: PredictionRequest) -> AbstractContextManager[Permit]:
        """Hold a place in the queue while the block runs."""
        tasks = frozenset(map(TaskReference.task_in, request.references))
        return self._stages.admission.admit(request.caller, request.priority, tasks=tasks)

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
        asked, tokenize_s = await self._preparation.read(request, permit)
        read_at = self._clock()
        too_late = _all_too_late(asked)
        if too_late:
            return too_late
        rows = self._making.rows_of(
            request, [item for item in asked if isinstance(item, AskedTask)], deadline=deadline
        )
        permit.take_tokens(work_by_task(rows))
        answers = await self._asking.ask(rows, deadline=deadline)
        outcomes = _outcomes_of(answers)
        timings = timings_of(outcomes, tokenize_s)
        self._record(rows, answers, timings, read_at=read_at)
        concluded = _with_failures(request.references, asked, answers)
        results = await self._conclude(request, concluded, outcomes)
        for item, result in zip(asked, results, strict=True):
            self._observe_arm(item.arm if isinstance(item, AskedTask) else None, result)
        lateness = DeadlineExceededError() if _are_late(answers) else None
        return Prediction(results=results, timings=timings, lateness=lateness)

    async def _stream(
        self, request: PredictionRequest, permit: Permit, deadline: float
    ) -> AsyncGenerator[StreamedResult]:
        arrivals = Arrivals()
        parts = [Part(it, put=arrivals.put) for it in self._parts(request)]
        sources = (self._answer_part(part, request, permit, deadline) for part in parts)
        taken = arrivals.take(len(request.references), sources=sources)
        async with aclosing(taken):
            async for it in taken:
                alone = replace(request, references=(it.reference,))
                (result,) = await self._conclude(alone, [it.asked], it.outcomes)
                self._observe_arm(it.arm, result)
                yield StreamedResult(
                    result=result,
                    timings=timings_of(it.outcomes, it.tokenize_s),
                    refusal=it.refusal or _lateness_of(result),
                )

    def _parts(self, request: PredictionRequest) -> Iterator[tuple[str, ...]]:
        """Yield what is known at once, together, and each reference to be looked up, alone."""
        is_known = {it: self._preparation.is_known(it, request.tasks) for it in request.references}
        known = tuple(text for text in request.references if is_known[text])
        if known:
            yield known
        yield from ((text,) for text in request.references if not is_known[text])

    async def _answer_part(
        self, part: Part, request: PredictionRequest, permit: Permit, deadline: float
    ) -> None:
        """Answer some tasks of a request; whatever happens, each of them arrives."""
        wanted = replace(request, references=part.references)
        try:
            asked, tokenize_s = await self._preparation.read(wanted, permit)
            read_at = self._clock()
            begun = part.begin(asked, tokenize_s=tokenize_s)
            rows = self._making.rows_of(wanted, begun, deadline=deadline)
            permit.take_tokens(work_by_task(rows))
            reported = [
                replace(each, report=report)
                for each, report in zip(rows, part.accept(), strict=True)
            ]
            answers = await self._asking.ask(reported, deadline=deadline)
            timings = timings_of(_outcomes_of(answers), tokenize_s)
            self._record(rows, answers, timings, read_at=read_at)
            part.end(answers)
        except ServerError as error:
            part.fail(error)

    def _record(
        self,
        rows: Sequence[VersionRows],
        answers: Sequence[Answers],
        timings: Timings,
        *,
        read_at: float,
    ) -> None:
        record = PredictionRecord(
            tokenize_started_at=read_at - timings.tokenize_s,
            tokenize_s=timings.tokenize_s,
            versions=record_versions(rows, answers),
        )
        for observe in self._observers:
            observe(record)
        if timings.batch_rows:
            # What was not computed has waited for nothing that could be told.
            self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=timings.tokenize_s)

    async def _conclude(
        self,
        request: PredictionRequest,
        asked: Sequence[AskedTask | TaskFailure],
        outcomes: Sequence[RowOutcome],
    ) -> tuple[TaskPrediction | TaskFailure, ...]:
        conclude = partial(results_of, request, asked, outcomes, join=self._join)
        work = sum(
            work_of(item.manifest.head, item.encodings, options=request.options)
            for item in asked
            if isinstance(item, AskedTask)
        )
        if work <= MAX_LOGITS_ON_LOOP:
            return conclude()
        return await asyncio.to_thread(conclude)

    def _observe_arm(self, arm: Arm | None, result: TaskPrediction | TaskFailure) -> None:
        task, outcome = _metric_labels(result)
        if arm is not None and task is not None:
            self._stages.rollouts.metrics.observe_answer(task, arm, outcome)


def _with_failures(
    references: Sequence[str],
    asked: Sequence[AskedTask | TaskFailure],
    answers: Sequence[Answers],
) -> list[AskedTask | TaskFailure]:
    """Put the failures of versions that could not be asked in their places."""
    remaining = iter(answers)
    found = list[AskedTask | TaskFailure]()
    for reference, item in zip(references, asked, strict=True):
        if isinstance(item, TaskFailure):
            found.append(item)
            continue
        answer = next(remaining)
        found.append(item if isinstance(answer, list) else failure_of(reference, item, answer))
    return found


def _all_too_late(asked: Sequence[AskedTask | TaskFailure]) -> Prediction | None:
    """Return what becomes of a request none of whose tasks can answer before its deadline."""
    failures = tuple(item for item in asked if isinstance(item, TaskFailure))
    errors = [it.error for it in failures if isinstance(it.error, DeadlineTooShortError)]
    if not errors or len(errors) < len(asked):
        return None
    return Prediction(results=failures, timings=Timings(), lateness=errors[0])


def _outcomes_of(answers: Sequence[Answers]) -> list[RowOutcome]:
    """Return what became of all rows, version after version."""
    return [it for answer in answers if isinstance(answer, list) for it in answer]


def _are_late(answers: Sequence[Answers]) -> bool:
    """Tell whether versions were asked, and none of their rows was in time."""
    return bool(answers) and all(map(_is_late, answers))


def _is_late(answer: Answers) -> bool:
    outcomes = answer if isinstance(answer, list) else [answer]
    return all(isinstance(outcome, DeadlineExceededError) for outcome in outcomes)


def _lateness_of(result: TaskPrediction | TaskFailure) -> DeadlineExceededError | None:
    if isinstance(result, TaskFailure) and isinstance(result.error, DeadlineExceededError):
        return result.error
    return None


def _metric_labels(result: TaskPrediction | TaskFailure) -> tuple[str | None, str]:
    if isinstance(result, TaskPrediction):
        return result.task, OK
    return result.task, result.error.code

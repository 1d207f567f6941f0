"""The service: one request from admission to outputs, for every protocol.

    admit -> prepare -> take tokens -> dispatch -> conclude

`stream` splits a request into parts that never wait for each other. `predict` answers a request as
one part. `embed` asks the backbone itself. A request for several tasks fails per task. The whole
request fails only by its common parts: the texts, admission, the deadline.
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_model import embedding_branch
from nunatak_server.backbones import Backbones
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.facts import KnownFacts
from nunatak_server.inputs import count_documents
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP, work_of
from nunatak_server.predict.ask import Dispatcher, RowSink
from nunatak_server.predict.prepare import Preprocessor
from nunatak_server.predict.types import (
    BACKBONE,
    AskedTask,
    EmbeddingRequest,
    Embeddings,
    PredictionRequest,
    Predictions,
    RowOutcomes,
    StageTimes,
    StreamedResult,
    TaskFailure,
    TaskOutcome,
    TaskPrediction,
    lateness_of,
    normalised,
    result_of,
    timings_of,
    version_record,
)
from nunatak_server.readiness import Readiness
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission, Permit
from nunatak_server.scheduler.rows import RowAnswer, backbone_answer, work_by_task
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.telemetry.records import OK, PredictionObserver, PredictionRecord
from nunatak_server.tokenization import Tokenization, check_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of one request."""

    max_inputs: int
    max_documents: int
    """Over all queries."""
    max_tasks: int
    max_text_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The parts of the service, in the order of a request."""

    admission: Admission
    facts: KnownFacts
    residency: Residency
    tokenization: Tokenization
    engine: RowSink
    rollouts: Rollouts


class PredictionService:
    """Answers requests; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        readiness: Readiness,
        limits: RequestLimits,
        stages: Stages,
        metrics: Metrics,
        observers: Sequence[PredictionObserver] = (),
        backbones: Backbones,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._limits = limits
        self._admission = stages.admission
        self._rollouts = stages.rollouts
        self._metrics = metrics
        self._observers = observers
        self._backbones = backbones
        self._embedding_branches = {it.digest: embedding_branch(it) for it in backbones}
        self._preprocessor = Preprocessor(
            facts=stages.facts,
            tokenization=stages.tokenization,
            rollouts=stages.rollouts,
            metrics=metrics,
            backbones=backbones,
            clock=clock,
        )
        self._dispatcher = Dispatcher(
            residency=stages.residency,
            engine=stages.engine,
            shadow=stages.rollouts.shadows.start,
            clock=clock,
        )
        self._clock = clock

    def has_plenty_of_room(self, num_bytes: int) -> bool:
        """Return whether `check_capacity` would certainly admit a body of `num_bytes` bytes."""
        return self._readiness.takes_requests and self._admission.has_plenty(num_bytes)

    def check_capacity(self, caller: str, *, tasks: Collection[str], num_bytes: int) -> None:
        """Refuse a request without room, before its body is read, and count the refusal.

        Raises:
            NunatakError: the server accepts no requests, or has no room now.
        """
        try:
            self._readiness.check()
            self._admission.check_capacity(caller, tasks=tasks, num_bytes=num_bytes)
        except NunatakError as error:
            self._metrics.observe_request(None, error.code)
            raise

    async def predict(self, request: PredictionRequest) -> Predictions:
        """Answer a request, with an answer or a failure for each of its tasks.

        Raises:
            NunatakError: the request as a whole cannot be answered.
        """
        with self._admitted(request) as permit:
            deadline = self._clock() + request.deadline_s
            outcomes = await self._answer(request, permit, deadline)
            results = await self._conclude(request, outcomes)
        for result in results:
            self._metrics.observe_request(*_metric_labels(result))
        lateness = lateness_of(outcomes)
        if lateness is not None:
            raise lateness
        return Predictions(results=results, timings=_timings_of(outcomes))

    async def stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        """Yield an answer or a failure for each task, in the order of arrival.

        If the whole request is refused or late, the first step raises. Later failures are results.
        Closing the generator cancels the open tasks.

        Raises:
            NunatakError: the request as a whole cannot be answered.
        """
        async with aclosing(_hold_refusals(self._stream(request))) as results:
            async for streamed in results:
                yield streamed

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return the vectors of the backbone itself, from the same batches as tasks.

        The rows are trunk rows to the end. If tasks ask about the same text in the batch or asked
        before, the embedding needs only the layers above.

        Raises:
            NunatakError: the request cannot be answered.
            NunatakError: `layer_not_held`, the upper layers of the backbone are not in memory.
        """
        with self._admitted(request) as permit:
            deadline = self._clock() + request.deadline_s
            asked, tokenize_s = await self._preprocessor.read_texts(request, permit)
            permit.take_tokens(work_by_task([(BACKBONE, asked.rows)]))
            branch = self._embedding_branches[self._backbones.with_digest(request.backbone).digest]
            rows = await self._dispatcher.ask_backbone(asked, branch, deadline=deadline)
            answers = list(map(backbone_answer, rows))
            timings = timings_of(answers, tokenize_s)
            self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=tokenize_s)
            vectors = await _vectors(answers, normalises=request.normalises)
        self._metrics.observe_request(BACKBONE, OK)
        return Embeddings(
            vectors=vectors, num_tokens=asked.num_tokens, is_cut=asked.is_cut, timings=timings
        )

    @contextmanager
    def _admitted(self, request: PredictionRequest | EmbeddingRequest) -> Generator[Permit]:
        """Hold a place in the queue during the block; count refusals of the whole request."""
        is_embedding = isinstance(request, EmbeddingRequest)
        try:
            self._readiness.check()
            self._check(request)
            if is_embedding:
                tasks = frozenset((BACKBONE,))
            else:
                tasks = frozenset(map(TaskReference.task_in, request.references))
            with self._admission.admit(request.caller, request.priority, tasks=tasks) as permit:
                yield permit
        except NunatakError as error:
            self._metrics.observe_request(BACKBONE if is_embedding else None, error.code)
            raise

    def _check(self, request: PredictionRequest | EmbeddingRequest) -> None:
        if isinstance(request, EmbeddingRequest):
            backbone = self._backbones.with_digest(request.backbone)
            num_layers = backbone.config.num_layers
            if len(backbone.layers) < num_layers:
                raise NunatakError("layer_not_held", index=num_layers - 1)
        num_inputs, num_documents = len(request.inputs), count_documents(request.inputs)
        if num_inputs > self._limits.max_inputs:
            raise NunatakError(
                "too_many_inputs", count=num_inputs, limit=self._limits.max_inputs, of="inputs"
            )
        if num_documents > self._limits.max_documents:
            raise NunatakError(
                "too_many_inputs",
                count=num_documents,
                limit=self._limits.max_documents,
                of="documents",
            )
        if isinstance(request, PredictionRequest):
            num_tasks = len(request.references)
            if num_tasks > self._limits.max_tasks:
                raise NunatakError("too_many_tasks", count=num_tasks, limit=self._limits.max_tasks)
        check_texts(request.inputs, max_chars=self._limits.max_text_chars)

    async def _answer(
        self,
        request: PredictionRequest,
        permit: Permit,
        deadline: float,
        part: "_Part | None" = None,
    ) -> list[TaskOutcome]:
        """Return the outcome of each task, in the order of the references.

        A part receives each outcome as soon as it is ready.
        """
        read, tokenize_s = await self._preprocessor.read(request, permit, deadline=deadline)
        read_at = self._clock()
        asked = [item for item in read if isinstance(item, AskedTask)]
        if part is not None:
            part.name(asked, tokenize_s=tokenize_s)
        permit.take_tokens(work_by_task((it.manifest.task, it.rows) for it in asked))
        if part is not None:
            part.put_failures(read)
        report = None if part is None else part.put
        rows = await self._dispatcher.ask(asked, deadline=deadline, report=report)
        self._record(asked, rows, tokenize_s, read_at=read_at)
        answered = iter(rows)
        return [
            TaskOutcome(
                asked=item,
                rows=next(answered) if isinstance(item, AskedTask) else (),
                tokenize_s=tokenize_s,
            )
            for item in read
        ]

    async def _stream(self, request: PredictionRequest) -> AsyncGenerator[StreamedResult]:
        with self._admitted(request) as permit:
            deadline = self._clock() + request.deadline_s
            arrivals = _Arrivals()
            parts = [_Part(it, arrive=arrivals.put) for it in self._split(request)]
            sources = [self._answer_part(part, permit, deadline) for part in parts]
            async with aclosing(arrivals.take(len(request.references), sources)) as taken:
                async for outcome in taken:
                    (result,) = await self._conclude(request, [outcome])
                    self._metrics.observe_request(*_metric_labels(result))
                    yield StreamedResult(
                        result=result,
                        timings=_timings_of([outcome]),
                        refusal=outcome.refusal or _lateness_of(result),
                    )

    def _split(self, request: PredictionRequest) -> Iterator[PredictionRequest]:
        """Yield the cached references together, and each reference that needs a look-up alone."""
        is_known = {it: self._preprocessor.is_known(it, request.tasks) for it in request.references}
        known = tuple(text for text in request.references if is_known[text])
        if known:
            yield replace(request, references=known)
        for text in request.references:
            if not is_known[text]:
                yield replace(request, references=(text,))

    async def _answer_part(self, part: "_Part", permit: Permit, deadline: float) -> None:
        """Answer some tasks of a request. Each task arrives, also after a failure."""
        try:
            for outcome in await self._answer(part.request, permit, deadline, part):
                part.put(outcome.asked, outcome.rows)
        except NunatakError as error:
            part.fail(error)

    def _record(
        self,
        asked: Sequence[AskedTask],
        rows: Sequence[RowOutcomes],
        tokenize_s: float,
        *,
        read_at: float,
    ) -> None:
        record = PredictionRecord(
            tokenize_started_at=read_at - tokenize_s,
            tokenize_s=tokenize_s,
            versions=tuple(map(version_record, asked, rows)),
        )
        for observe in self._observers:
            observe(record)
        answers = [row for each in rows for row in each if isinstance(row, RowAnswer)]
        if answers:
            # Tasks without computed rows have no times to report.
            queue_s = max(answer.queue_s for answer in answers)
            self._metrics.observe_stages(queue_s=queue_s, tokenize_s=tokenize_s)

    async def _conclude(
        self, request: PredictionRequest, outcomes: Sequence[TaskOutcome]
    ) -> tuple[TaskPrediction | TaskFailure, ...]:
        """Return the results of outcomes, and count the answers of aliases with a canary."""
        work = sum(
            work_of(it.asked.manifest.head, it.asked.encodings, options=request.options)
            for it in outcomes
            if isinstance(it.asked, AskedTask)
        )
        if work <= MAX_LOGITS_ON_LOOP:
            results = self._results(request, outcomes)
        else:
            results = await asyncio.to_thread(self._results, request, outcomes)
        for outcome, result in zip(outcomes, results, strict=True):
            if isinstance(outcome.asked, AskedTask) and outcome.asked.arm is not None:
                _, code = _metric_labels(result)
                task = outcome.asked.manifest.task
                self._rollouts.metrics.observe_answer(task, outcome.asked.arm, code)
        return results

    def _results(
        self, request: PredictionRequest, outcomes: Sequence[TaskOutcome]
    ) -> tuple[TaskPrediction | TaskFailure, ...]:
        return tuple(result_of(request, outcome) for outcome in outcomes)


class _Part:
    """References of a stream that are answered together. Each reference arrives once."""

    def __init__(
        self, request: PredictionRequest, *, arrive: Callable[[TaskOutcome], None]
    ) -> None:
        self.request = request
        self._arrive = arrive
        self._open: dict[str, str | None] = dict.fromkeys(request.references)
        """References that have not arrived, with the names of the tasks that exist."""
        self._tokenize_s = 0.0

    def name(self, asked: Sequence[AskedTask], *, tokenize_s: float) -> None:
        """Note the existing tasks, and the time of the tokenizer."""
        self._tokenize_s = tokenize_s
        self._open.update((it.reference, it.manifest.task) for it in asked)

    def put_failures(self, read: Sequence[AskedTask | TaskFailure]) -> None:
        """Let the failed tasks arrive."""
        for item in read:
            if isinstance(item, TaskFailure):
                self.put(item)

    def put(
        self,
        asked: AskedTask | TaskFailure,
        rows: RowOutcomes = (),
        *,
        refusal: NunatakError | None = None,
    ) -> None:
        """Let one task arrive, unless it has arrived already."""
        if asked.reference in self._open:
            del self._open[asked.reference]
            self._arrive(
                TaskOutcome(asked=asked, rows=rows, tokenize_s=self._tokenize_s, refusal=refusal)
            )

    def fail(self, error: NunatakError) -> None:
        """Let all open tasks arrive as refused."""
        for reference, task in list(self._open.items()):
            self.put(TaskFailure(reference=reference, error=error, task=task), refusal=error)


class _Arrivals:
    """Collects items of several coroutines in the order of arrival."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[TaskOutcome | BaseException] = asyncio.Queue()

    def put(self, arrival: TaskOutcome) -> None:
        """Let an item arrive."""
        self._queue.put_nowait(arrival)

    async def take(
        self, count: int, sources: Iterable[Awaitable[None]]
    ) -> AsyncGenerator[TaskOutcome]:
        """Yield `count` arrivals while the sources run; closing the generator cancels the sources.

        An exception of a source is raised here.
        """
        running = [asyncio.ensure_future(source) for source in sources]
        for task in running:
            task.add_done_callback(self._take_failure)
        try:
            for _ in range(count):
                arrival = await self._queue.get()
                if isinstance(arrival, BaseException):
                    raise arrival
                yield arrival
            # The sources are awaited to their end, because their last steps record the request.
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            for task in running:
                task.cancel()
            # Awaited to their end, because the sources release their leases.
            await asyncio.gather(*running, return_exceptions=True)

    def _take_failure(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._queue.put_nowait(error)


async def _hold_refusals(results: AsyncGenerator[StreamedResult]) -> AsyncGenerator[StreamedResult]:
    """Yield results on arrival, but hold refusals back until the first result that is no refusal.

    Raises:
        NunatakError: all results are refusals; the first refusal is raised.
    """
    held = list[StreamedResult]()
    refusal: NunatakError | None = None
    has_begun = False
    async with aclosing(results):
        async for streamed in results:
            held.append(streamed)
            refusal = refusal or streamed.refusal
            has_begun = has_begun or streamed.refusal is None
            while has_begun and held:
                yield held.pop(0)
    if refusal is not None and not has_begun:
        raise refusal


async def _vectors(answers: Sequence[RowAnswer], *, normalises: bool) -> tuple[list[float], ...]:
    vectors = tuple(answer.logits for answer in answers)
    if not normalises:
        return vectors
    if sum(map(len, vectors)) <= MAX_LOGITS_ON_LOOP:
        return tuple(map(normalised, vectors))
    return await asyncio.to_thread(lambda: tuple(map(normalised, vectors)))


def _timings_of(outcomes: Sequence[TaskOutcome]) -> StageTimes:
    """Return the timings of tasks that were prepared together."""
    tokenize_s = outcomes[0].tokenize_s if outcomes else 0.0
    return timings_of((row for it in outcomes for row in it.rows), tokenize_s)


def _lateness_of(result: TaskPrediction | TaskFailure) -> DeadlineExceededError | None:
    if isinstance(result, TaskFailure) and isinstance(result.error, DeadlineExceededError):
        return result.error
    return None


def _metric_labels(result: TaskPrediction | TaskFailure) -> tuple[str | None, str]:
    if isinstance(result, TaskPrediction):
        return result.task, OK
    return result.task, result.error.code

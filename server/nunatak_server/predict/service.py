"""The service: one request from admission to outputs, for every protocol.

    admit -> prepare -> take tokens -> dispatch -> conclude

`stream` splits a request into parts that never wait for each other. `predict` answers a request as
one part. `embed` asks the backbone itself. A request for several tasks fails per task. The whole
request fails only by its common parts: the texts, admission, the deadline.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_model import embedding_branch
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.engine.backbones import Backbones
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP
from nunatak_server.predict.ask import Dispatcher, RequestPart, RowSink, arrivals, hold_refusals
from nunatak_server.predict.known_rows import KnownRows
from nunatak_server.predict.prepare import Preprocessor
from nunatak_server.predict.types import (
    BACKBONE,
    Arrival,
    Asked,
    AskedTask,
    EmbeddingRequest,
    Embeddings,
    PredictionRequest,
    Predictions,
    StageTimes,
    StreamedResult,
    TaskAnswer,
    TaskPrediction,
    late_result,
    lateness_of,
    normalised,
    result_of,
    version_record,
)
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.rollouts import Rollouts
from nunatak_server.scheduler.admission import Admission, Permit, Readiness
from nunatak_server.scheduler.rows import RowAnswer, RowTokens, backbone_answer
from nunatak_server.scheduler.turns import Check, Limits, Pace, Turns
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import (
    OK,
    Metrics,
    PredictionObserver,
    PredictionRecord,
    VersionWork,
)
from nunatak_server.tokenization import Tokenization, check_texts, count_documents

MAX_LOGITS_A_TURN: Final = 10 * MAX_LOGITS_ON_LOOP
"""Most logits of one turn at the thread that makes outputs; a task has one turn."""
LEAST_READING_S: Final = 0.02
LOGITS_PER_S: Final = 200_000
"""Time to find what a policy asks in logits on a slow machine: the least, and logits a second."""


class PredictionService:
    """Answers requests; only the event loop thread may use it."""

    def __init__(  # noqa: PLR0913 - its collaborators, by name
        self,
        *,
        readiness: Readiness,
        settings: ServerSettings,
        admission: Admission,
        facts: KnownFacts,
        residency: Residency,
        tokenization: Tokenization,
        engine: RowSink,
        rollouts: Rollouts,
        turns: Turns,
        metrics: Metrics,
        observers: Sequence[PredictionObserver] = (),
        backbones: Backbones,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._settings = settings
        self._admission = admission
        self._rollouts = rollouts
        self._metrics = metrics
        self._observers = observers
        self._backbones = backbones
        self._embedding_branches = {it.digest: embedding_branch(it) for it in backbones}
        self._preprocessor = Preprocessor(
            facts=facts,
            tokenization=tokenization,
            rollouts=rollouts,
            metrics=metrics,
            backbones=backbones,
            known_rows=KnownRows(settings.answer_cache_bytes),
            clock=clock,
        )
        self._dispatcher = Dispatcher(
            residency=residency, engine=engine, shadow=rollouts.start_shadow, clock=clock
        )
        self._turns = turns
        self._clock = clock

    def has_plenty_of_room(self, num_bytes: int) -> bool:
        """Return whether `check_capacity` would certainly admit a body of `num_bytes` bytes."""
        return self._readiness.takes_requests and self._admission.has_plenty(num_bytes)

    def check_capacity(self, caller: str, *, tasks: Collection[str], num_bytes: int) -> None:
        with self._refusals():
            self._readiness.check()
            self._admission.check_capacity(caller, tasks=tasks, num_bytes=num_bytes)

    def count_request(self, caller: str, limits: Limits) -> None:
        """Count a request for the quotas of its caller, or refuse it."""
        with self._refusals():
            self._admission.quotas.count_request(caller, limits)

    async def predict(self, request: PredictionRequest) -> Predictions:
        with self._admitted(request) as permit:
            pace = self._pace(request)
            answered, tokenize_s = await self._answer(request, permit, pace)
            results = await self._conclude(request, answered, pace)
        for each, result in zip(answered, results, strict=True):
            self._observe_answer(request, each, result)
        lateness = lateness_of(answered)
        if lateness is not None:
            raise lateness
        return Predictions(results=results, timings=await _timings_of(answered, tokenize_s, pace))

    async def stream(
        self, request: PredictionRequest, pace: Pace | None = None
    ) -> AsyncGenerator[StreamedResult]:
        """Yield an answer or a failure for each task, in the order of arrival.

        `pace` is that of `begin`, if the work has begun.
        If the whole request is refused or late, the first step raises. Later failures are results.
        Closing the generator cancels the open tasks.
        """
        pace = pace or self._pace(request)
        async with aclosing(hold_refusals(self._stream(request, pace))) as results:
            async for streamed in results:
                yield streamed

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return the vectors of the backbone itself, from the same batches as tasks.

        The rows are trunk rows to the end. If tasks ask about the same text in the batch or asked
        before, the embedding needs only the layers above.
        """
        with self._admitted(request) as permit:
            pace = self._pace(request)
            specs, tokenize_s = await self._preprocessor.read_texts(request, permit)
            tokens = RowTokens()
            for row in specs:
                tokens.add(BACKBONE, row)
            backbone = self._backbones.with_digest(request.backbone)
            tokens.add_outputs(BACKBONE, backbone.config.hidden_width * len(specs))
            permit.take_tokens({BACKBONE: sum((*tokens.least.values(), *tokens.extra.values()))})
            branch = self._embedding_branches[backbone.digest]
            rows = await self._dispatcher.ask_backbone(specs, branch, pace=pace)
            answers = list(map(backbone_answer, rows))
            timings = StageTimes(tokenize_s=tokenize_s).with_rows(answers)
            self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=tokenize_s)
            vectors = await _vectors(answers, pace, normalises=request.normalises)
        self._metrics.count_task("requests", BACKBONE, OK)
        return Embeddings(
            vectors=vectors,
            num_tokens=sum(it.encoding.num_tokens for it in specs),
            is_cut=any(it.encoding.part.num_left_out for it in specs),
            num_unread=tuple(it.encoding.part.num_unread for it in specs),
            timings=timings,
        )

    def _pace(self, request: PredictionRequest | EmbeddingRequest) -> Pace:
        handling = request.handling
        return self._turns.pace(handling.caller, deadline=self._clock() + handling.deadline_s)

    def _until_read(
        self, request: PredictionRequest, asked: Sequence[AskedTask], pace: Pace
    ) -> Pace:
        """Return the pace for rows. It leaves time to read what the rows of a late policy found."""
        work = sum(it.output_work for it in asked)
        if not request.conditions or work <= MAX_LOGITS_ON_LOOP:
            return pace
        half_s = (pace.deadline - self._clock()) / 2
        reading_s = min(half_s, LEAST_READING_S + work / LOGITS_PER_S)
        return self._turns.pace(request.handling.caller, deadline=pace.deadline - reading_s)

    @contextmanager
    def _admitted(self, request: PredictionRequest | EmbeddingRequest) -> Generator[Permit]:
        """Hold a place in the queue during the block."""
        is_embedding = isinstance(request, EmbeddingRequest)
        with self._refusals(BACKBONE if is_embedding else None):
            self._readiness.check(has_begun=not is_embedding and request.growing is not None)
            self._check(request)
            if is_embedding:
                tasks = frozenset((BACKBONE,))
            else:
                tasks = frozenset(map(TaskReference.task_in, request.references))
            with self._admission.admit(
                request.handling.caller, request.handling.priority, tasks=tasks
            ) as permit:
                yield permit

    def begin(self, request: PredictionRequest) -> Pace:
        """Return the pace of a request, or refuse what the server would not answer.

        Raises:
            NunatakError: as for `stream`. Refusals by its tasks and by the queue come later.
        """
        with self._refusals():
            self._readiness.check(has_begun=request.growing is not None)
            self._check(request)
        return self._pace(request)

    @contextmanager
    def _refusals(self, task: str | None = None) -> Generator[None]:
        """Count an error in the block as the refusal of a whole request."""
        try:
            yield
        except NunatakError as error:
            self._metrics.count_task("requests", task, error.code)
            raise

    def _check(self, request: PredictionRequest | EmbeddingRequest) -> None:
        if isinstance(request, EmbeddingRequest):
            backbone = self._backbones.with_digest(request.backbone)
            num_layers = backbone.config.num_layers
            if len(backbone.layers) < num_layers:
                raise NunatakError("layer_not_held", index=num_layers - 1)
        settings = self._settings
        is_call = isinstance(request, PredictionRequest) and request.is_call
        most = settings.max_call_texts if is_call else settings.max_inputs
        counts = (
            ("texts of a call" if is_call else "inputs", len(request.inputs), most),
            ("documents", count_documents(request.inputs), settings.max_documents),
        )
        for what, num, limit in counts:
            if num > limit:
                raise NunatakError("too_many_inputs", count=num, limit=limit, of=what)
        if isinstance(request, PredictionRequest):
            num_tasks, limit = len(request.references), settings.max_tasks_per_request
            if num_tasks > limit:
                raise NunatakError("too_many_tasks", count=num_tasks, limit=limit)
        check_texts(request.inputs, max_chars=settings.max_text_chars)

    async def _answer(
        self,
        request: PredictionRequest,
        permit: Permit,
        pace: Pace,
        part: RequestPart | None = None,
    ) -> tuple[list[Asked], float]:
        """Return each task with its outcomes, in order, and the seconds of the tokenizer.

        A part receives each task as soon as it is answered.
        """
        name = part.name if part else None
        read, tokenize_s = await self._preprocessor.read(request, permit, pace=pace, name=name)
        read_at = self._clock()
        asked = [item for item in read if isinstance(item, AskedTask)]
        tokens = RowTokens()
        for it in asked:
            await pace.map(partial(tokens.add, it.manifest.task), it.rows)
            tokens.add_outputs(it.manifest.task, it.output_work)
        try:
            permit.take_tokens(tokens.extra)
        except NunatakError:
            # The other parts of a stream may need the space of these rows.
            permit.give_back_tokens(tokens.least)
            raise
        if part is not None:
            part.begin(read, tokenize_s=tokenize_s)
        report = part.put if part else None
        try:
            await self._dispatcher.ask(
                asked, pace=self._until_read(request, asked, pace), report=report
            )
        except asyncio.CancelledError:
            # A verdict that is certain needs no more answers; those that came were computed.
            answered = [it for it in asked if it.outcomes]
            await self._record(answered, tokenize_s, pace, read_at=read_at)
            raise
        await self._record(asked, tokenize_s, pace, read_at=read_at)
        return read, tokenize_s

    async def _stream(
        self, request: PredictionRequest, pace: Pace
    ) -> AsyncGenerator[StreamedResult]:
        with self._admitted(request) as permit:
            queue = asyncio.Queue[Arrival | BaseException]()
            parts = [RequestPart(it, arrive=queue.put_nowait) for it in self._split(request)]
            sources = [self._answer_part(part, permit, pace) for part in parts]
            async with aclosing(arrivals(queue, len(request.references), sources)) as taken:
                async for answered, tokenize_s in taken:
                    await self._preprocessor.keep(request, answered, pace)
                    (result,) = await self._conclude(request, [answered], pace)
                    self._observe_answer(request, answered, result)
                    timings = await _timings_of([answered], tokenize_s, pace)
                    yield StreamedResult(result=result, timings=timings)

    def _observe_answer(self, request: PredictionRequest, asked: Asked, result: TaskAnswer) -> None:
        task, outcome = result.task, OK if isinstance(result, TaskPrediction) else result.error.code
        if request.growing is not None and not request.growing.counts(result.reference, outcome):
            return
        self._metrics.count_task("requests", task, outcome)
        if isinstance(result, TaskPrediction) and result.predicted:
            self._metrics.observe_predicted(result.task, result.predicted)
        if isinstance(asked, AskedTask) and asked.arm is not None:
            self._metrics.count_task("split_requests", asked.manifest.task, asked.arm, outcome)

    def _split(self, request: PredictionRequest) -> Iterator[PredictionRequest]:
        """Yield the cached references together, and each reference that needs a look-up alone.

        A look at a growing text is one part, because its references share the windows.
        """
        if request.growing is not None and not request.growing.is_whole:
            yield request
            return
        is_known = {
            it: self._preprocessor.is_known(it, request.handling.tasks) for it in request.references
        }
        known = tuple(text for text in request.references if is_known[text])
        if known:
            yield replace(request, references=known)
        for text in request.references:
            if not is_known[text]:
                yield replace(request, references=(text,))

    async def _answer_part(self, part: RequestPart, permit: Permit, pace: Pace) -> None:
        try:
            answered, _ = await self._answer(part.request, permit, pace, part)
            for each in answered:
                part.put(each)
        except NunatakError as error:
            part.fail(error)

    async def _record(
        self, asked: Sequence[AskedTask], tokenize_s: float, pace: Pace, *, read_at: float
    ) -> None:
        versions, queue_s = list[VersionWork](), list[float]()
        for each in asked:
            versions.append(version_record(each))
            queue_s += [row.queue_s for row in each.outcomes if isinstance(row, RowAnswer)]
            await pace.count(len(each.outcomes))
        record = PredictionRecord(
            tokenize_started_at=read_at - tokenize_s,
            tokenize_s=tokenize_s,
            versions=tuple(versions),
        )
        for observe in self._observers:
            observe(record)
        if queue_s:
            # Tasks without computed rows have no times to report.
            self._metrics.observe_stages(queue_s=max(queue_s), tokenize_s=tokenize_s)

    async def _conclude(
        self, request: PredictionRequest, answered: Sequence[Asked], pace: Pace
    ) -> tuple[TaskAnswer, ...]:
        sizes = [it.output_work if isinstance(it, AskedTask) else 0 for it in answered]
        if sum(sizes) <= MAX_LOGITS_ON_LOOP:
            results = _results(request, answered)
        else:
            results = ()
            for part in _parts(answered, sizes):
                results += await self._results_in_turn(request, part, pace)
        return results

    async def _results_in_turn(
        self, request: PredictionRequest, answered: Sequence[Asked], pace: Pace
    ) -> tuple[TaskAnswer, ...]:
        """Make results on the thread, which ends with the window that it makes at the deadline.

        What the rows of a policy found in time counts also if the thread is late.
        """
        work = partial(_results, request, answered)
        if request.conditions:
            return await self._turns.on_thread(work, caller=request.handling.caller)
        with suppress(DeadlineExceededError):
            return await pace.on_thread(work)
        return tuple(map(late_result, answered))


def _results(
    request: PredictionRequest, answered: Sequence[Asked], check: Check | None = None
) -> tuple[TaskAnswer, ...]:
    return tuple(result_of(request, each, check) for each in answered)


def _parts(answered: Sequence[Asked], sizes: Sequence[int]) -> Iterator[Sequence[Asked]]:
    begin = total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > MAX_LOGITS_A_TURN and index > begin:
            yield answered[begin:index]
            begin, total = index, size
    yield answered[begin:]


async def _vectors(
    answers: Sequence[RowAnswer], pace: Pace, *, normalises: bool
) -> tuple[list[float], ...]:
    vectors = tuple(answer.logits for answer in answers)
    if not normalises:
        return vectors
    if sum(map(len, vectors)) <= MAX_LOGITS_ON_LOOP:
        return tuple(map(normalised, vectors))
    return await pace.on_thread(lambda _: tuple(map(normalised, vectors)))


async def _timings_of(answered: Sequence[Asked], tokenize_s: float, pace: Pace) -> StageTimes:
    timings = StageTimes(tokenize_s=tokenize_s)
    for each in answered:
        if isinstance(each, AskedTask):
            timings = timings.with_rows(each.outcomes)
            await pace.count(len(each.outcomes))
    return timings

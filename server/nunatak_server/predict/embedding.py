"""Embeddings: texts as vectors of the backbone itself, through the batches that tasks are in.

    check -> admit -> tokenize -> submit rows -> await vectors -> normalise

The rows are trunk rows to the end, so a text that tasks are asked about in the same batch, or were
asked about before, costs its embedding nothing but the layers that nobody needed so far.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nunatak_contract.enums import OnLong
from nunatak_model import Backbone, Encoding, LayerNotHeldError, embedding_branch
from nunatak_server.errors import (
    DeadlineExceededError,
    DeadlineTooShortError,
    ServerError,
    TooManyInputsError,
)
from nunatak_server.outputs.outputs import MAX_LOGITS_ON_LOOP
from nunatak_server.predict.service import RequestLimits, Stages
from nunatak_server.predict.types import Timings, timings_of
from nunatak_server.readiness import Readiness
from nunatak_server.scheduler.admission import Permit
from nunatak_server.scheduler.rows import (
    ANONYMOUS,
    PendingRow,
    Priority,
    RowAnswer,
    backbone_answer,
    count_tokens,
)
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.telemetry.records import OK
from nunatak_server.time_limits import within
from nunatak_server.tokenization import Encodings, Reading, check_texts, find_cut

BACKBONE: Final = "(backbone)"
"""In the place of a task's name, where turns are taken and answers counted; no task can have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Texts to embed."""

    texts: tuple[str, ...]
    truncates: bool
    normalises: bool
    deadline_s: float
    caller: str = ANONYMOUS
    """Whose turn it takes in batches, and whose share of the queue."""
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector for each text, in order, and the tokens that were read for all of them."""

    vectors: tuple[list[float], ...]
    num_tokens: int
    is_cut: bool
    """Whether a part of a text was not read."""
    timings: Timings


class EmbeddingService:
    """Answers embedding requests; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        readiness: Readiness,
        limits: RequestLimits,
        stages: Stages,
        metrics: Metrics,
        backbone: Backbone,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._limits = limits
        self._stages = stages
        self._metrics = metrics
        self._num_layers = backbone.config.num_layers
        self._num_held_layers = len(backbone.layers)
        self._max_tokens = backbone.max_embedding_tokens
        self._branch = embedding_branch(backbone)
        self._clock = clock
        # Down from where no prediction's group is, nor the warm-up's: texts of different requests
        # are no siblings.
        self._groups = itertools.count(-2, -1)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Answer a request.

        Raises:
            ServerError: it cannot be answered.
            LayerNotHeldError: the backbone is not held whole.
        """
        try:
            embeddings = await self._admit(request)
        except (ServerError, LayerNotHeldError) as error:
            self._metrics.observe_request(BACKBONE, error.code)
            raise
        self._metrics.observe_request(BACKBONE, OK)
        return embeddings

    async def _admit(self, request: EmbeddingRequest) -> Embeddings:
        self._readiness.check()
        if self._num_held_layers < self._num_layers:
            raise LayerNotHeldError(self._num_layers - 1)
        if len(request.texts) > self._limits.max_inputs:
            raise TooManyInputsError(len(request.texts), self._limits.max_inputs)
        check_texts(request.texts, max_chars=self._limits.max_text_chars)
        deadline = self._clock() + request.deadline_s
        place = self._stages.admission.admit(request.caller, request.priority, tasks=(BACKBONE,))
        with place as permit:
            wait_s = permit.wait_s(BACKBONE)
            if wait_s > request.deadline_s:
                raise DeadlineTooShortError(deadline_s=request.deadline_s, wait_s=wait_s)
            answering = self._answer(request, permit, deadline)
            return await within(request.deadline_s, answering, late=DeadlineExceededError)

    async def _answer(
        self, request: EmbeddingRequest, permit: Permit, deadline: float
    ) -> Embeddings:
        reading = Reading(max_length=self._max_tokens, stride=None)
        started = self._clock()
        encoded = await self._stages.tokenization.encode(
            request.texts, readings=[reading], caller=request.caller
        )
        tokenize_s = self._clock() - started
        self._check_lengths(request, encoded[reading])
        encodings = [encoding for (encoding,) in encoded[reading]]
        num_tokens = sum(encoding.num_tokens for encoding in encodings)
        permit.take_tokens({BACKBONE: num_tokens})
        answers = await self._ask(request, encodings, deadline)
        timings = timings_of(answers, tokenize_s)
        self._metrics.observe_stages(queue_s=timings.queue_s, tokenize_s=tokenize_s)
        return Embeddings(
            vectors=await _vectors(answers, normalises=request.normalises),
            num_tokens=num_tokens,
            is_cut=any(encoding.part.num_left_out for encoding in encodings),
            timings=timings,
        )

    def _check_lengths(self, request: EmbeddingRequest, read: Sequence[Encodings]) -> None:
        on_long = OnLong.CUT if request.truncates else OnLong.REFUSE
        for (encoding,) in read:
            if encoding.part.num_left_out:
                self._metrics.observe_long_input(BACKBONE, on_long)
        problem = None if request.truncates else find_cut(read, max_length=self._max_tokens)
        if problem is not None:
            raise problem

    async def _ask(
        self, request: EmbeddingRequest, encodings: Sequence[Encoding], deadline: float
    ) -> list[RowAnswer]:
        # Rows of one group share a turn of the planner: every text takes its own.
        rows = [
            self._row(request, encoding, group, deadline)
            for encoding, group in zip(encodings, self._groups, strict=False)
        ]
        try:
            self._stages.engine.submit(rows)
            return [backbone_answer(await row.future) for row in rows]
        finally:
            # Only what nobody waits for is still open; the engine then drops it.
            for row in rows:
                row.future.cancel()

    def _row(
        self, request: EmbeddingRequest, encoding: Encoding, group: int, deadline: float
    ) -> PendingRow:
        trunk, own = count_tokens(encoding, self._num_layers, num_layers=self._num_layers)
        return PendingRow(
            task=BACKBONE,
            version=0,
            branch=self._branch,
            encoding=encoding,
            group=group,
            trunk_tokens=trunk,
            branch_tokens=own,
            deadline=deadline,
            submitted_at=self._clock(),
            future=asyncio.get_running_loop().create_future(),
            trunk_share=1.0,
            caller=request.caller,
            priority=request.priority,
        )


def normalised(vector: Sequence[float]) -> list[float]:
    """Return the vector at length one; one without length is returned as it is."""
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else list(vector)


async def _vectors(answers: Sequence[RowAnswer], *, normalises: bool) -> tuple[list[float], ...]:
    vectors = tuple(answer.logits for answer in answers)
    if not normalises:
        return vectors
    if sum(map(len, vectors)) <= MAX_LOGITS_ON_LOOP:
        return tuple(map(normalised, vectors))
    return await asyncio.to_thread(lambda: tuple(map(normalised, vectors)))

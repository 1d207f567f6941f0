"""Streaming: the results of one request as they come, each task's as soon as it is answered.

A request is split into parts that never wait for each other: all references whose versions are
known go together, so that their rows meet in one batch and share its trunk, and each one that must
be looked up goes alone. Within a part, a version that has to be loaded holds back no other.

What refuses a request, or makes it late, is known part by part. It is held until a task fares
better, and becomes the failure of the request if none does.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from nunatak_server.errors import ServerError
from nunatak_server.predict.ask import Answers
from nunatak_server.predict.types import (
    AskedTask,
    TaskFailure,
    TaskPrediction,
    Timings,
    failure_of,
)
from nunatak_server.rollouts.choice import Arm
from nunatak_server.scheduler.rows import Report, RowOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedResult:
    """One task's answer or failure, and where the time went until it was there."""

    result: TaskPrediction | TaskFailure
    timings: Timings
    refusal: ServerError | None = None
    """What the request fails with as a whole if none of its tasks fares better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What one task of a request was asked and what came of it, or why it was not asked."""

    reference: str
    asked: AskedTask | TaskFailure
    outcomes: Sequence[RowOutcome]
    tokenize_s: float
    arm: Arm | None
    """Which version of a split alias was asked."""
    refusal: ServerError | None
    """What refused all that was left of its part."""


class Part:
    """Some references of a request: puts one arrival for each of them, whatever happens."""

    def __init__(self, references: Sequence[str], *, put: Callable[[Arrival], None]) -> None:
        self.references = tuple(references)
        self._open = set(references)
        self._put = put
        self._tasks: list[tuple[str, AskedTask]] = []
        self._unasked: list[tuple[str, TaskFailure]] = []
        self._tokenize_s = 0.0

    def begin(
        self, asked: Sequence[AskedTask | TaskFailure], *, tokenize_s: float
    ) -> list[AskedTask]:
        """Return the tasks that can be asked."""
        self._tokenize_s = tokenize_s
        for reference, item in zip(self.references, asked, strict=True):
            if isinstance(item, AskedTask):
                self._tasks.append((reference, item))
            else:
                self._unasked.append((reference, item))
        return [task for _, task in self._tasks]

    def accept(self) -> list[Report]:
        """Let what cannot be asked arrive, and return where the others' outcomes are reported."""
        for reference, failure in self._unasked:
            self._arrive(reference, failure)
        return [
            partial(self._arrive, reference, task, arm=task.arm) for reference, task in self._tasks
        ]

    def end(self, answers: Sequence[Answers]) -> None:
        """Let every task arrive that was not reported."""
        for (reference, task), answer in zip(self._tasks, answers, strict=True):
            if isinstance(answer, list):
                self._arrive(reference, task, answer, arm=task.arm)
            else:
                self._arrive(reference, failure_of(reference, task, answer), arm=task.arm)

    def fail(self, error: ServerError) -> None:
        """Let all that is open arrive as refused; what was not begun may name no task at all."""
        begun = {reference: task.manifest.task for reference, task in self._tasks}
        for reference in self.references:
            failure = TaskFailure(reference=reference, error=error, task=begun.get(reference))
            self._arrive(reference, failure, refusal=error)

    def _arrive(
        self,
        reference: str,
        asked: AskedTask | TaskFailure,
        outcomes: Sequence[RowOutcome] = (),
        *,
        arm: Arm | None = None,
        refusal: ServerError | None = None,
    ) -> None:
        if reference in self._open:
            self._open.remove(reference)
            self._put(
                Arrival(
                    reference=reference,
                    asked=asked,
                    outcomes=outcomes,
                    tokenize_s=self._tokenize_s,
                    arm=arm,
                    refusal=refusal,
                )
            )


class Arrivals:
    """Brings what several coroutines put into the order of its arrival."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Arrival | BaseException] = asyncio.Queue()

    def put(self, arrival: Arrival) -> None:
        """Let it arrive."""
        self._queue.put_nowait(arrival)

    async def take(
        self, count: int, *, sources: Iterable[Awaitable[None]]
    ) -> AsyncGenerator[Arrival]:
        """Yield so many arrivals while the sources run; closing this cancels them.

        What a source raises is raised here.
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
            # To their end: nothing is left to wait for, but what they did is still to be told.
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            for task in running:
                task.cancel()
            # To their end: they give back what they hold.
            await asyncio.gather(*running, return_exceptions=True)

    def _take_failure(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._queue.put_nowait(error)


async def hold_refusals(results: AsyncGenerator[StreamedResult]) -> AsyncGenerator[StreamedResult]:
    """Yield results as they come, but refusals not before a result that is none.

    Raises:
        ServerError: there is no such result; the first refusal is raised.
    """
    held = list[StreamedResult]()
    refusal: ServerError | None = None
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

"""Arrivals: the results of a stream, in the order in which its parts are answered."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

from nunatak_contract.errors import NunatakError
from nunatak_server.predict.types import (
    Arrival,
    Asked,
    PredictionRequest,
    StreamedResult,
    TaskFailure,
)


class RequestPart:
    """References of a stream that are answered together. Each reference arrives once."""

    def __init__(self, request: PredictionRequest, *, arrive: Callable[[Arrival], None]) -> None:
        self.request = request
        self._arrive = arrive
        self._open: dict[str, str | None] = dict.fromkeys(request.references)
        """References that have not arrived, with the names of the tasks that exist."""
        self._tokenize_s = 0.0

    def name(self, reference: str, task: str) -> None:
        self._open[reference] = task

    def begin(self, read: Sequence[Asked], *, tokenize_s: float) -> None:
        self._tokenize_s = tokenize_s
        for item in read:
            if isinstance(item, TaskFailure):
                self.put(item)

    def put(self, asked: Asked) -> None:
        """Let one task arrive, unless it has arrived already."""
        if asked.reference in self._open:
            del self._open[asked.reference]
            self._arrive((asked, self._tokenize_s))

    def fail(self, error: NunatakError) -> None:
        for reference, task in list(self._open.items()):
            self.put(TaskFailure(reference=reference, error=error, task=task, refuses_request=True))


async def arrivals(
    queue: asyncio.Queue[Arrival | BaseException], count: int, sources: Iterable[Awaitable[None]]
) -> AsyncGenerator[Arrival]:
    """Yield `count` arrivals while the sources run; closing the generator cancels the sources.

    The sources put the arrivals into the queue. An exception of a source is raised here.
    """

    def take_failure(task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            queue.put_nowait(error)

    running = [asyncio.ensure_future(source) for source in sources]
    for task in running:
        task.add_done_callback(take_failure)
    try:
        for _ in range(count):
            arrival = await queue.get()
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


async def hold_refusals(results: AsyncGenerator[StreamedResult]) -> AsyncGenerator[StreamedResult]:
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

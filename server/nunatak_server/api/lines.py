"""Answers line by line: `application/x-ndjson`, each line sent as soon as it is there."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Final

import orjson
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nunatak_server.api.questions import Inputs
from nunatak_server.api.replies import result_fields
from nunatak_server.service.prediction import Timings
from nunatak_server.service.streaming import StreamedResult

LINES_TYPE: Final = "application/x-ndjson"
NO_BUFFERING: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""For proxies, which would hold lines back until there are many."""


class LinesResponse(StreamingResponse):
    """Sends lines as they come; ends what makes them once all are sent or the caller has gone."""

    media_type = LINES_TYPE

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(lines, headers=NO_BUFFERING)
        self._lines = lines
        self._held: AbstractContextManager[object] = nullcontext()

    def hold(self, held: AbstractContextManager[object]) -> None:
        """Keep what lines are made from until the last is sent or the caller has gone."""
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        with self._held:
            async with aclosing(self._lines):
                await super().__call__(scope, receive, send)


def wants_lines(accept: str | None) -> bool:
    """Tell whether an `Accept` header asks for lines: by name, not by a wildcard."""
    ranges = (item.partition(";") for item in (accept or "").split(","))
    return any(
        name.strip().lower() == LINES_TYPE and "q=0" not in parameters.replace(" ", "").split(";")
        for name, _, parameters in ranges
    )


async def lines_response(
    results: AsyncGenerator[StreamedResult], inputs: Inputs, *, request_id: str | None
) -> LinesResponse:
    """Return the response of a stream, once its first result is there.

    What refuses the request as a whole is raised before anything is sent.
    """
    first = await anext(results)

    async def lines() -> AsyncGenerator[bytes]:
        async with aclosing(results):
            yield _line(first, inputs, request_id=request_id)
            async for streamed in results:
                yield _line(streamed, inputs, request_id=request_id)

    return LinesResponse(lines())


def _line(streamed: StreamedResult, inputs: Inputs, *, request_id: str | None) -> bytes:
    fields = result_fields(streamed.result, inputs, request_id=request_id)
    timings = _timing_fields(streamed.timings)
    return orjson.dumps({**fields, "timings": timings}, option=orjson.OPT_APPEND_NEWLINE)


def _timing_fields(timings: Timings) -> Mapping[str, Any]:
    """Return where the time of one line went, as the headers of a whole answer do."""
    return {
        "queue_ms": round(timings.queue_s * 1000, 3),
        "tokenize_ms": round(timings.tokenize_s * 1000, 3),
        "compute_ms": round(timings.compute_s * 1000, 3),
        "batch_size": timings.batch_rows,
    }

"""Callers that go before they are answered: what is done for them ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast

from fastapi import Request, Response

# Nobody reads it; it is what proxies log for a caller that has gone.
CLIENT_CLOSED_REQUEST: Final = 499
WATCH_AFTER_S: Final = 0.02
"""About as long as a small batch takes."""


async def unless_disconnected(
    request: Request, handling: Coroutine[Any, Any, Response]
) -> Response:
    """Await the handling of a request; cancel it when the caller has gone."""
    watch = _Watch(request)
    with watch:
        try:
            return await handling
        except asyncio.CancelledError:
            if not watch.is_over():
                raise
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class _Watch:
    """Cancels the task that it was made in when its caller has gone, as a timeout would.

    A request that is answered at once is never watched: to begin and to end it would take longer
    than what a caller that goes could save.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._handling = cast("asyncio.Task[object]", asyncio.current_task())
        self._num_cancels = self._handling.cancelling()
        self._has_cancelled = False
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
            # What cancels a task holds its frame, which holds this: a cycle for each request, and
            # all that hangs on it, until the next full garbage collection.
            self._watching = None

    def is_over(self) -> bool:
        """Tell whether a cancellation is that of the watch, and of nobody else too."""
        return self._has_cancelled and self._handling.uncancel() <= self._num_cancels

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await _disconnected(self._request)
        self._has_cancelled = self._handling.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

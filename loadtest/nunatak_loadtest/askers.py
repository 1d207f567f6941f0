"""Who sends a request of a run, and what it notes of the answer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import httpx

from nunatak_client import AsyncClient
from nunatak_client.results import Timings


class Asker(Protocol):
    """Asks tasks about a text, once, and raises a `NunatakClientError` unless all answered."""

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        """Where the server spent the time, as far as it tells."""
        ...


class NunatakAsker:
    """The real client, without further attempts: a refusal is a refusal.

    It opens as many connections as requests are under way; a client that waits for a free
    connection would hold requests back that are due.
    """

    def __init__(self, server: str, *, timeout_s: float = 60.0) -> None:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = AsyncClient(
            server,
            timeout_s=timeout_s,
            retries=0,
            transport=httpx.AsyncHTTPTransport(limits=unlimited),
        )

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        """Ask one task by its own route, several in one request."""
        if len(tasks) == 1:
            return (await self._client.predict(tasks[0], text)).timings
        answer = await self._client.predict_many(text, tasks)
        for result in answer.results:
            result.require()
        return answer.timings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

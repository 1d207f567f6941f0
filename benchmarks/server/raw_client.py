"""A client for the load generator that costs little CPU time.

The client shares the machine with the measured server. The client therefore reads only the status,
the length and Retry-After of each answer.
"""

import asyncio
import gc
import json
import re
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http.client import OK, TOO_MANY_REQUESTS
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import uvloop

from nunatak_client import ApiError, ConnectionFailedError, InvalidResponseError

LENGTH = re.compile(rb"content-length: (\d+)")
RETRY_AFTER = re.compile(rb"retry-after: (\d+)")
# Codes of samples: the server answered 429, and an obeying client did not send the request.
REFUSED = "refused"
WITHHELD = "withheld"
ResultT = TypeVar("ResultT")


class Manner(StrEnum):
    """The reaction of a client to a refusal."""

    CARELESS = "careless"
    """The client keeps sending."""
    OBEYING = "obeying"
    """The client drops every request that is due before the time of Retry-After is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The read parts of an answer."""

    status: int
    retry_after_s: int


class Connection(asyncio.Protocol):
    """A kept-alive connection, for one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._came = b""

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future is done when the whole answer has arrived."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Find the end of the answer."""
        self._came += data
        head, end, body = self._came.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        self._came = b""
        wait = RETRY_AFTER.search(head)
        status = int(head[9:12])
        self._answer.set_result(Answer(status=status, retry_after_s=int(wait[1]) if wait else 0))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests that wait for an answer."""
        answer: asyncio.Future[Answer] | None = getattr(self, "_answer", None)
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionFailedError(f"closed before the answer: {exc}"))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Connections:
    """The connections of one client to one server, as many as are in use at once."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._idle: deque[Connection] = deque()

    async def ask(self, request: bytes) -> Answer:
        """Send one request; return the answer when it has arrived."""
        connection = self._idle.pop() if self._idle else await self._open()
        answer = await connection.ask(request)
        self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection


class RawClient:
    """One client with its own connections; each request asks one task."""

    def __init__(self, address: str, *, deadline_ms: int, manner: Manner = Manner.CARELESS) -> None:
        self._connections = Connections(address)
        self._deadline_ms = deadline_ms
        self._manner = manner
        self._silent_until = 0.0

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        """Ask the only task of `tasks`.

        Raises:
            ApiError: the server refuses the request, or the client obeys an earlier refusal.
            InvalidResponseError: the server answered something else than a prediction.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._silent_until:
            detail = "the time of Retry-After is not over"
            raise ApiError(code=WITHHELD, status=TOO_MANY_REQUESTS, detail=detail)
        (task,) = tasks
        answer = await self._connections.ask(request_of(task, text, self._deadline_ms))
        if answer.status == TOO_MANY_REQUESTS:
            if self._manner is Manner.OBEYING:
                silent_until = clock() + answer.retry_after_s
                self._silent_until = max(self._silent_until, silent_until)
            raise ApiError(code=REFUSED, status=TOO_MANY_REQUESTS, detail="no room")
        if answer.status != OK:
            raise InvalidResponseError(f"the server answered {answer.status}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.close()


def run_smoothly(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a load in a fast event loop, without garbage collection."""
    gc.collect()
    # Pauses of the garbage collection would count as pauses of the server.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.enable()


def request_of(task: str, text: str, deadline_ms: int) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps({"inputs": text}).encode()
    head = (
        f"POST /v1/tasks/{task}/predict HTTP/1.1\r\nhost: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-deadline-ms: {deadline_ms}\r\n\r\n"
    )
    return head.encode() + body

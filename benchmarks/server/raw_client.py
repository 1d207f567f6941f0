"""A client for the load generator that costs little CPU time.

The client shares the machine with the measured server. The client therefore reads only the status
and the length of each answer.
"""

import asyncio
import gc
import json
import re
from collections.abc import Coroutine, Sequence
from http.client import OK, TOO_MANY_REQUESTS
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import uvloop

from nunatak_client import ApiError, ConnectionFailedError, InvalidResponseError

LENGTH = re.compile(rb"content-length: (\d+)")
REFUSED = "refused"
"""The code of samples that the server answered with 429."""
ResultT = TypeVar("ResultT")


class RawClient:
    """One client with as many connections as are in use at once; each request asks one task."""

    def __init__(self, address: str, *, deadline_ms: int) -> None:
        self._address = urlsplit(address)
        self._deadline_ms = deadline_ms
        self._idle = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        """Ask the only task of `tasks`.

        Raises:
            ApiError: the server refuses the request.
            ConnectionFailedError: the connection ended before the answer.
            InvalidResponseError: the server answered something else than a prediction.
        """
        (task,) = tasks
        head = await self._head_of_answer(request_of(task, text, self._deadline_ms))
        status = int(head[9:12])
        if status == TOO_MANY_REQUESTS:
            raise ApiError(code=REFUSED, status=TOO_MANY_REQUESTS, detail="no room")
        if status != OK:
            raise InvalidResponseError(f"the server answered {status}")

    async def _head_of_answer(self, request: bytes) -> bytes:
        """Send a request; return the head when the whole answer has arrived."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            host, port = self._address.hostname, self._address.port
            reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionFailedError(f"closed before the answer: {error}") from error
        self._idle.append((reader, writer))
        return head

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection[1].close()


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
    body = json.dumps({"inputs": text}).encode()
    head = (
        f"POST /v1/tasks/{task}/predict HTTP/1.1\r\nhost: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-deadline-ms: {deadline_ms}\r\n\r\n"
    )
    return head.encode() + body

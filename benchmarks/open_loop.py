"""An open loop: requests leave when they are due, whatever became of those before.

Times run from when a request was due, so that a server that stands still is not asked less for it.
The client shares the processor with the server it measures, and so does as little as it can:
requests are made before the first is due, and answers are read as far as their status.
"""

import asyncio
import gc
import json
import random
import re
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http.client import OK, TOO_MANY_REQUESTS
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import uvloop

WORDS = tuple("parcel late lost green small where when paid twice broken tracking order".split())  # noqa: SIM905 - it reads better
NO_DEADLINE_MS = 60_000
LENGTH = re.compile(rb"content-length: (\d+)")
RETRY_AFTER = re.compile(rb"retry-after: (\d+)")
Result = TypeVar("Result")


class Manner(StrEnum):
    """What a client does when it is refused."""

    CARELESS = "careless"
    """It goes on as if nothing were."""
    OBEYING = "obeying"
    """It sends nothing until the time of Retry-After is over, and what was due then never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A request and the second at which it leaves."""

    at_s: float
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request; `service_s` runs from when it was really sent."""

    task: str
    due_s: float
    status: int
    response_s: float
    service_s: float

    @property
    def lag_s(self) -> float:
        """How late the client itself was."""
        return self.response_s - self.service_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """As much of an answer as is looked at."""

    status: int
    retry_after_s: int


class Connection(asyncio.Protocol):
    """A kept-alive connection, for one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._came = b""

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future is done when all of the answer has come."""
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
        """Fail what waits for an answer."""
        answer: asyncio.Future[Answer] | None = getattr(self, "_answer", None)
        if answer is not None and not answer.done():
            answer.set_exception(exc or ConnectionError("closed before the answer"))

    def close(self) -> None:
        """End."""
        self._transport.close()


class Connections:
    """The connections of one client to one server, as many as are in use at once."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._idle: deque[Connection] = deque()

    async def ask(self, request: bytes) -> Answer:
        """Send one request, and return its answer once that has come whole."""
        connection = self._idle.pop() if self._idle else await self._open()
        answer = await connection.ask(request)
        self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection


def poisson(task: str, *, per_s: float, seconds: float, draw: random.Random) -> list[Due]:
    """Requests for a task at random times, so many a second on average."""
    due, at_s = list[Due](), draw.expovariate(per_s)
    while at_s < seconds:
        due.append(Due(at_s=at_s, task=task))
        at_s += draw.expovariate(per_s)
    return due


def new_text(draw: random.Random) -> str:
    """A short text that no cache has seen, of about 16 tokens."""
    return f"{draw.randrange(10**4)} " + " ".join(draw.choices(WORDS, k=11))


def send(
    address: str,
    due: Sequence[Due],
    *,
    seed: int,
    deadline_ms: int = NO_DEADLINE_MS,
    manner: Manner = Manner.CARELESS,
    start: float | None = None,
) -> list[Outcome]:
    """Send every request when it is due, and wait for all answers; one client sends them all.

    Dues count from `start`, a reading of `time.perf_counter`, or from when all requests are made.
    """
    client = _Client(address, deadline_ms=deadline_ms, manner=manner)
    return _run(client.send(sorted(due, key=lambda it: it.at_s), random.Random(seed), start))


def saturate(address: str, *tasks: str, seconds: float, at_once: int, seed: int) -> float:
    """Return the answers per second while so many requests, of all tasks, are always under way."""
    return _run(_saturate(address, tasks, seconds, at_once, seed))


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    gc.collect()
    # Its pauses would pass for the server's.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.enable()


class _Client:
    """Whoever sends requests, from connections of its own."""

    def __init__(self, address: str, *, deadline_ms: int, manner: Manner) -> None:
        self._connections = Connections(address)
        self._deadline_ms = deadline_ms
        self._manner = manner
        self._silent_until = 0.0

    async def send(
        self, due: Sequence[Due], draw: random.Random, start: float | None
    ) -> list[Outcome]:
        requests = [request_of(it.task, new_text(draw), self._deadline_ms) for it in due]
        start = start or time.perf_counter()
        sent = list[asyncio.Task[Outcome]]()
        for it, request in zip(due, requests, strict=True):
            wait_s = start + it.at_s - time.perf_counter()
            await asyncio.sleep(max(0.0, wait_s))
            if start + it.at_s >= self._silent_until:
                sent.append(asyncio.create_task(self._ask(it, request, start)))
        outcomes = [await task for task in sent]
        self._connections.close()
        return outcomes

    async def _ask(self, it: Due, request: bytes, start: float) -> Outcome:
        sent = time.perf_counter()
        answer = await self._connections.ask(request)
        now = time.perf_counter()
        if self._manner is Manner.OBEYING and answer.status == TOO_MANY_REQUESTS:
            self._silent_until = max(self._silent_until, now + answer.retry_after_s)
        return Outcome(
            task=it.task,
            due_s=it.at_s,
            status=answer.status,
            response_s=now - start - it.at_s,
            service_s=now - sent,
        )


async def _saturate(
    address: str, tasks: Sequence[str], seconds: float, at_once: int, seed: int
) -> float:
    connections, draw = Connections(address), random.Random(seed)
    end = time.perf_counter() + seconds

    async def repeat() -> int:
        count = 0
        while time.perf_counter() < end:
            request = request_of(draw.choice(tasks), new_text(draw), NO_DEADLINE_MS)
            answer = await connections.ask(request)
            count += answer.status == OK and time.perf_counter() < end
        return count

    counts = await asyncio.gather(*(repeat() for _ in range(at_once)))
    connections.close()
    return sum(counts) / seconds


def request_of(task: str, text: str, deadline_ms: int) -> bytes:
    """The bytes of a request."""
    body = json.dumps({"inputs": text}).encode()
    head = (
        f"POST /v1/tasks/{task}/predict HTTP/1.1\r\nhost: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-deadline-ms: {deadline_ms}\r\n\r\n"
    )
    return head.encode() + body

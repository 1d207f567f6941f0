"""An open loop: requests leave when they are due, whatever became of those before.

Times run from when a request was due, so that a server that stands still is not asked less for it.
The client is a few lines on sockets, for it shares the processor with the server it measures.
"""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

WORDS = tuple("parcel late lost green small where when paid twice broken tracking order".split())  # noqa: SIM905 - it reads better
MAX_CONNECTIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A request and the second at which it leaves."""

    at_s: float
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request; `refused_s` runs from when it was really sent."""

    task: str
    due_s: float
    status: int
    response_s: float
    service_s: float

    @property
    def lag_s(self) -> float:
        """How late the client itself was."""
        return self.response_s - self.service_s


class Connections:
    """Kept-alive connections to one server, as many as are in use at once."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def post(self, path: str, body: dict[str, Any], headers: str = "") -> int:
        """Send one request, and return the status of its answer once that has come whole."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: benchmark\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n{headers}\r\n"
        )
        connection = self._idle.pop() if self._idle else await self._open()
        reader, writer = connection
        writer.write(head.encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        lines = answer.decode().lower().split("\r\n")
        (length,) = [line.partition(":")[2] for line in lines if line.startswith("content-length")]
        await reader.readexactly(int(length))
        self._idle.append(connection)
        return int(lines[0].split()[1])

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)


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


def send(address: str, due: Sequence[Due], *, deadline_ms: int, seed: int) -> list[Outcome]:
    """Send every request when it is due, and wait for all answers."""
    return asyncio.run(_send(address, sorted(due, key=lambda it: it.at_s), deadline_ms, seed))


def saturate(address: str, task: str, *, seconds: float, at_once: int, seed: int) -> float:
    """Return the answers per second while so many requests are always under way."""
    return asyncio.run(_saturate(address, task, seconds, at_once, seed))


async def _send(address: str, due: Sequence[Due], deadline_ms: int, seed: int) -> list[Outcome]:
    connections, draw, start = Connections(address), random.Random(seed), time.perf_counter()

    async def ask(it: Due, text: str) -> Outcome:
        sent = time.perf_counter()
        status = await _ask(connections, it.task, text, deadline_ms)
        now = time.perf_counter()
        return Outcome(
            task=it.task,
            due_s=it.at_s,
            status=status,
            response_s=now - start - it.at_s,
            service_s=now - sent,
        )

    sent = list[asyncio.Task[Outcome]]()
    for it in due:
        wait_s = start + it.at_s - time.perf_counter()
        await asyncio.sleep(max(0.0, wait_s))
        sent.append(asyncio.create_task(ask(it, new_text(draw))))
    outcomes = [await task for task in sent]
    connections.close()
    return outcomes


async def _saturate(address: str, task: str, seconds: float, at_once: int, seed: int) -> float:
    connections, draw = Connections(address), random.Random(seed)
    end = time.perf_counter() + seconds

    async def repeat() -> int:
        count = 0
        while time.perf_counter() < end:
            status = await _ask(connections, task, new_text(draw), 60_000)
            count += status == 200 and time.perf_counter() < end
        return count

    counts = await asyncio.gather(*(repeat() for _ in range(at_once)))
    connections.close()
    return sum(counts) / seconds


async def _ask(connections: Connections, task: str, text: str, deadline_ms: int) -> int:
    path, header = f"/v1/tasks/{task}/predict", f"x-deadline-ms: {deadline_ms}\r\n"
    return await connections.post(path, {"inputs": text}, header)


def of_tasks(outcomes: Sequence[Outcome], prefix: str) -> Iterator[Outcome]:
    """Return the outcomes of tasks whose names begin so."""
    return (it for it in outcomes if it.task.startswith(prefix))

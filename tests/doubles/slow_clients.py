"""Slow clients of every kind, next to normal clients."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import cast

import httpx

from doubles.raw_request import END, GOOD_BODY, PREDICT, place_of, post

PAUSE_S = 0.2
HALF_HEAD = f"POST {PREDICT} HTTP/1.1\r\nhost: test\r\nx-half: ".encode()
HALF_BODY = post(GOOD_BODY)[: -len(GOOD_BODY) // 2]
UNREAD = (
    f"GET /openapi.json HTTP/1.1\r\nhost: test\r\nx-request-id: {'a' * 64}\r\n\r\n".encode() * 200
)
GET_LIVENESS = END.join([b"GET /livez HTTP/1.1", b"host: test", b"", b""])
OFFER = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The results of the normal requests, and of the slow connections."""

    answered: int
    failures: tuple[str, ...]
    """The reason of each failed request."""
    seconds: tuple[float, ...]
    """Seconds of each request, answered or not."""

    @property
    def failed(self) -> int:
        return len(self.failures)


async def _idle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def _half_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HALF_HEAD)
    await reader.read()


async def _half_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HALF_BODY)
    await reader.read()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send byte after byte, of a body that never comes to its end."""
    writer.write(post(b" " * 100_000)[:-100_000])
    while not reader.at_eof():
        writer.write(b" ")
        await writer.drain()
        await _read_for_a_while(reader)


async def _drip_unasked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send byte after byte of a body that no route reads, also after the answer."""
    writer.write(b"GET /livez HTTP/1.1\r\nhost: test\r\ncontent-length: 100000\r\n\r\n")
    while not reader.at_eof():
        writer.write(b" ")
        await writer.drain()
        await _read_for_a_while(reader)


async def _read_for_a_while(reader: asyncio.StreamReader) -> None:
    # `wait_for` would lose a cancellation that arrives together with the awaited result.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_S):
            await reader.read(65_536)


async def _unread(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Request a large answer, and read nothing of it."""
    cast("asyncio.Transport", writer.transport).pause_reading()
    writer.write(UNREAD)
    await writer.drain()
    # Only a write shows that a connection was reset.
    while True:
        await asyncio.sleep(PAUSE_S)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n")
        await writer.drain()


async def _kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask once, and keep the connection."""
    writer.write(GET_LIVENESS)
    while await reader.read(65_536):
        pass


async def _offer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Offer to upgrade, with a body that looks like a request, and keep the connection."""
    writer.write(post(GET_LIVENESS, headers=OFFER).replace(b"connection: close\r\n", b""))
    while await reader.read(65_536):
        pass


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BEHAVIOURS: tuple[Behaviour, ...] = (_idle, _half_head, _half_body, _drip, _drip_unasked, _unread)
HOLDING: tuple[Behaviour, ...] = (_idle, _kept, _kept, _offer)
"""Behaviours that a server allows until it has too many connections."""


@asynccontextmanager
async def slow_clients(
    address: str, count: int, behaviours: tuple[Behaviour, ...] = BEHAVIOURS
) -> AsyncGenerator[set[asyncio.Task[None]]]:
    """Open `count` slow connections; each is opened again when the server closes it."""
    tasks = {
        asyncio.create_task(_keep_slow(address, behaviours[index % len(behaviours)]))
        for index in range(count)
    }
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def slow_process(
    address: str, count: int, behaviours: tuple[Behaviour, ...] = BEHAVIOURS
) -> Generator[None]:
    """Keep `count` slow connections from another process, which takes no time of this process.

    Raises:
        RuntimeError: some connections could not be opened again.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_stay_slow, args=(address, count, behaviours, theirs))
    process.start()
    # The end of the pipe is visible only if this process closes its own copy.
    theirs.close()
    try:
        ours.recv()
        yield
        ours.send(None)
        if num_lost := ours.recv():
            raise RuntimeError(f"{num_lost} of {count} slow clients could not connect again")
    finally:
        process.kill()
        process.join()


def _stay_slow(
    address: str, count: int, behaviours: tuple[Behaviour, ...], other: Connection
) -> None:
    async def stay() -> None:
        async with slow_clients(address, count, behaviours) as tasks:
            other.send(None)
            await asyncio.to_thread(other.recv)
            other.send(sum(task.done() for task in tasks))

    asyncio.run(stay())


async def _keep_slow(address: str, behave: Behaviour) -> None:
    while True:
        await be_slow_once(address, behave)
        await asyncio.sleep(PAUSE_S)


async def be_slow_once(address: str, behave: Behaviour) -> None:
    """Open one slow connection, and return when the server closes it."""
    reader, writer = await asyncio.open_connection(*place_of(address))
    try:
        with contextlib.suppress(ConnectionError):
            await behave(reader, writer)
    finally:
        writer.transport.abort()


async def normal_traffic(address: str, *, num_requests: int, at_once: int) -> Tally:
    """Ask like normal clients; every answer must be right."""
    clock = asyncio.get_running_loop().time
    remaining = iter(range(num_requests))
    answered, failures, seconds = 0, list[str](), list[float]()

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal answered
        for number in remaining:
            started = clock()
            try:
                answer = await client.post(PREDICT, json={"inputs": "where is my parcel?"})
                if answer.status_code == 200 and len(answer.json()["outputs"]) > 0:
                    answered += 1
                else:
                    failures.append(f"{number}: {answer.status_code} {answer.text}")
            except httpx.HTTPError as error:
                failures.append(f"{number}: {error!r} after {clock() - started:.3f} s")
            seconds.append(clock() - started)

    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        await asyncio.gather(*(ask(client) for _ in range(at_once)))
    return Tally(answered=answered, failures=tuple(failures), seconds=tuple(seconds))

"""Connections without sockets: the requests in their bytes, and the limit of their number."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Scope as AnyScope
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.server import ServerState

from nunatak_server.http.protocol import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    PIECE_BYTES,
    BoundedProtocol,
    bounded_protocol,
)

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: here\r\n\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
OFFERS = {
    "h2c": H2C,
    "websocket": b"Connection: upgrade\r\nUpgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "tls": b"Connection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/1.1\r\n",
    "twice": b"connection: keep-alive, Upgrade\r\nUPGRADE: h2c\r\nupgrade: websocket\r\n",
    "no-connection": b"upgrade: h2c\r\n",
    "expect": H2C + b"expect: 100-continue\r\n",
}
LENGTH = b"content-length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED)
CHUNKS = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
BODIES = {"length": LENGTH, "chunks": CHUNKS, "none": b"\r\n"}

HIGH_WATER = 10_000
"""Limit of unsent bytes. Above the limit, the application must pause."""
Seen = tuple[str, str, bytes]
"""Method, path and body of a request."""


class Caller(asyncio.Transport):
    """A caller that reads little, and its connection."""

    def __init__(
        self, kind: type[BoundedProtocol], config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__()
        self.answered = b""
        self.is_closed = False
        self.protocol = kind(config, state, {})
        self.protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answered += bytes(data)
        if len(self.answered) > HIGH_WATER and not self.protocol.flow.write_paused:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None:
        """Go on: a test sends whatever it wants."""

    def resume_reading(self) -> None:
        """Go on."""


class Server:
    """An application that records its requests, without sockets."""

    def __init__(self, **limits: Any) -> None:  # noqa: ANN401 - of the protocol
        self.seen = list[Seen]()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._kind = bounded_protocol(receive_timeout_s=10, **limits)
        self._config = uvicorn.Config(
            self._record, http=self._kind, interface="asgi3", log_config=None
        )
        self._config.load()
        self._state = ServerState()

    def open(self) -> Caller:
        return Caller(self._kind, self._config, self._state)

    async def settle(self) -> list[Seen]:
        """Answer all whole requests, and return the requests of the application."""
        while tasks := list(self._state.tasks):
            await asyncio.gather(*tasks)
            # A task leaves the set in a step of its own.
            await asyncio.sleep(0)
        return self.seen

    async def _record(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        assert scope["type"] == "http"
        body, is_open = b"", True
        while is_open:
            message = await receive()
            assert message["type"] == "http.request"
            body, is_open = body + message["body"], message["more_body"]
        self.seen.append((scope["method"], scope["path"], body))
        await self.may_answer.wait()
        headers = [(b"content-length", b"0")]
        await send(
            {"type": "http.response.start", "status": 200, "headers": headers, "trailers": False}
        )
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def seen_of(server: Server, parts: Sequence[bytes]) -> list[Seen]:
    """Return the requests that an application gets from these segments of one caller."""
    server.seen.clear()
    caller = server.open()
    for part in parts:
        caller.protocol.data_received(part)
        await asyncio.sleep(0)
    seen = list(await server.settle())
    caller.protocol.connection_lost(None)
    return seen


def posted(offer: bytes, body: bytes, path: bytes = b"/asked") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: here\r\n%b%b" % (path, offer, body)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("offer", OFFERS)
async def test_a_body_after_an_offer_is_a_body_however_its_bytes_arrive(
    offer: str, body: str
) -> None:
    data = posted(OFFERS[offer], BODIES[body]) + b"GET /next HTTP/1.1\r\nhost: here\r\n\r\n"
    content = b"" if body == "none" else SMUGGLED
    expected = [("POST", "/asked", content), ("GET", "/next", b"")]

    server = Server()
    for cut in range(1, len(data)):
        assert await seen_of(server, [data[:cut], data[cut:]]) == expected
    assert await seen_of(server, [data[at : at + 1] for at in range(len(data))]) == expected


async def test_offers_in_one_segment_are_all_ignored() -> None:
    paths = [b"/%d" % number for number in range(20)]
    data = b"".join(posted(H2C, (LENGTH, CHUNKS)[len(it) % 2], it) for it in paths)

    assert await seen_of(Server(), [data]) == [("POST", it.decode(), SMUGGLED) for it in paths]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /asked\r\n\r\n", id="0.9"),
        pytest.param(b"GET /asked HTTP/2.0\r\nhost: here\r\n\r\n", id="2.0"),
        pytest.param(b"POST /asked HTTP/2.0\r\n" + H2C + LENGTH, id="2.0-with-offer"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="preface"),
        pytest.param(b"CONNECT here:80 HTTP/1.1\r\nhost: here\r\n\r\n" + SMUGGLED, id="connect"),
        pytest.param(posted(H2C + b"x: y\r\n" * MAX_HEADERS, LENGTH), id="many-headers"),
        *(
            pytest.param(posted(b"transfer-encoding: " + it, CHUNKS), id=f"coded-{place}")
            for place, it in enumerate((b"gzip\r\n", b"chunked\r\n", b"\r\n"))
        ),
        pytest.param(posted(b"", CHUNKS.replace(b": ", b": gzip, ")), id="coded-in-one-field"),
        pytest.param(posted(H2C + b"transfer-encoding: chunked\r\n", LENGTH), id="two-lengths"),
    ],
)
async def test_a_head_of_another_protocol_is_refused_and_nothing_after_it_is_read(
    data: bytes,
) -> None:
    server = Server()
    caller = server.open()

    caller.protocol.data_received(data)

    assert await server.settle() == []

    assert caller.answered.startswith(b"HTTP/1.1 400")
    assert caller.answered.count(b"HTTP/1.1 ") == 1
    assert caller.is_closed


async def test_a_caller_that_closes_is_not_asked_for_more_because_of_an_offer() -> None:
    server = Server()
    caller = server.open()

    caller.protocol.data_received(posted(H2C.replace(b"Upgrade,", b"Upgrade, close,"), LENGTH))
    caller.protocol.data_received(SMUGGLED)

    assert await server.settle() == [("POST", "/asked", SMUGGLED)]
    assert b"connection: close\r\n" in caller.answered
    assert caller.is_closed


@pytest.mark.parametrize("num_bytes", [PIECE_BYTES, MAX_HEAD_BYTES + 2 * PIECE_BYTES, 200_000])
async def test_an_extension_of_a_chunk_is_bounded_also_within_one_read(num_bytes: int) -> None:
    server = Server()
    caller = server.open()
    head = b"POST /asked HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"

    caller.protocol.data_received(head + b"1;" + b"x" * num_bytes + b"\r\ny\r\n0\r\n\r\n")

    if num_bytes <= MAX_HEAD_BYTES:
        assert await server.settle() == [("POST", "/asked", b"y")]
    else:
        assert caller.answered.startswith(b"HTTP/1.1 400")


async def test_few_requests_wait_on_one_connection() -> None:
    server = Server()
    server.may_answer.clear()
    patient, flooding = server.open(), server.open()

    patient.protocol.data_received(SMUGGLED * MAX_PIPELINED)
    flooding.protocol.data_received(SMUGGLED * 5000)

    assert len(flooding.protocol.pipeline) <= MAX_PIPELINED
    server.may_answer.set()
    await server.settle()
    assert patient.answered.count(b"HTTP/1.1 200") == MAX_PIPELINED
    assert flooding.is_closed


async def test_refusals_that_nobody_takes_do_not_pile_up() -> None:
    def refusal_of(_: AnyScope) -> Response:
        return Response(b"not now", 429)

    caller = Server(refusal_of=refusal_of).open()

    for _ in range(1000):
        caller.protocol.data_received(posted(b"", LENGTH))

    assert HIGH_WATER < len(caller.answered) <= 2 * HIGH_WATER
    caller.protocol.connection_lost(None)


async def ask(server: Server, caller: Caller) -> None:
    caller.protocol.data_received(SMUGGLED)
    await server.settle()


async def test_over_the_limit_the_longest_wait_ends_and_the_newest_caller_is_answered() -> None:
    server = Server(max_connections=3)
    silent, kept, halfway = (server.open() for _ in range(3))
    # Each later sign of life begins a new wait.
    halfway.protocol.data_received(SMUGGLED[:10])
    await ask(server, kept)

    ended = list[list[bool]]()
    for _ in range(4):
        await ask(server, server.open())
        ended.append([it.is_closed for it in (silent, halfway, kept)])

    assert ended == [[True, False, False], [True, True, False], *[[True] * 3] * 2]
    assert len(server.seen) == 5


async def test_a_flood_in_one_turn_of_the_loop_stays_within_the_limit() -> None:
    server = Server(max_connections=3)

    callers = [server.open() for _ in range(100)]

    assert [it.is_closed for it in callers] == [True] * 97 + [False] * 3


async def test_a_request_in_work_keeps_its_connection_over_the_limit() -> None:
    server = Server(max_connections=2)
    server.may_answer.clear()
    working, uploading = server.open(), server.open()
    working.protocol.data_received(SMUGGLED)
    uploading.protocol.data_received(posted(b"", LENGTH)[:-1])

    first, second = server.open(), server.open()

    assert (working.is_closed, uploading.is_closed) == (False, True)
    assert (first.is_closed, second.is_closed) == (True, False)
    second.protocol.data_received(SMUGGLED)
    await asyncio.sleep(0)
    assert server.open().is_closed
    server.may_answer.set()
    await server.settle()
    assert b"200 OK" in working.answered
    assert b"200 OK" in second.answered
    assert not server.open().is_closed

"""Deadlines of connections judge the caller, not a loop that stood still; who goes is let go."""

import asyncio
import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Generator

import pytest
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from nunatak_server.protocol import bounded_protocol, caller_has_gone

DEADLINE_S = 0.3
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
WAIT = b"POST /wait HTTP/1.1\r\nHost: here\r\ncontent-length: 5\r\n\r\n"
ended = deque[str]()
"""How requests that wait came to their end."""


async def app(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "http"
    if scope["path"] == "/stall":
        time.sleep(3 * DEADLINE_S)  # noqa: ASYNC251 - it is to stand still
    if scope["path"] == "/wait":
        try:
            await asyncio.sleep(DEADLINE_S)
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("gone" if caller_has_gone(dict(scope)) else "cancelled")
            return
    await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": False})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture(name="port", scope="module", params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Generator[int]:
    config = uvicorn.Config(
        app,
        port=0,
        lifespan="off",
        log_level="error",
        loop=request.param,
        http=bounded_protocol(receive_timeout_s=DEADLINE_S),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def stalled(port: int) -> threading.Thread:
    def stall() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/stall")
        connection.getresponse().read()
        connection.close()

    thread = threading.Thread(target=stall)
    thread.start()
    return thread


def test_a_head_that_came_while_the_loop_stood_still_is_read(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        caller.sendall(REQUEST)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        time.sleep(DEADLINE_S / 3)
        stall = stalled(port)
        time.sleep(DEADLINE_S / 3)
        caller.sendall(REQUEST)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
        stall.join()


def test_a_head_that_does_not_come_ends_the_connection(port: int) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        caller.sendall(REQUEST[:10])
        assert caller.recv(100) == b""
    assert time.monotonic() - began >= DEADLINE_S


def end_of_next(count: int) -> list[str]:
    until = time.monotonic() + 10
    while len(ended) < count and time.monotonic() < until:
        time.sleep(0.01)
    return sorted(ended)


@pytest.mark.parametrize("body", [b"", b"12345"])
def test_what_is_done_for_a_caller_that_has_gone_is_cancelled(port: int, body: bytes) -> None:
    ended.clear()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as staying,
        socket.create_connection(("127.0.0.1", port), timeout=10) as going,
    ):
        staying.sendall(WAIT + b"12345")
        going.sendall(WAIT + body)
        time.sleep(DEADLINE_S / 3)
        going.close()
        assert end_of_next(2) == ["answered", "gone"]
        assert staying.recv(100).startswith(b"HTTP/1.1 200")


def test_a_caller_that_goes_after_its_answer_was_answered(port: int) -> None:
    ended.clear()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        caller.sendall(WAIT + b"12345")
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    time.sleep(DEADLINE_S / 3)
    assert end_of_next(1) == ["answered"]

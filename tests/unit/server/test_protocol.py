"""Deadlines of connections judge the caller, not a loop that stood still."""

import http.client
import socket
import threading
import time
from collections.abc import Generator

import pytest
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from nunatak_server.protocol import bounded_protocol

DEADLINE_S = 0.3
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def app(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "http"
    if scope["path"] == "/stall":
        time.sleep(3 * DEADLINE_S)  # noqa: ASYNC251 - it is to stand still
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

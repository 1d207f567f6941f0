"""Laws of the protocol: time limits of callers, cancelled requests, and early refusals."""

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Generator

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Scope as AnyScope
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from nunatak_server.http import protocol
from nunatak_server.http.protocol import MAX_HEAD_BYTES, bounded_protocol, caller_has_gone

DEADLINE_S = 0.3
KEEP_ALIVE_S = 0.5
PATIENCE_S = 30
"""Another process may hold the CPU for seconds."""
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
REFUSED = b"POST /refused HTTP/1.1\r\nHost: here\r\ncontent-length: 5\r\n\r\n"
WAIT = b"POST /wait HTTP/1.1\r\nHost: here\r\ncontent-length: 5\r\n\r\n"
CHUNKED_WAIT = (
    b"POST /wait HTTP/1.1\r\nHost: here\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n"
)
BODIES = {"/headers": b"whole"}
"""Answers with a length."""
TRAILER = b"0\r\nx-late: y\r\n"
ended = deque[str]()
"""The ends of waiting requests."""
seen = deque[bytes]()
"""Names of the headers of a request, after its body."""
calls = deque[str]()
"""Requests that the check of heads should have refused."""
leaving = threading.Event()
"""Whether the server asks its callers to leave."""


def refusal_of(scope: AnyScope) -> Response | None:
    if scope["path"] == "/broken":
        raise ZeroDivisionError
    return Response(b"not now", 429, {"x-why": "full"}) if scope["path"] == "/refused" else None


def answer_unreadable() -> Response:
    return Response(b"unread", 400, {"x-why": "unread"})


async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    assert scope["type"] == "http"
    if scope["path"] == "/headers":
        while (await receive()).get("more_body"):
            pass
        seen.extend(name for name, _ in scope["headers"])
    if scope["path"] == "/refused":
        calls.append(scope["path"])
    if scope["path"] == "/stall":
        time.sleep(3 * DEADLINE_S)  # noqa: ASYNC251 - blocks the loop on purpose
    if scope["path"] == "/wait":
        try:
            await asyncio.sleep(DEADLINE_S)
            ended.append("answered")
        except asyncio.CancelledError:
            ended.append("gone" if caller_has_gone(dict(scope)) else "cancelled")
            return
    body = BODIES.get(scope["path"], b"")
    headers = [(b"content-length", b"%d" % len(body))][: len(body)]
    await send(
        {"type": "http.response.start", "status": 200, "headers": headers, "trailers": False}
    )
    if scope["path"] == "/slow":
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.sleep(DEADLINE_S)
    await send({"type": "http.response.body", "body": body, "more_body": False})


@pytest.fixture(name="port", scope="module", params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Generator[int]:
    config = uvicorn.Config(
        app,
        port=0,
        lifespan="off",
        log_level="error",
        loop=request.param,
        timeout_keep_alive=KEEP_ALIVE_S,  # pyrefly: ignore[bad-argument-type] - passed on as a delay
        http=bounded_protocol(
            receive_timeout_s=DEADLINE_S,
            refusal_of=refusal_of,
            answer_unreadable=answer_unreadable,
            is_leaving=leaving.is_set,
        ),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(name="caller")
def connect(port: int) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        yield caller


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


@pytest.fixture
def leaves() -> Generator[None]:
    leaving.set()
    yield
    leaving.clear()


@pytest.mark.usefixtures("leaves")
@pytest.mark.parametrize("request_bytes", [REQUEST, REFUSED + b"12345"], ids=["answer", "refusal"])
def test_a_server_that_leaves_answers_and_says_that_the_connection_closes(
    caller: socket.socket, request_bytes: bytes
) -> None:
    caller.sendall(request_bytes)
    came = received(caller, until=b"\r\n\r\n")
    while more := caller.recv(1000):
        came += more

    assert came.startswith(b"HTTP/1.1 ")
    assert b"connection: close\r\n" in came.lower()


@pytest.mark.usefixtures("leaves")
@pytest.mark.parametrize("path", [b"/", b"/refused"], ids=["answer", "refusal"])
def test_a_caller_that_still_sends_gets_the_last_answer_of_its_connection(
    caller: socket.socket, path: bytes
) -> None:
    head = WAIT.replace(b"/wait", path).replace(b"length: 5", b"length: 100")
    caller.sendall(head)
    came = received(caller, until=b"\r\n\r\n")
    for _ in range(10):
        caller.sendall(b"unread    ")
        time.sleep(0.005)
    # A rest that was not read would reset the connection.
    came += all_of(caller)

    assert came.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in came.lower()


@pytest.mark.usefixtures("leaves")
def test_a_body_without_end_is_discarded_for_a_short_time(
    caller: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", DEADLINE_S)
    began = time.monotonic()
    caller.sendall(CHUNKED_WAIT.replace(b"/wait", b"/"))
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < began + PATIENCE_S:
            caller.sendall(b"5\r\n12345\r\n")
            time.sleep(0.01)

    assert 0.9 * DEADLINE_S < time.monotonic() - began < PATIENCE_S


def received(caller: socket.socket, *, until: bytes) -> bytes:
    came = b""
    while until not in came:
        came += caller.recv(1000)
    return came


def test_a_refusal_waits_for_no_body_and_keeps_the_connection(caller: socket.socket) -> None:
    for _ in range(2):
        caller.sendall(REFUSED)
        answer = received(caller, until=b"not now")
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"\r\nx-why: full\r\n" in answer
        assert b"\r\ncontent-length: 7\r\n" in answer
        assert b"\r\ndate: " in answer
        caller.sendall(b"GET /")
    caller.sendall(REQUEST)
    assert caller.recv(1000).startswith(b"HTTP/1.1 200")
    assert not calls


def test_a_head_that_cannot_be_looked_at_is_left_to_the_application(caller: socket.socket) -> None:
    caller.sendall(REQUEST.replace(b"GET /", b"GET /broken"))
    assert caller.recv(100).startswith(b"HTTP/1.1 200")


def all_of(caller: socket.socket) -> bytes:
    came = b""
    while chunk := caller.recv(1000):
        came += chunk
    return came


@pytest.mark.parametrize(
    "useless",
    [
        pytest.param(TRAILER + b"x: " + b"y" * MAX_HEAD_BYTES, id="large-trailer"),
        pytest.param(TRAILER + b"x: y\r\n" * (MAX_HEAD_BYTES // 6), id="many-trailers"),
        pytest.param(b"5;" + b"y" * MAX_HEAD_BYTES, id="large-extension"),
    ],
)
def test_what_comes_around_a_body_is_bounded_as_heads_are(
    caller: socket.socket, useless: bytes
) -> None:
    ended.clear()
    caller.sendall(CHUNKED_WAIT)
    time.sleep(DEADLINE_S / 10)
    caller.sendall(useless[: MAX_HEAD_BYTES + 1])
    assert all_of(caller).startswith(b"HTTP/1.1 400")
    assert end_of_next(1) == ["gone"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_fields_after_a_body_are_no_headers(caller: socket.socket, *, is_whole: bool) -> None:
    seen.clear()
    head, body = CHUNKED_WAIT.replace(b"/wait", b"/headers").split(b"5\r\n", maxsplit=1)
    parts = [head, b"5\r\n" + body + TRAILER + b"\r\n"]
    for _ in range(2):
        for part in [b"".join(parts)] if is_whole else parts:
            caller.sendall(part)
            time.sleep(DEADLINE_S / 10)
        assert received(caller, until=b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert list(seen) == [b"host", b"transfer-encoding"] * 2


@pytest.mark.parametrize(
    ("path", "until", "left"),
    [(b"/slow", b"begun", {b"", b"\r\n"}), (b"/wait", b"", {b""})],
    ids=["in-the-midst-of-an-answer", "before-an-answer"],
)
def test_what_is_no_request_is_not_answered_while_an_answer_is_due(
    caller: socket.socket, path: bytes, until: bytes, left: set[bytes]
) -> None:
    caller.sendall(WAIT.replace(b"/wait", path) + b"12345")
    received(caller, until=until)
    time.sleep(DEADLINE_S / 4)
    caller.sendall(b"\0")
    assert all_of(caller) in left


def test_refusals_and_answers_of_one_connection_keep_their_order(caller: socket.socket) -> None:
    caller.sendall(WAIT + b"12345" + REFUSED + b"12345" + REQUEST)
    answers = received(caller, until=b"not now")
    while answers.count(b"HTTP/1.1") < 3:
        answers += caller.recv(1000)
    statuses = [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"429", b"200"]


def test_a_refused_caller_that_then_does_nothing_is_let_go(port: int) -> None:
    bodies = (b"", b"123", b"12345")
    with contextlib.ExitStack() as stack:
        place = ("127.0.0.1", port)
        callers = [stack.enter_context(socket.create_connection(place, timeout=10)) for _ in bodies]
        for caller in callers:
            caller.sendall(REFUSED)
            received(caller, until=b"not now")
        time.sleep(DEADLINE_S / 3)
        for caller, body in zip(callers, bodies, strict=True):
            caller.sendall(body)
        assert [caller.recv(100) for caller in callers] == [b"", b"", b""]


@pytest.mark.parametrize(("path", "body"), [("slow", b"begun"), ("headers", b"whole")])
def test_an_old_caller_gets_no_chunks_and_no_interim_answer(
    caller: socket.socket, path: str, body: bytes
) -> None:
    caller.sendall(f"POST /{path} HTTP/1.0\r\nexpect: 100-continue\r\n".encode())
    caller.sendall(b"content-length: 5\r\nconnection: keep-alive\r\n\r\n12345")
    head, _, rest = all_of(caller).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in head
    assert rest == body

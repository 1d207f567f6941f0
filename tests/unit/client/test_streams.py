"""The client's errors for streams that break the contract."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from nunatak_client import (
    AuthenticationError,
    Client,
    ConnectionFailedError,
    InvalidInputError,
    InvalidResponseError,
)
from nunatak_client.transport import VerdictExchange
from nunatak_contract.enums import StreamEventKind
from nunatak_contract.wire import Score, StreamEvent

REFUSAL = b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
OUTPUTS = b'[{"label": "a", "score": 1}]'
LINE = b'{"reference": "tone", "task": "tone", "version": 3, "outputs": ' + OUTPUTS + b"}\n"


def client_of(*responses: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    left, requests = list(responses), list[httpx.Request]()

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    transport = httpx.MockTransport(handle)
    client = Client("http://tests.invalid", transport=transport, sleep=lambda _: None)
    return client, requests


def test_a_stream_that_ends_early_is_an_error_after_what_came() -> None:
    client, _ = client_of(httpx.Response(200, content=LINE))
    results = client.stream("hello", ["tone", "intent"])

    assert next(results).require().outputs
    with pytest.raises(InvalidResponseError, match="the stream ended"):
        next(results)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"results": []}\n'])
def test_a_line_that_is_no_result_is_an_error(line: bytes) -> None:
    client, _ = client_of(httpx.Response(200, content=line))

    with pytest.raises(InvalidResponseError):
        list(client.stream("hello", ["tone"]))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r"], ids=ascii)
@pytest.mark.parametrize("size", [1, 10_000])
def test_only_a_line_feed_ends_a_line(separator: str, size: int) -> None:
    text = f"one{separator}two"
    line = LINE.replace(b'"a"', json.dumps(text, ensure_ascii=ord(separator) < 32).encode())
    event = StreamEvent(event=StreamEventKind.TEXT, text=text).model_dump_json().encode()

    client, _ = client_of(httpx.Response(200, content=pieces(line, size)))
    (result,) = client.stream("hello", ["tone"])
    exchange = VerdictExchange(httpx.URL("http://tests.invalid"), {}, "guard")
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    events = [it for part in pieces(head + event + b"\n", size) for it in exchange.received(part)]

    assert result.require().outputs == ((Score(label=text, score=1),),)
    assert [it.text for it in events] == [text]


@pytest.mark.parametrize("policy", ["", ".", ".."])
def test_a_policy_that_would_change_the_path_is_refused(policy: str) -> None:
    with pytest.raises(InvalidInputError):
        VerdictExchange(httpx.URL("http://tests.invalid"), {}, policy)


def test_a_refusal_is_read_after_the_server_has_closed() -> None:
    closed = threading.Event()

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.sendall(REFUSAL)
        # What is not read yet makes this a reset of the connection.
        connection.close()
        closed.set()

    def chunks() -> Iterator[str]:
        assert closed.wait(10)
        yield from ("one", "two", "three")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(refuse, listener)
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")

        with pytest.raises(AuthenticationError):
            list(client.judge_stream("guard", chunks()))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def test_a_stream_is_tried_again_only_before_it_has_begun() -> None:
    busy = httpx.Response(429, headers={"retry-after": "0"}, content=b"{}")
    client, requests = client_of(busy, httpx.Response(200, content=LINE))

    assert len(list(client.stream("hello", ["tone"], routing_key="user-1"))) == 1
    assert [request.headers["accept"] for request in requests] == ["application/x-ndjson"] * 2
    assert requests[1].headers["x-routing-key"] == "user-1"

    broken, asked = client_of(httpx.ReadError("reset"), httpx.Response(200, content=LINE))
    with pytest.raises(ConnectionFailedError):
        list(broken.stream("hello", ["tone"]))
    assert len(asked) == 1

import contextlib
import json
import re
import socket
from collections.abc import Generator
from urllib.parse import urlsplit

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry
from nunatak_server.http.protocol import MAX_HEAD_BYTES

BODY = b'{"inputs": "hello"}'
HEAD = b"POST /v1/tasks/tone/predict HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
CANARY = "swordfish"
NAMED = f"x-request-id: {CANARY}\r\n".encode()
LARGE_HEAD = HEAD + NAMED + b"x: " + CANARY.encode() * 8000
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    backbone = tiny_backbone()
    settings = make_settings(receive_timeout_s=1, max_body_bytes=100_000)
    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        publish_tiny_task(registry, backbone)
        with running_server(backbone, registry, settings) as found:
            yield found


def open_socket(address: str) -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def talk(address: str, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    with open_socket(address) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65_536):
                received += chunk
    return received


def check_health(address: str) -> None:
    assert httpx.get(f"{address}/readyz").status_code == 200
    answer = httpx.post(f"{address}/v1/tasks/tone/predict", json={"inputs": "well?"})
    assert answer.status_code == 200


def test_a_whole_request_is_answered(address: str) -> None:
    length = f"content-length: {len(BODY)}\r\nconnection: close\r\n\r\n".encode()

    received = talk(address, HEAD + length + BODY)

    assert received.startswith(b"HTTP/1.1 200")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["task"] == "tone"


def test_a_silent_connection_is_closed(address: str) -> None:
    assert talk(address, b"") == b""
    check_health(address)


def test_half_a_head_is_closed(address: str) -> None:
    assert talk(address, HEAD) == b""
    check_health(address)


def test_half_a_body_is_refused_in_time(address: str) -> None:
    received = talk(address, HEAD + b"content-length: 1000\r\n\r\n" + BODY)

    assert received.startswith(b"HTTP/1.1 408")
    assert b"receive_timeout" in received
    check_health(address)


def test_a_connection_is_used_for_many_requests(address: str) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            answer = client.post(f"{address}/v1/tasks/tone/predict", json={"inputs": "hello"})
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(HEAD + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n", id="huge-header"),
        pytest.param(b"GET /" + b"a" * 1_000_000, id="huge-path"),
        pytest.param(HEAD + b"x: y\r\n" * 101 + b"\r\n", id="many-headers"),
        pytest.param(
            HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two-lengths",
        ),
        pytest.param(HEAD + b"content-length: -1\r\n\r\n", id="negative-length"),
        pytest.param(HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}", id="lengths"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="tls"),
        pytest.param(b"\0" * 100, id="zeros"),
    ],
)
def test_a_bad_head_is_refused_and_the_connection_closed(address: str, head: bytes) -> None:
    received = talk(address, head)

    assert received == b"" or received.startswith(b"HTTP/1.1 4")
    check_health(address)


def num_unread(address: str) -> float:
    metrics = httpx.get(f"{address}/metrics").text
    found = re.search(
        r'^nunatak_http_requests_total\{method="other",route="none",status="400"\} (\S+)$',
        metrics,
        flags=re.MULTILINE,
    )
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(f"GET /{CANARY} {CANARY}\r\n\r\n".encode(), id="line"),
        pytest.param(HEAD + NAMED + b"content-length: -1\r\n\r\n", id="length"),
        pytest.param(HEAD + NAMED + f"{CANARY}\r\n\r\n".encode(), id="no-colon"),
        pytest.param(HEAD + NAMED + f"{CANARY}: y\r\n".encode() * 101 + b"\r\n", id="many-headers"),
        pytest.param(LARGE_HEAD[: MAX_HEAD_BYTES + 1], id="large-head"),
        pytest.param(CHUNKED + NAMED + f"\r\n{CANARY}\r\n".encode(), id="chunk"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="tls"),
        pytest.param(b"\0" * 100, id="zeros"),
    ],
)
def test_what_cannot_be_read_is_answered_by_a_problem_that_repeats_nothing(
    address: str, data: bytes
) -> None:
    before = num_unread(address)

    received = talk(address, data)

    head, _, body = received.partition(b"\r\n\r\n")
    problem, lines = json.loads(body), head.decode().split("\r\n")
    assert (problem["status"], problem["code"]) == (400, "invalid_http")
    assert lines[0] == "HTTP/1.1 400 Bad Request"
    assert {
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        f"x-request-id: {problem['request_id']}",
        "connection: close",
    } < set(lines)
    assert CANARY not in received.decode()
    assert num_unread(address) == before + 1
    check_health(address)


@pytest.mark.parametrize("framing", ["declared", "chunked"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(address: str, framing: str) -> None:
    size = 10_000_000
    if framing == "declared":
        data = HEAD + f"content-length: {size}\r\n\r\n".encode() + b" " * size
    else:
        data = HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"10000\r\n" + b" " * 65_536 + b"\r\n"
        data += (b"10000\r\n" + b" " * 65_536 + b"\r\n") * 150

    received = talk(address, data)

    # If the sender still sends, a reset may arrive before the answer.
    assert received == b"" or received.startswith(b"HTTP/1.1 413")
    check_health(address)


def test_a_caller_that_hangs_up_disturbs_nobody(address: str) -> None:
    for _ in range(20):
        with open_socket(address) as connection:
            length = f"content-length: {len(BODY)}\r\n\r\n".encode()
            connection.sendall(HEAD + length + BODY)
    check_health(address)

import contextlib
import json
import re
import socket
from pathlib import Path

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.raw_request import place_of
from doubles.serving import make_settings
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry
from nunatak_server.app import create_app
from nunatak_server.engine.backbones import Backbones
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.protocol import MAX_HEAD_BYTES
from nunatak_server.processes.serving import DrainingServer
from nunatak_server.settings import ServerSettings

publish = publish_tiny_task
BODY = b'{"inputs": "hello"}'
HEAD = b"POST /v1/tasks/tone/predict HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
CANARY = "swordfish"
NAMED = f"x-request-id: {CANARY}\r\n".encode()
LARGE_HEAD = HEAD + NAMED + b"x: " + CANARY.encode() * 8000
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(receive_timeout_s=1, max_body_bytes=100_000)


def open_socket(address: str) -> socket.socket:
    return socket.create_connection(place_of(address), timeout=30)


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


def test_half_a_body_is_refused_in_time(address: str) -> None:
    received = talk(address, HEAD + b"content-length: 1000\r\n\r\n" + BODY)

    assert received.startswith(b"HTTP/1.1 408")
    assert b"receive_timeout" in received
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
        # No byte after the first byte too many, because an unread byte would reset the connection.
        pytest.param(LARGE_HEAD[: MAX_HEAD_BYTES + 1], id="large-head"),
        pytest.param(LARGE_HEAD[:MAX_HEAD_BYTES] + b"\0", id="bad-and-large"),
        pytest.param(LARGE_HEAD[: MAX_HEAD_BYTES + 100] + b"\r\n\r\n", id="large-and-whole"),
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
    assert sum(it.startswith("date: ") for it in lines) == 1
    assert CANARY not in received.decode()
    assert num_unread(address) == before + 1
    check_health(address)


def test_head_answers_as_get_without_the_body(address: str) -> None:
    app = create_app(make_settings())
    # Each template with a task, a version or a file that is there, and some with what is not there.
    filled = {"task": "tone", "version": "1", "model": "tone", "name": "page.css"}
    paths = [
        it.path_format
        for it in app.routes
        if isinstance(it, StrictRoute) and "GET" in (it.methods or ())
    ]
    with httpx.Client(base_url=address, timeout=60) as client:
        for path in [*(it.format(**filled) for it in paths), "/v1/tasks/nope", "/nope"]:
            got, asked = client.get(path), client.head(path)

            assert asked.content == b"", path
            assert asked.status_code == got.status_code, path
            same = {"content-type", "content-security-policy"} & set(got.headers)
            assert all(asked.headers[it] == got.headers[it] for it in same), path
        refused = client.head("/v1/predict")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def test_connections_that_wait_at_the_port_while_it_closes_are_answered(
    tmp_path: Path,
) -> None:
    announced, backbone = list[str](), tiny_backbone()
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, backbone)
        server = DrainingServer(
            make_settings(),
            backbones=Backbones(backbone),
            registry=registry,
            announce=announced.append,
        )
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        # In one step of the event loop, so that the server accepts none of them before it closes.
        waiting = [open_socket(announced[0]) for _ in range(20)]
        for it in waiting:
            it.sendall(HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
        await server.shutdown()

    for it in waiting:
        with it:
            assert it.recv(65_536).startswith(b"HTTP/1.1 ")

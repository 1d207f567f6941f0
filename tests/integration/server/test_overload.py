import dataclasses
import json
import re
import socket
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from doubles.access import access_by_route
from doubles.backbones import HeldLayers, tiny_backbone
from doubles.compat import DETECTORS
from doubles.raw_request import num_open_files, place_of
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import HeadOnly
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.http.access import PREDICT as PREDICTING

PREDICT = "/v1/tasks/tone/predict"
POLL_S = 0.005
REFUSED = 'nunatak_requests_total{outcome="share_exceeded",task="unknown"}'


@pytest.fixture
def backbone() -> Backbone:
    sound = tiny_backbone()
    return dataclasses.replace(sound, layers=HeldLayers(sound.layers))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        publish_tiny_task(opened, tiny_backbone())
        publish_tiny_task(opened, tiny_backbone(), task="other", seed=1)
        yield opened


def check_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    if status == 429:
        assert int(answer.headers["retry-after"]) >= 1


@contextmanager
def full_server(
    backbone: Backbone, registry: Registry, *tasks: str
) -> Generator[tuple[str, socket.socket]]:
    """Run a server whose queue, or one caller's share of it, is full; also yield a new connection.

    At the end the queued rows are computed, and must be answered.
    """
    tasks = tasks or ("tone", "tone")
    settings = make_settings(max_queued_requests=3)
    with running_server(backbone, registry, settings) as address, ExitStack() as stack:
        assert ask(address).status_code == 200
        with HeldLayers.held():
            waiting = [
                stack.enter_context(send_only(address, number, task=task))
                for number, task in enumerate(tasks)
            ]
            wait_for(partial(open_requests, address), len(tasks))
            yield address, stack.enter_context(connect(address))
        assert {status_of(it) for it in waiting} == {200}


BODY = json.dumps({"inputs": "and this?"}).encode()
LENGTH = f"content-length: {len(BODY)}"


def test_a_heavy_flow_is_refused_before_its_bodies_come_and_keeps_its_connections(
    backbone: Backbone, registry: Registry
) -> None:
    with full_server(backbone, registry) as (address, refused):
        refused.sendall(head(LENGTH))
        assert status_of(refused) == 429

        refused.sendall(BODY)
        refused.sendall(head(LENGTH, task="other") + BODY)
        HeldLayers.may_compute.set()
        assert status_of(refused) == 200
        assert metric(address, REFUSED) == 1


def test_every_prediction_is_refused_by_its_head_in_the_shape_of_its_protocol(
    backbone: Backbone, registry: Registry
) -> None:
    predicting = [path for (_, path), needed in access_by_route().items() if needed == PREDICTING]
    counted = list[str]()
    with full_server(backbone, registry, "tone", "tone", "other") as (address, refused):
        for path in predicting:
            refused.sendall(head(LENGTH, path=path))
            status, body = answer_of(refused)
            refused.sendall(BODY)

            # A gateway may let a call pass on an error, and the call may have filled the queue.
            verdict = {"portkey": "verdict", "litellm_basic_guardrail_api": "action"}
            of_gateway = verdict.get(path.rpartition("/")[2])
            assert status == (200 if of_gateway else 429), path
            is_ours = path.startswith(("/v1/predict", "/v1/tasks")) or path.endswith(
                ("{policy}", "/stream")
            )
            of_protocol = {"/v1/systemone": "detail", **dict.fromkeys(DETECTORS, "message")}
            field = of_gateway or ("code" if is_ours else of_protocol.get(path, "error"))
            assert field in json.loads(body), path
            counted.append(f'method="POST",route="{path}",status="{status}"')
        metrics = httpx.get(f"{address}/metrics").text.splitlines()
        found = [it for it in counted if f"nunatak_http_requests_total{{{it}}} 1.0" in metrics]
        assert found == counted


def test_a_body_of_unknown_length_or_that_waits_to_be_asked_for_is_read_before_it_is_refused(
    backbone: Backbone, registry: Registry
) -> None:
    with full_server(backbone, registry) as (address, chunked), connect(address) as waiting:
        chunked.sendall(head("transfer-encoding: chunked"))
        chunked.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert status_of(chunked) == 429

        waiting.sendall(head(f"{LENGTH}\r\nexpect: 100-continue"))
        assert status_of(waiting) == 100
        waiting.sendall(BODY)
        assert status_of(waiting) == 429


def test_what_administers_is_not_refused_while_predictions_are(
    backbone: Backbone, registry: Registry
) -> None:
    with full_server(backbone, registry) as (address, _):
        assert ask(address).status_code == 429
        assert httpx.post(f"{address}/v1/tasks/tone/preload", json={}).status_code == 200


@pytest.mark.parametrize("is_read_to_its_end", [True, False], ids=["read", "left"])
def test_a_body_counts_until_the_last_line_of_its_stream(
    backbone: Backbone, registry: Registry, *, is_read_to_its_end: bool
) -> None:
    settings = make_settings(max_held_bytes=1000)
    body = {"inputs": "a" * 600, "tasks": ["nope", "tone"]}
    lines = {"accept": "application/x-ndjson"}
    with (
        running_server(backbone, registry, settings) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        assert client.post(PREDICT, json={"inputs": "well?"}).status_code == 200
        with (
            HeldLayers.held(),
            client.stream("POST", "/v1/predict", json=body, headers=lines) as answer,
        ):
            received = answer.iter_lines()
            assert "task_not_found" in next(received)
            check_refused(client.post("/v1/predict", json=body), 429, "overloaded")
            if is_read_to_its_end:
                HeldLayers.may_compute.set()
                assert len(list(received)) == 1

        # The server learns a moment later that its caller has gone.
        wait_for(partial(metric, address, "nunatak_held_body_bytes"), 0)
        assert client.post("/v1/predict", json=body).status_code == 200


def test_requests_for_several_heads_on_one_trunk_are_answered_side_by_side(
    backbone: Backbone, tmp_path: Path
) -> None:
    body = {"inputs": "is it late?", "tasks": ["one", "two"]}
    with Registry.open(tmp_path) as registry:
        for seed, task in enumerate(body["tasks"]):
            publish_tiny_task(registry, tiny_backbone(), task=task, seed=seed, method=HeadOnly())
        settings = make_settings(max_queued_requests=3, trunk_cache_bytes=0)
        with (
            running_server(backbone, registry, settings) as address,
            httpx.Client(base_url=address, timeout=20) as client,
        ):
            assert client.post("/v1/predict", json=body).status_code == 200
            for _ in range(3):
                with ThreadPoolExecutor() as pool:
                    with HeldLayers.held():
                        asked = [
                            pool.submit(client.post, "/v1/predict", json=body) for _ in range(2)
                        ]
                        wait_for(partial(open_requests, address), 2)
                    assert [it.result().status_code for it in asked] == [200, 200]
                wait_for(partial(open_requests, address), 0)


def test_waiting_and_running_requests_are_counted_apart(
    backbone: Backbone, registry: Registry
) -> None:
    with running_server(backbone, registry) as address, ExitStack() as stack:
        assert ask(address).status_code == 200
        with HeldLayers.held():
            running = stack.enter_context(send_only(address, 1))
            wait_for(partial(metric, address, "nunatak_running_requests"), 1)
            waiting = stack.enter_context(send_only(address, 2))
            wait_for(partial(metric, address, "nunatak_waiting_requests"), 1)
            assert metric(address, "nunatak_running_requests") == 1
        assert {status_of(it) for it in (running, waiting)} == {200}
        wait_for(partial(open_requests, address), 0)


def test_rows_of_callers_that_hang_up_are_never_computed(
    backbone: Backbone, registry: Registry
) -> None:
    with running_server(backbone, registry, make_settings(max_batch_rows=4)) as address:
        assert ask(address).status_code == 200
        files_before = num_open_files()
        with HeldLayers.held():
            gone = [send_only(address, number) for number in range(40)]
            wait_for(partial(open_requests, address), 40)
            before = computed_rows(address)
            for connection in gone:
                connection.close()
            wait_for(partial(open_requests, address), 0)

        assert ask(address).status_code == 200
        assert 'status="499"} 40.0' in httpx.get(f"{address}/metrics").text
        assert num_open_files() <= files_before + 5
        # The batch in progress on the device, a batch that preempts it, and the last row.
        assert computed_rows(address) - before <= 4 + 4 + 1


def ask(address: str) -> httpx.Response:
    return httpx.post(f"{address}{PREDICT}", json={"inputs": "still there?"})


def send_only(address: str, number: int, *, task: str = "tone") -> socket.socket:
    body = json.dumps({"inputs": f"text {number}"}).encode()
    connection = connect(address)
    connection.sendall(head(f"content-length: {len(body)}", task=task) + body)
    return connection


def connect(address: str) -> socket.socket:
    return socket.create_connection(place_of(address), timeout=30)


def head(more: str, *, task: str = "tone", path: str = "/v1/tasks/{task}/predict") -> bytes:
    target = path.format(task=task, version=1, policy="guard")
    common = f"POST {target} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json"
    return f"{common}\r\n{more}\r\n\r\n".encode()


def status_of(connection: socket.socket) -> int:
    return answer_of(connection)[0]


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """Read one answer whole, and return its status and its body."""
    lines = b""
    while not lines.endswith(b"\r\n\r\n"):
        lines += connection.recv(1) or pytest.fail(f"closed after {lines!r}")
    length = re.search(rb"content-length: (\d+)", lines)
    body = b""
    while length is not None and len(body) < int(length[1]):
        body += connection.recv(4096)
    return int(lines.split()[1]), body


def metric(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.split()[0] == name]
    return float(value)


def computed_rows(address: str) -> float:
    return metric(address, "nunatak_batch_rows_sum")


def wait_for(count: Callable[[], float], value: float) -> None:
    end = time.monotonic() + 30
    while (found := count()) != value:
        assert time.monotonic() < end, found
        time.sleep(POLL_S)


def open_requests(address: str) -> float:
    text = httpx.get(f"{address}/metrics").text
    counts = re.findall(r"^nunatak_(?:waiting|running)_requests (\S+)$", text, flags=re.MULTILINE)
    assert len(counts) == 2
    return sum(map(float, counts))

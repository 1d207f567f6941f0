"""An answered request leaves nothing to the garbage collector, which is therefore run rarely."""

import dataclasses
import http.client
import json
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from doubles.backbones import FAMILIES, OddLayers, tiny_backbone
from doubles.garbage import garbage, in_new_process, kinds_of
from doubles.policies import make_policy, make_rule, when
from doubles.replicas import beat
from doubles.serving import make_settings, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_model import Backbone
from nunatak_registry import Registry

TIMES = 5
LAYER_S = 0.01
OF_KINDS = {
    HeadKind.TOKEN_CLASSIFICATION: {"inputs": "is it late?"},
    HeadKind.QUESTION_ANSWERING: {"inputs": {"question": "is it late?", "context": "it is ten."}},
    HeadKind.RANKING: {"inputs": {"query": "is it late?", "documents": ["it is ten.", "no"]}},
}
READS = ("/v1/tasks", "/v1/tasks/tone", "/v1/memory", "/metrics", "/readyz", "/")
"""Paths that the page and monitors ask every few seconds."""
LINES = {"accept": "application/x-ndjson"}


class SlowLayers(OddLayers):
    """The layers of a backbone on a device that is so slow that requests have to wait."""

    __slots__ = ()

    def before_each(self) -> None:
        time.sleep(LAYER_S)


@pytest.fixture(scope="module")
def slow_backbone() -> Backbone:
    sound = tiny_backbone()
    return dataclasses.replace(sound, layers=SlowLayers(sound.layers))


@pytest.fixture(scope="module")
def address(slow_backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as registry:
        for seed, task in enumerate(("tone", "other")):
            publish_tiny_task(registry, tiny_backbone(), task=task, seed=seed)
        for kind in HeadKind:
            publish_tiny_task(registry, tiny_backbone(), task=kind.value, kind=kind)
        conditions = (when("tone", "calm"), when(HeadKind.TOKEN_CLASSIFICATION.value, "calm"))
        registry.policies.put(make_policy(make_rule(*conditions)))
        settings = make_settings(trunk_cache_bytes=0)
        with running_server(slow_backbone, registry, settings) as found:
            yield found


@contextmanager
def connected(address: str) -> Generator[http.client.HTTPConnection]:
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        yield connection


def send(
    connection: http.client.HTTPConnection, path: str, body: object, headers: Mapping[str, str]
) -> None:
    sent = {"content-type": "application/json", **headers}
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body), sent)


def ask(
    connection: http.client.HTTPConnection, path: str, body: object, headers: Mapping[str, str]
) -> int:
    send(connection, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


@pytest.mark.parametrize(
    ("status", "path", "body", "headers"),
    [
        (200, "/v1/tasks/tone/predict", {"inputs": "is it late?"}, {}),
        (200, "/v1/tasks/tone/predict", {"inputs": ["is it late?", "no"]}, {}),
        (200, "/v1/predict", {"inputs": "is it late?", "tasks": ["tone", "other"]}, {}),
        (200, "/v1/predict", {"inputs": "is it late?", "tasks": ["tone", "other"]}, LINES),
        *((200, f"/v1/tasks/{kind}/predict", body, {}) for kind, body in OF_KINDS.items()),
        (200, "/v1/verdicts/guard", {"inputs": "is it late?"}, {}),
        (200, "/tei/backbone/embed", {"inputs": "is it late?"}, {}),
        (404, "/v1/tasks/unknown/predict", {"inputs": "is it late?"}, {}),
        (404, "/nowhere", {}, {}),
        (422, "/v1/tasks/tone/predict", {"inputs": 3}, {}),
        *((200, it, None, {}) for it in READS),
        (504, "/v1/tasks/tone/predict", {"inputs": "is it late?"}, {"x-deadline-ms": "1"}),
    ],
)
def test_an_answered_request_leaves_nothing_to_the_collector(
    address: str, status: int, path: str, body: object, headers: Mapping[str, str]
) -> None:
    with connected(address) as connection:
        assert ask(connection, path, body, headers) == status
        with garbage() as left:
            for _ in range(TIMES):
                assert ask(connection, path, body, headers) == status

    assert not kinds_of(left, at_least=TIMES)


def test_a_caller_that_goes_leaves_nothing_to_the_collector(address: str) -> None:
    with connected(address) as observer, garbage() as left:
        for _ in range(TIMES):
            with connected(address) as connection:
                send(connection, "/v1/tasks/tone/predict", {"inputs": "is it late?"}, {})
                time.sleep(LAYER_S / 2)
        time.sleep(TIMES * LAYER_S)
        assert ask(observer, "/readyz", None, {}) == 200

    assert not kinds_of(left, at_least=TIMES)


def test_a_task_that_is_loaded_for_a_request_leaves_nothing_to_the_collector(address: str) -> None:
    text = {"inputs": "is it late?"}
    with connected(address) as connection, garbage() as left:
        for _ in range(TIMES):
            assert ask(connection, "/v1/tasks/tone/evict", {}, {}) == 200
            assert ask(connection, "/v1/tasks/tone/predict", text, {}) == 200

    assert not kinds_of(left, at_least=TIMES)


def test_a_replica_that_holds_its_tasks_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, tiny_backbone(), task="tone", seed=0)
        work = (
            registry.generation,
            lambda: registry.hold("a", [("tone", 1)], seconds=60),
            lambda: beat(registry),
            registry.replicas.listing,
        )
        for ask in work:
            ask()
        with garbage() as left:
            for _ in range(TIMES):
                for ask in work:
                    ask()

    assert not kinds_of(left, at_least=TIMES)


def test_what_is_refused_by_its_head_leaves_nothing_to_the_collector(
    slow_backbone: Backbone, tmp_path: Path
) -> None:
    path, text = "/v1/tasks/tone/predict", "is it late?"
    settings = make_settings(trunk_cache_bytes=0, max_queued_requests=1, max_batch_rows=1)
    with Registry.open(tmp_path) as registry:
        publish_tiny_task(registry, tiny_backbone(), task="tone", seed=0)
        with (
            running_server(slow_backbone, registry, settings) as address,
            connected(address) as busy,
            connected(address) as refused,
        ):
            send(busy, path, {"inputs": [f"{text} {number}" for number in range(24)]}, {})
            time.sleep(2 * LAYER_S)
            with garbage() as left:
                for _ in range(TIMES):
                    assert ask(refused, path, {"inputs": text}, {}) == 429
            assert busy.getresponse().status == 200

    assert not kinds_of(left, at_least=TIMES)


@pytest.mark.timeout(300)
def test_many_answers_and_batches_of_all_families_leave_nothing_to_the_collector() -> None:
    left = in_new_process("work", "60")

    assert set(left) == {"answers", *FAMILIES}
    assert not any(left.values()), left


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_from_the_5000th_to_the_100000th_answer() -> None:
    found = in_new_process("memory", "100000", "5000")

    assert max(found) < 1.03 * min(found)

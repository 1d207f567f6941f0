import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.serving import make_settings, running_client
from doubles.tasks import LABELS, TOP_LAYER, logits_alone, publish_tiny_task
from nunatak_contract.enums import Kernels, ProblemType
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_contract.requests import Parameters
from nunatak_model import Backbone, TextInput, pack_backbone
from nunatak_registry import Registry
from nunatak_server import local, runtime
from nunatak_server.app import Application
from nunatak_server.engine.backbones import Backbones
from nunatak_server.local import LocalPredictor
from nunatak_server.outputs.outputs import label_scores
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.scheduler.admission import RegistryLease

METHODS: dict[str, Method] = {
    "topk": TopK(num_layers=1),
    "deep": TopK(num_layers=3),
    "head": HeadOnly(),
    "bottleneck": Bottleneck(size=4, first_layer=1),
    "lora": Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    "ia3": Ia3(),
    "full": Full(),
}
INPUTS: list[TextInput] = ["where is my parcel?", "hi", ("a question", "an answer"), "x" * 300]
TOLERANCE = 1e-4


def publish(opened: Registry, backbone: Backbone) -> None:
    for name, method in METHODS.items():
        publish_tiny_task(opened, backbone, task=name, method=method)


def as_sent(item: TextInput) -> object:
    return item if isinstance(item, str) else {"text": item[0], "text_pair": item[1]}


def logits_in(ranking: list[dict[str, Any]]) -> dict[str, float]:
    return {item["label"]: item["score"] for item in ranking}


def expected_logits(backbone: Backbone, method: Method) -> list[dict[str, float]]:
    rows = logits_alone(backbone, INPUTS, method=method)
    return [dict(zip(("calm", "urgent", "other"), row, strict=True)) for row in rows]


@pytest.mark.parametrize("problem", ProblemType)
async def test_every_answer_says_what_is_predicted_whatever_scores_it_shows(
    backbone: Backbone, tmp_path: Path, problem: ProblemType
) -> None:
    several = problem is ProblemType.MULTI_LABEL
    labels = ("stars",) if problem is ProblemType.REGRESSION else LABELS
    shown = {"top_k": 1, "function_to_apply": "none"}
    with Registry.open(tmp_path) as registry:
        manifest = publish_tiny_task(
            registry,
            backbone,
            labels=labels,
            problem_type=problem,
            thresholds=dict(zip(LABELS, (0.2, 0.7), strict=False)) if several else None,
        )
        async with running_client(backbone, registry) as client:
            url = "/v1/tasks/tone/predict"
            items = list(map(as_sent, INPUTS))
            one = (await client.post(url, json={"inputs": items[0], "parameters": shown})).json()
            many = (await client.post(url, json={"inputs": items, "parameters": shown})).json()
            fan_out = (
                await client.post("/v1/predict", json={"inputs": items, "tasks": ["tone"]})
            ).json()["results"][0]
    rows = logits_alone(backbone, INPUTS, num_labels=len(labels))
    expected: list[Any] = [label_scores(row, manifest.head, Parameters())[1] for row in rows]
    if problem is ProblemType.REGRESSION:
        expected = [pytest.approx(it, abs=TOLERANCE) for it in expected]
    if several:
        expected = list(map(list, expected))

    assert {it["problem_type"] for it in (one, many, fan_out)} == {problem.value}
    assert one["predicted"] == expected[0]
    assert many["predicted"] == expected
    assert fan_out["predicted"] == expected


async def test_answers_tell_version_times_and_request_id(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        "/v1/tasks/topk/predict", json={"inputs": ["a", "b"]}, headers={"x-request-id": "my-id.7"}
    )
    made_up = await client.post(
        "/v1/tasks/topk/predict", json={"inputs": "a"}, headers={"x-request-id": "not sane\tat all"}
    )

    assert answer.headers["x-task-version"] == "topk/1"
    assert answer.headers["x-batch-size"] == "2"
    assert answer.headers["x-request-id"] == "my-id.7"
    for name in ("x-queue-ms", "x-tokenize-ms", "x-compute-ms"):
        assert float(answer.headers[name]) >= 0
    assert made_up.headers["x-request-id"].isalnum()


async def test_a_mixed_batch_answers_as_each_row_alone(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    answer = await client.post(
        "/v1/predict",
        json={
            "inputs": [as_sent(item) for item in INPUTS],
            "tasks": list(METHODS),
            "parameters": {"function_to_apply": "none"},
        },
    )

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result["reference"] for result in results] == list(METHODS)
    for result, method in zip(results, METHODS.values(), strict=True):
        expected = expected_logits(backbone, method)
        for ranking, row in zip(result["outputs"], expected, strict=True):
            assert logits_in(ranking) == pytest.approx(row, abs=TOLERANCE)


async def test_a_fan_out_shares_its_trunk(caller: httpx.AsyncClient) -> None:
    for name in METHODS:
        await caller.post(f"/v1/tasks/{name}/preload")
    await caller.post("/v1/predict", json={"inputs": "one text", "tasks": list(METHODS)})
    metrics = (await caller.get("/metrics")).text

    # `full` has no trunk and `lora` adapts every layer, so four of the six tasks share one row.
    assert "nunatak_shared_trunk_rows_total 3.0" in metrics


async def test_a_text_asked_again_is_a_hit_in_the_ledger_and_in_the_metrics(
    caller: httpx.AsyncClient,
) -> None:
    text, parameters = "where is my parcel?", {"function_to_apply": "none"}

    async def ask(text: str) -> tuple[dict[str, int], list[dict[str, float]]]:
        body = {"inputs": text, "tasks": ["topk", "head"], "parameters": parameters}
        answer = (await caller.post("/v1/predict", json=body)).raise_for_status().json()
        cache: dict[str, int] = (await caller.get("/v1/memory")).json()["trunk_cache"]
        return cache, [logits_in(it["outputs"]) for it in answer["results"]]

    # Both tasks share a batch only if both are in memory. During the loads, one task may run
    # earlier.
    (start, _), (missed, first), (hit, again) = [await ask(it) for it in ("hi", text, text)]
    metrics = (await caller.get("/metrics")).text

    num_tokens = 2 + sum(map(len, text.split()))
    assert (missed["hits"] - start["hits"], missed["misses"] - start["misses"]) == (0, 2)
    assert (hit["hits"] - start["hits"], hit["misses"] - missed["misses"]) == (2, 0)
    assert hit["saved_tokens"] - start["saved_tokens"] == 2 * num_tokens
    assert hit["bytes"] == missed["bytes"] > start["bytes"]
    assert f"nunatak_trunk_cache_hits_total {hit['hits']}.0" in metrics
    assert f"nunatak_trunk_cache_bytes {hit['bytes']}.0" in metrics
    for before, after in zip(first, again, strict=True):
        assert after == pytest.approx(before, abs=TOLERANCE)


async def test_each_task_of_a_fan_out_answers_or_fails_by_itself(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        "/v1/predict",
        json={
            "inputs": "hello",
            "tasks": ["topk", "nope", "head/1", "head/9", "lora@beta", "../x", "topk/01"],
        },
    )

    results = answer.json()["results"]
    assert answer.status_code == 200
    assert [result.get("version") for result in results] == [1, None, 1] + [None] * 4
    assert [result["error"]["code"] for result in results if "error" in result] == [
        "task_not_found",
        "version_not_found",
        "alias_not_found",
        "invalid_name",
        "invalid_name",
    ]


@pytest.mark.parametrize(
    "path",
    ["/v1/tasks/topk/1/predict", "/v1/tasks/topk/predict?version=1", "/v1/tasks/topk@prod/predict"],
)
async def test_every_spelling_of_a_reference_works(
    client: httpx.AsyncClient, registry: Registry, path: str
) -> None:
    registry.promote("topk", "prod", 1)

    answer = await client.post(path, json={"inputs": "hello"})

    assert (answer.status_code, answer.json()["version"]) == (200, 1)


async def test_a_request_that_would_leave_no_room_for_others_is_refused_for_good(
    backbone: Backbone, registry: Registry
) -> None:
    """No other request waits: the request gets no retry time, and new requests are answered."""

    settings = make_settings(max_queued_tokens=250, max_batch_rows=3, max_batch_tokens=132)
    async with running_client(backbone, registry, settings) as client:
        refused = await client.post(
            "/v1/predict", json={"inputs": ["some words"] * 40, "tasks": list(METHODS)}
        )
        answer = await client.post(
            "/v1/predict", json={"inputs": ["some words"] * 3, "tasks": list(METHODS)}
        )

    assert refused.status_code == 422
    assert refused.json()["code"] == "request_too_large"
    assert "retry-after" not in refused.headers
    assert answer.status_code == 200
    assert all(len(result["outputs"]) == 3 for result in answer.json()["results"])
    assert int(answer.headers["x-batch-size"]) <= 3


async def test_the_ledger_adds_up(caller: httpx.AsyncClient) -> None:
    before = (await caller.get("/v1/memory")).json()
    await caller.post("/v1/predict", json={"inputs": "x", "tasks": ["topk", "head"]})
    after = (await caller.get("/v1/memory")).json()

    assert before["tasks"] == []
    assert before["shared_bytes"] == before["backbone"]["bytes"]
    assert (before["dedicated_bytes"], before["saved_share"]) == (0, 0)
    assert [task["task"] for task in after["tasks"]] == ["head", "topk"]
    held = after["backbone"]["bytes"] + sum(task["bytes"] for task in after["tasks"])
    assert after["shared_bytes"] == held
    assert after["dedicated_bytes"] > 2 * after["backbone"]["bytes"]
    assert after["saved_share"] == pytest.approx(1 - held / after["dedicated_bytes"])
    assert after["activations"] == {"peak_bytes": None}
    assert after["process"]["peak_rss_bytes"] >= 0.99 * after["process"]["rss_bytes"] > held


async def test_several_versions_of_a_task_replace_one_model(
    backbone: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry:
        for seed in (1, 2):
            publish_tiny_task(registry, backbone, task="tone", method=TOP_LAYER, seed=seed)
        async with running_client(backbone, registry) as client:
            await client.post("/v1/predict", json={"inputs": "x", "tasks": ["tone/1"]})
            one = (await client.get("/v1/memory")).json()
            await client.post("/v1/predict", json={"inputs": "x", "tasks": ["tone/2"]})
            two = (await client.get("/v1/memory")).json()

    assert len(two["tasks"]) == len(one["tasks"]) + 1
    assert two["dedicated_bytes"] == one["dedicated_bytes"]
    assert two["saved_share"] < one["saved_share"]
    assert two["saved_share_formula"] == one["saved_share_formula"]


async def test_tasks_are_listed_and_shown(client: httpx.AsyncClient, registry: Registry) -> None:
    registry.promote("topk", "prod", 1)

    await client.post("/v1/tasks/topk/preload")
    listed = (await client.get("/v1/tasks")).json()["tasks"]
    shown = (await client.get("/v1/tasks/topk", params={"version": 1})).json()

    assert [task["name"] for task in listed] == sorted(METHODS)
    summary = next(task for task in listed if task["name"] == "topk")
    assert summary == {
        "name": "topk",
        "version": 1,
        "versions": [1],
        "aliases": {"prod": 1},
        "candidates": [],
        "head": "sequence_classification",
        "labels": ["calm", "urgent", "other"],
        "reads": None,
        "method": "topk",
        "split_depth": 3,
        "resident_versions": [1],
    }
    assert shown["manifest"]["version"] == 1
    assert {name: shown[name] for name in summary} == summary


async def test_health_identity_and_schema_are_served(
    backbone: Backbone, registry: Registry
) -> None:
    settings = make_settings(registry="postgresql+psycopg://me:secret@host/db?blobs=s3://b")
    async with running_client(backbone, registry, settings) as client:
        answers = {
            path: await client.get(path)
            for path in ("/livez", "/readyz", "/health", "/info", "/openapi.json", "/docs")
        }

    assert {answer.status_code for answer in answers.values()} == {200}
    assert answers["/info"].json()["registry"] == "postgresql"
    assert "secret" not in answers["/info"].text
    assert "/v1/tasks/{task}/predict" in answers["/openapi.json"].json()["paths"]


async def test_the_event_loop_does_not_wait_for_the_schema(
    backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()

    def openapi(_: Application) -> dict[str, object]:
        made.append(threading.get_ident())
        return {}

    monkeypatch.setattr(Application, "openapi", openapi)
    async with running_client(backbone, registry) as client:
        assert (await client.get("/openapi.json")).json() == {}

    assert made
    assert threading.get_ident() not in made


def test_the_local_predictor_follows_an_alias_however_long_it_was_not_asked(
    backbone: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry, LocalPredictor(registry, backbone) as predictor:
        for version in (1, 2):
            publish_tiny_task(registry, backbone, seed=version)
            registry.promote("tone", "prod", version)

            for _ in range(2):
                (answer,) = predictor.predict(["hello"], ["tone@prod"]).results

                assert isinstance(answer, TaskPrediction)
                assert answer.version == version


def test_no_operator_waits_for_a_local_predictor_and_no_lease_of_it_ends(
    backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_REGISTRY_LEASE_S", "1")
    hours = partial(RegistryLease, clock=count(0.0, 3600.0).__next__)
    monkeypatch.setattr(runtime, "RegistryLease", hours)

    others = {it.id for it in registry.replicas.listing().replicas}

    with LocalPredictor(registry, backbone) as predictor:
        for _ in range(2):
            (answer,) = predictor.predict(["hello"], ["head"]).results

            assert isinstance(answer, TaskPrediction)
            assert {it.id for it in registry.replicas.listing().replicas} <= others


@pytest.mark.parametrize("kernels", Kernels)
def test_a_local_predictor_computes_with_the_kernels_of_a_server(
    backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    seen = list[Backbone]()

    def backbones(*served: Any) -> Backbones:  # noqa: ANN401 - the form of `Backbones`
        seen.append(served[0])
        return Backbones(*served)

    monkeypatch.setenv("NUNATAK_KERNELS", kernels)
    monkeypatch.setattr(local, "Backbones", backbones)

    with LocalPredictor(registry, backbone):
        pass

    expected = pack_backbone(backbone).fast_kernels if kernels is Kernels.AUTO else ()
    assert [it.fast_kernels for it in seen] == [expected]


def test_a_local_predictor_that_cannot_start_ends_its_threads(
    backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(runtime, "pin_at_start", break_off)

    before = set(threading.enumerate())

    with pytest.raises(ZeroDivisionError), LocalPredictor(registry, backbone):
        pass

    assert "nunatak-engine" not in {it.name for it in set(threading.enumerate()) - before}

from collections.abc import Generator
from typing import Any

import httpx
import pytest

from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import Backbone
from nunatak_registry import Registry

METHODS: dict[str, Method] = {"topk": TopK(num_layers=1), "head": HeadOnly()}
TEXTS = ["where is my parcel?", "hi"]
LABELS = ("calm", "urgent", "other")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for name, method in METHODS.items():
            publish_tiny_task(opened, backbone, task=name, method=method)
        yield opened


async def ask(
    client: httpx.AsyncClient, texts: list[str], tasks: list[str]
) -> list[dict[str, Any]]:
    body = {"inputs": texts, "tasks": tasks, "parameters": {"function_to_apply": "none"}}
    answer = await client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def logits_in(output: list[dict[str, Any]]) -> list[float]:
    scores = {item["label"]: item["score"] for item in output}
    return [scores[label] for label in LABELS]


async def cache_of(client: httpx.AsyncClient) -> dict[str, int]:
    ledger: dict[str, dict[str, int]] = (await client.get("/v1/memory")).json()
    return ledger["trunk_cache"]


async def test_a_text_asked_again_is_a_hit_in_the_ledger_and_in_the_metrics(
    client: httpx.AsyncClient,
) -> None:
    # Both tasks share a batch only if both are in memory. During the loads, one task may run
    # earlier.
    await ask(client, TEXTS[1:2], ["topk", "head"])
    start = await cache_of(client)
    first = await ask(client, TEXTS[:1], ["topk", "head"])
    missed = await cache_of(client)
    again = await ask(client, TEXTS[:1], ["topk", "head"])
    hit = await cache_of(client)
    metrics = (await client.get("/metrics")).text

    num_tokens = 2 + sum(map(len, TEXTS[0].split()))
    assert (missed["hits"] - start["hits"], missed["misses"] - start["misses"]) == (0, 2)
    assert (hit["hits"] - start["hits"], hit["misses"] - missed["misses"]) == (2, 0)
    assert hit["saved_tokens"] - start["saved_tokens"] == 2 * num_tokens
    assert hit["bytes"] == missed["bytes"] > start["bytes"]
    assert f"nunatak_trunk_cache_hits_total {hit['hits']}.0" in metrics
    assert f"nunatak_trunk_cache_bytes {hit['bytes']}.0" in metrics
    for before, after in zip(first, again, strict=True):
        assert logits_in(after["outputs"][0]) == pytest.approx(
            logits_in(before["outputs"][0]), abs=TOLERANCE
        )


async def test_a_hit_has_the_timing_headers_of_a_miss(client: httpx.AsyncClient) -> None:
    body = {"inputs": "hello"}
    answers = [await client.post("/v1/tasks/topk/predict", json=body) for _ in range(2)]

    missed, hit = ({name for name in answer.headers if name.startswith("x-")} for answer in answers)
    assert {"x-queue-ms", "x-tokenize-ms", "x-compute-ms", "x-batch-size"} < missed == hit

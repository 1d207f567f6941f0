import asyncio
import random
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from doubles.serving import make_settings, running_client
from doubles.tasks import logits_alone, publish_tiny_task
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import Backbone
from nunatak_registry import Registry

METHODS: dict[str, Method] = {
    "topk": TopK(num_layers=1),
    "deep": TopK(num_layers=3),
    "head": HeadOnly(),
    "lora": Lora(rank=2, first_layer=2, alpha=16.0, targets=QUERY_AND_VALUE),
    "ia3": Ia3(first_layer=2),
}
TEXTS = ["where is my parcel?", "hi", "one more text", "x" * 300]
LABELS = ("calm", "urgent", "other")
SEEDS = (1, 2)
"""The methods of version 1 and version 2 of each task."""
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for name, method in METHODS.items():
            for seed in SEEDS:
                publish_tiny_task(opened, backbone, task=name, method=method, seed=seed)
            opened.promote(name, "prod", 1)
        yield opened


@pytest.fixture(scope="module")
def alone(backbone: Backbone) -> dict[tuple[str, int], list[list[float]]]:
    """The oracle: logits of each version for each text, with nothing else in the batch."""
    return {
        (name, version): logits_alone(backbone, TEXTS, method=method, seed=seed)
        for name, method in METHODS.items()
        for version, seed in enumerate(SEEDS, start=1)
    }


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


@pytest.mark.parametrize("budget", [0, 20_000, 2**28])
async def test_no_promotion_eviction_or_budget_changes_what_a_version_answers(
    budget: int,
    backbone: Backbone,
    registry: Registry,
    alone: dict[tuple[str, int], list[list[float]]],
) -> None:
    chance = random.Random(budget)

    async def move(client: httpx.AsyncClient, task: str) -> None:
        version = chance.choice((1, 2))
        await client.put(f"/v1/tasks/{task}/aliases/prod", json={"version": version})
        if chance.random() < 0.5:
            await client.post(f"/v1/tasks/{task}/evict")

    async def check(client: httpx.AsyncClient) -> None:
        items = chance.sample(range(len(TEXTS)), 2)
        results = await ask(client, [TEXTS[item] for item in items], list(METHODS))
        for result in results:
            expected = alone[result["task"], result["version"]]
            for item, output in zip(items, result["outputs"], strict=True):
                assert logits_in(output) == pytest.approx(expected[item], abs=TOLERANCE)

    settings = make_settings(trunk_cache_bytes=budget)
    async with running_client(backbone, registry, settings) as client:
        for _ in range(8):
            await asyncio.gather(
                *(check(client) for _ in range(4)), move(client, chance.choice([*METHODS]))
            )
        cache = await cache_of(client)

    assert cache["bytes"] <= budget == cache["max_bytes"]
    assert (cache["hits"] > 0, cache["misses"] > 0) == (budget > 0, budget > 0)
    assert (cache["evictions"] > 0) == (budget == 20_000)


async def test_a_hit_has_the_timing_headers_of_a_miss(client: httpx.AsyncClient) -> None:
    body = {"inputs": "hello"}
    answers = [await client.post("/v1/tasks/topk/predict", json=body) for _ in range(2)]

    missed, hit = ({name for name in answer.headers if name.startswith("x-")} for answer in answers)
    assert {"x-queue-ms", "x-tokenize-ms", "x-compute-ms", "x-batch-size"} < missed == hit

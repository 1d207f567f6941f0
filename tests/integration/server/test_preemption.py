"""A short question next to a long list of another task's texts, over the real forward."""

import asyncio
from typing import Any

import httpx
import pytest

from doubles.compat import counted
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_model import DEFAULT_BACKBONE, Backbone, load_backbone
from nunatak_registry import Registry

NUM_TEXTS = 64
TEXT = "where is the parcel that was to come on the third of may, and who can tell me more " * 4


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone(DEFAULT_BACKBONE)


def publish(opened: Registry, backbone: Backbone) -> None:
    for seed, task in enumerate(("bulk", "short")):
        publish_tiny_task(
            opened,
            backbone,
            task=task,
            method=Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
            seed=seed,
        )


async def test_short_questions_preempt_a_long_list_and_all_answers_stay_the_same(
    backbone: Backbone, registry: Registry
) -> None:
    texts = [f"{number} {TEXT}" for number in range(NUM_TEXTS)]

    async def ask(client: httpx.AsyncClient, task: str, inputs: object) -> Any:  # noqa: ANN401 - JSON
        answer = await client.post(f"/v1/tasks/{task}/predict", json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        return answer.json()["outputs"]

    def scores(outputs: list[list[dict[str, Any]]]) -> list[float]:
        return [label["score"] for output in outputs for label in output]

    settings = make_settings(max_inputs=NUM_TEXTS, trunk_cache_bytes=0)
    async with running_client(backbone, registry, settings) as client:
        alone = scores([await ask(client, "short", "who?")])
        before = await counted(client, "nunatak_batch_rows_count")
        expected = scores(await ask(client, "bulk", texts))
        list_batches = await counted(client, "nunatak_batch_rows_count") - before

        bulk = asyncio.create_task(ask(client, "bulk", texts))
        answered_before_the_list = 0
        while not bulk.done():
            beside = scores([await ask(client, "short", "who?")])
            assert beside == pytest.approx(alone, abs=1e-5)
            answered_before_the_list += not bulk.done()

        # Without preemption, the fair queue answers one or two questions between two batches.
        assert answered_before_the_list > 2 * list_batches
        assert scores(await bulk) == pytest.approx(expected, abs=1e-5)

"""Every recipe that can be served answers over HTTP as its training scored it."""

from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from doubles.serving import running_client
from nunatak_contract.enums import Pooling
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
from nunatak_model import Backbone, pack_backbone
from nunatak_registry import Registry
from nunatak_training.fitting import TrainedTask, branch_logits, fit_task
from nunatak_training.objectives import objective_of
from nunatak_training.publishing import publish
from nunatak_training.recipes import Recipe, RegularizerName, default_recipe
from nunatak_training.report import Report

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
DATA = toy_data(num_train=30, num_dev=12)
METHODS: dict[str, Method] = {
    "topk": TopK(num_layers=2),
    "head": HeadOnly(),
    "bottleneck": Bottleneck(size=4),
    "upper-bottleneck": Bottleneck(size=4, first_layer=2),
    "lora": Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    "ia3": Ia3(),
    "full": Full(),
}


def recipe_of(method: Method, **changes: JsonValue) -> Recipe:
    quick: dict[str, JsonValue] = {"epochs": 4, "min_steps": 0, "batch_size": 8, "max_length": 32}
    return default_recipe(method, changes={**quick, **changes})


RECIPES = {
    **{name: recipe_of(method) for name, method in METHODS.items()},
    **{
        f"topk-{name.value}": recipe_of(METHODS["topk"], regularizer={"name": name.value})
        for name in RegularizerName
    },
    "adapters-tapt": recipe_of(METHODS["bottleneck"], tapt={"epochs": 1}),
    "mean": recipe_of(METHODS["topk"], pooling=Pooling.MEAN.value),
    "sgd": recipe_of(METHODS["lora"], optimizer="sgd", schedule="cosine"),
}


@pytest.fixture(scope="module", name="backbone")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=3)


@pytest.fixture(scope="module", name="trained")
def train_all(backbone: Backbone) -> dict[str, TrainedTask]:
    return {
        name: fit_task(DATA, recipe, backbone, report=Report()) for name, recipe in RECIPES.items()
    }


@pytest.fixture(scope="module", name="registry")
def publish_all(
    trained: dict[str, TrainedTask], backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Registry]:
    folder: Path = tmp_path_factory.mktemp("registry")
    with Registry.open(folder) as registry:
        for name, task in trained.items():
            publish(task, registry, backbone, task=name, created_at=CREATED_AT)
        yield registry


async def test_dev_logits_of_training_come_back_over_http(
    trained: dict[str, TrainedTask], backbone: Backbone, registry: Registry
) -> None:
    body = {
        "inputs": [example.text for example in DATA.dev.examples],
        "parameters": {"function_to_apply": "none", "top_k": len(DATA.labels)},
    }

    async def scenario() -> dict[str, list[dict[str, float]]]:
        async with running_client(pack_backbone(backbone), registry) as client:
            found = dict[str, list[dict[str, float]]]()
            for name in trained:
                answer = await client.post(f"/v1/tasks/{name}/predict", json=body)
                assert answer.status_code == 200, (name, answer.text)
                found[name] = [
                    {item["label"]: item["score"] for item in row}
                    for row in answer.json()["outputs"]
                ]
        return found

    for name, rows in (await scenario()).items():
        expected = dev_logits(trained[name], backbone)
        served = torch.tensor([[row[label] for label in DATA.labels] for row in rows])
        torch.testing.assert_close(
            served, expected, rtol=0, atol=1e-4, msg=lambda it, n=name: f"{n}: {it}"
        )


def dev_logits(task: TrainedTask, backbone: Backbone) -> torch.Tensor:
    """The values from which training computed its scores, in the order of the examples."""
    encoded = objective_of(DATA).encode(
        DATA.dev, backbone.tokenizer, max_length=task.recipe.max_length
    )
    logits = branch_logits(backbone, task.spec, task.parameters)
    with torch.inference_mode():
        return torch.stack(logits(encoded.encodings, dropout=0.0))

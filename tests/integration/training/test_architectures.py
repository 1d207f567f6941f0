"""Every architecture from `backbone add` to HTTP: the answers equal transformers' own pipeline."""

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from transformers import pipeline

from doubles.backbones import FAMILIES, Family, save_tiny_backbone
from doubles.examples import toy_data
from doubles.serving import running_client
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_exchange.backbones import add_backbone
from nunatak_exchange.transformers_export import export_transformers
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.fitting import fit_task
from nunatak_training.publishing import draft_trained
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_versions import load_task

PIPELINE: Any = pipeline
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
QUICK: Mapping[str, JsonValue] = {"epochs": 1, "min_steps": 0, "batch_size": 8, "max_length": 48}
METHODS: Mapping[str, Method] = {
    "head": HeadOnly(),
    "topk": TopK(num_layers=1),
    "lora": Lora(rank=2, alpha=16.0, targets=tuple(LinearMap)),
    "ia3": Ia3(),
    "full": Full(),
    "bottleneck": Bottleneck(size=4),
}
COMPARED = tuple(name for name in METHODS if name != "bottleneck")
"""No class of transformers computes bottlenecks; their tasks are served in the same batches."""
LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?0123456789"


async def walk(family: Family, num_texts: int, folder: Path) -> dict[str, float]:
    """Return the largest difference of a score from the pipeline's, by method.

    The variable XDG_DATA_HOME must name a folder of the caller, because a backbone is added.
    """
    backbone = _added(family, folder)
    texts = texts_of(num_texts)
    with Registry.open(folder / "registry") as registry:
        _train(backbone, registry, folder)
        found: dict[str, list[Any]] = {name: [] for name in METHODS}
        async with running_client(backbone, registry) as client:
            for start in range(0, len(texts), 50):
                body = {"inputs": texts[start : start + 50], "tasks": [*METHODS]}
                answer = await client.post("/v1/predict", json=body)
                answer.raise_for_status()
                for result in answer.json()["results"]:
                    found[result["task"]] += result["outputs"]
    return {name: _difference(found[name], folder / name, texts) for name in COMPARED}


def texts_of(number: int) -> list[str]:
    """Random texts of up to 41 characters, of which each backbone here makes tokens."""
    chance = random.Random(4)
    return ["a" + "".join(chance.choices(LETTERS, k=chance.randint(1, 40))) for _ in range(number)]


def _added(family: Family, folder: Path) -> Backbone:
    tiny = save_tiny_backbone(folder / "tiny", family=family, num_layers=2)
    # The usual class of the family would build another tokenizer.
    inputs = ["input_ids", "attention_mask"]
    settings = {"tokenizer_class": "TokenizersBackend", "model_input_names": inputs}
    (tiny / "tokenizer_config.json").write_text(json.dumps(settings))
    add_backbone(str(tiny), name="mine")
    return load_backbone("mine")


def _train(backbone: Backbone, registry: Registry, folder: Path) -> None:
    """Train and publish a task for each method, and export all but bottlenecks."""
    data = toy_data(num_train=16, num_dev=4)
    for name, method in METHODS.items():
        recipe = default_recipe(method, changes=QUICK)
        task = fit_task(data, recipe, backbone, report=Report())
        draft = draft_trained(task, backbone, task=name, created_at=CREATED_AT)
        manifest = registry.publish(draft.manifest, draft.blobs)
        if name in COMPARED:
            loaded = load_task(manifest, draft.blobs["parameters"], backbone)
            export_transformers(loaded, folder / name, backbone)


def _difference(found: list[Any], exported: Path, texts: list[str]) -> float:
    model = PIPELINE("text-classification", model=str(exported), top_k=None)
    differences = list[float]()
    for ours, theirs in zip(found, model(texts), strict=True):
        scores = {it["label"]: it["score"] for it in ours}
        expected = {it["label"]: it["score"] for it in theirs}
        if scores.keys() != expected.keys():
            raise ValueError(f"the server names {sorted(scores)}, the pipeline {sorted(expected)}")
        differences += [abs(scores[label] - score) for label, score in expected.items()]
    return max(differences)


@pytest.mark.parametrize(
    ("family", "num_texts"),
    [("gte", 40), *(pytest.param(it, 200, marks=pytest.mark.slow) for it in FAMILIES)],
)
async def test_trained_tasks_answer_over_http_as_their_exports_in_the_pipeline(
    family: Family, num_texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    differences = await walk(family, num_texts, tmp_path)

    assert differences.keys() == set(COMPARED)
    assert all(it <= 1e-4 for it in differences.values()), differences

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
from nunatak_artifact import load_task
from nunatak_artifact.backbones import add_backbone
from nunatak_artifact.interchange import HuggingFaceHub, export_transformers
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.fitting import fit_task
from nunatak_training.publishing import draft_trained
from nunatak_training.recipes import default_recipe
from nunatak_training.report import SilentReport

PIPELINE: Any = pipeline
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
DATA = toy_data(num_train=16, num_dev=4)
QUICK: Mapping[str, JsonValue] = {"epochs": 1, "min_steps": 0, "batch_size": 8, "max_length": 48}
METHODS: dict[str, Method] = {
    "head": HeadOnly(),
    "topk": TopK(num_layers=1),
    "lora": Lora(rank=2, alpha=16.0, targets=tuple(LinearMap)),
    "ia3": Ia3(),
    "full": Full(),
    "bottleneck": Bottleneck(size=4),
}
NOWHERE = {"bottleneck"}
"""Methods that no class of transformers computes."""
LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?0123456789"


def texts_of(number: int) -> list[str]:
    chance = random.Random(4)
    return ["a" + "".join(chance.choices(LETTERS, k=chance.randint(1, 40))) for _ in range(number)]


def trained(backbone: Backbone, registry: Registry, folder: Path) -> None:
    """Train and publish a task for each method, and export all but bottlenecks."""
    for name, method in METHODS.items():
        task = fit_task(
            DATA, default_recipe(method, changes=QUICK), backbone, report=SilentReport()
        )
        draft = draft_trained(task, backbone, task=name, created_at=CREATED_AT)
        manifest = registry.publish(draft.manifest, draft.blobs)
        if name not in NOWHERE:
            loaded = load_task(manifest, draft.blobs["parameters"], backbone)
            export_transformers(loaded, folder / name, backbone)


@pytest.mark.parametrize(
    ("family", "num_texts"),
    [("gte", 40), *(pytest.param(it, 200, marks=pytest.mark.slow) for it in FAMILIES)],
)
async def test_trained_tasks_answer_over_http_as_their_exports_in_the_pipeline(
    family: Family, num_texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = save_tiny_backbone(tmp_path / "tiny", family=family, num_layers=2)
    # The usual class of the family would build another tokenizer.
    inputs = ["input_ids", "attention_mask"]
    settings = {"tokenizer_class": "TokenizersBackend", "model_input_names": inputs}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    add_backbone(str(folder), name="mine", hub=HuggingFaceHub())
    backbone, texts = load_backbone("mine"), texts_of(num_texts)

    with Registry.open(tmp_path / "registry") as registry:
        trained(backbone, registry, tmp_path)
        found: dict[str, list[Any]] = {name: [] for name in METHODS}
        async with running_client(backbone, registry) as client:
            for start in range(0, len(texts), 50):
                body = {"inputs": texts[start : start + 50], "tasks": [*METHODS]}
                answer = await client.post("/v1/predict", json=body)
                assert answer.status_code == 200, answer.text
                for result in answer.json()["results"]:
                    found[result["task"]] += result["outputs"]

    for name in METHODS.keys() - NOWHERE:
        model = PIPELINE("text-classification", model=str(tmp_path / name), top_k=None)
        for ours, theirs in zip(found[name], model(texts), strict=True):
            expected = {it["label"]: it["score"] for it in theirs}
            scores = {it["label"]: it["score"] for it in ours}
            assert scores == pytest.approx(expected, abs=1e-4)

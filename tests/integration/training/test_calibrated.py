"""A calibrated version answers by its temperature over HTTP, in transformers and on the hub."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from doubles.backbones import tiny_backbone
from doubles.checkpoints import branch_of, published_logits
from doubles.examples import noisy_data
from doubles.serving import running_client
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_export import export_transformers
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import Backbone, Branch, Encoding, Row, build_branch, forward, pack_backbone
from nunatak_registry import Registry
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.publishing import publish
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_versions import load_task

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
METHOD = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
DATA = noisy_data(num_test=40)
assert DATA.test is not None
TEXTS = [example.text for example in DATA.test.examples]
CLASSIFIERS: Any = AutoModelForSequenceClassification


@pytest.fixture(scope="module", name="backbone")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


def trained(backbone: Backbone, *, calibrate: bool) -> TrainedTask:
    changes = {"epochs": 8, "batch_size": 8, "max_length": 32, "calibrate": calibrate}
    recipe = default_recipe(METHOD, changes=dict(changes))
    return fit_task(DATA, recipe, backbone, report=Report()).tested(backbone)


@pytest.fixture(scope="module", name="expected")
def wanted_logits(backbone: Backbone) -> Tensor:
    """The logits of a training without calibration."""
    plain = trained(backbone, calibrate=False)
    branch = build_branch(plain.spec, backbone.config, plain.parameters)
    return logits_of(backbone, branch)


@pytest.fixture(scope="module", name="folder")
def make_folder(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with the calibrated version."""
    folder = tmp_path_factory.mktemp("registry")
    with Registry.open(folder) as registry:
        task = trained(backbone, calibrate=True)
        publish(task, registry, backbone, task="tone", created_at=CREATED_AT)
    return folder


def encodings(backbone: Backbone) -> list[Encoding]:
    return list(backbone.tokenizer.encode(TEXTS, max_length=32))


def logits_of(backbone: Backbone, branch: Branch) -> Tensor:
    rows = [Row(encoding=it, branch=branch) for it in encodings(backbone)]
    with torch.inference_mode():
        return torch.stack(forward(backbone, rows))


def temperature_of(manifest: TaskManifest) -> float:
    assert manifest.calibration is not None
    assert abs(manifest.calibration.temperature - 1) > 0.05
    return manifest.calibration.temperature


async def test_scores_over_http_are_the_softmax_of_logits_divided_by_the_temperature(
    backbone: Backbone, folder: Path, expected: Tensor
) -> None:
    with Registry.open(folder) as registry:
        divided = expected.double().numpy() / temperature_of(registry.resolve("tone"))
        async with running_client(pack_backbone(backbone), registry) as client:
            for function, wanted in ((None, softmax(divided, axis=1)), ("none", divided)):
                parameters = {"top_k": 2} | ({"function_to_apply": function} if function else {})
                body = {"inputs": TEXTS, "parameters": parameters}
                answer = await client.post("/v1/tasks/tone/predict", json=body)
                assert answer.status_code == 200, answer.text
                rows = [
                    {item["label"]: item["score"] for item in row}
                    for row in answer.json()["outputs"]
                ]
                served = torch.tensor([[row[label] for label in DATA.labels] for row in rows])
                torch.testing.assert_close(
                    served.double(), torch.from_numpy(wanted), rtol=0, atol=1e-4
                )


def test_transformers_and_a_second_import_give_the_same_logits(
    backbone: Backbone, folder: Path, expected: Tensor, tmp_path: Path
) -> None:
    with Registry.open(folder) as registry:
        manifest = registry.resolve("tone")
        task = load_task(manifest, registry.read_blob(manifest), backbone)

    export_transformers(task, tmp_path / "plain", backbone)
    model = CLASSIFIERS.from_pretrained(tmp_path / "plain").eval()
    imported = import_transformers(Checkpoint(tmp_path / "plain"), backbone)

    theirs = torch.stack([published_logits(model, it) for it in encodings(backbone)])
    ours = logits_of(backbone, branch_of(imported, backbone))
    for found in (theirs, ours):
        torch.testing.assert_close(found, expected / temperature_of(manifest), rtol=0, atol=1e-4)

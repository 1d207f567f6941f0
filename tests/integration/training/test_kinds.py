"""Every kind of task, from a file of rows to a version with the trained answers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import SHORT_TRAINING, noisy_data, toy_rows, write_jsonl
from doubles.serving import running_client
from doubles.tasks import EVERY_METHOD
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.methods import Method, TopK
from nunatak_model import Backbone, Row, forward, pack_backbone
from nunatak_registry import Registry
from nunatak_training.data import load_task_data
from nunatak_training.fitting import branch_logits, fit_task
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.objectives import objective_of
from nunatak_training.publishing import publish
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainSettings, train
from nunatak_versions import load_task

QUICK: dict[str, JsonValue] = {**SHORT_TRAINING, "epochs": 8}
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
GOALS = {
    TaskKind.SINGLE_LABEL: (Metric.ACCURACY, 0.85),
    TaskKind.MULTI_LABEL: (Metric.F1_MICRO, 0.85),
    TaskKind.REGRESSION: (Metric.SPEARMAN, 0.7),
    TaskKind.TOKEN_CLASSIFICATION: (Metric.ENTITY_F1, 0.8),
    TaskKind.QUESTION_ANSWERING: (Metric.SPAN_F1, 0.9),
    TaskKind.RANKING: (Metric.NDCG, 0.9),
}
"""The usual metric of each kind, and the score that the toy task should reach."""


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=2, pooling=Pooling.MEAN)


def toy_folder(folder: Path, kind: TaskKind) -> Path:
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", toy_rows(kind, 64, seed=1))
    write_jsonl(folder / "dev.jsonl", toy_rows(kind, 16, seed=2))
    return folder


@pytest.mark.parametrize("kind", list(TaskKind))
def test_kind_is_learnt_and_scored_by_what_is_usual_for_it(
    kind: TaskKind, tmp_path: Path, registry: Registry, backbone: Backbone
) -> None:
    chosen = RunSettings(method=TopK(num_layers=1), changes=QUICK)
    settings = TrainSettings(task="toy", data=toy_folder(tmp_path / "toy", kind), settings=chosen)

    outcome = train(settings, registry=registry, backbone=backbone)

    metric, goal = GOALS[kind]
    assert outcome.manifest.metrics[0].name == metric
    assert outcome.manifest.metrics[0].value >= goal
    assert outcome.manifest.head.kind == HeadKind(kind.head.value)
    assert outcome.manifest.head.problem_type == kind.problem_type
    for record in outcome.manifest.metrics:
        if record.interval is None:
            # All resamples of a perfect score agree, so the bootstrap finds no interval.
            assert record.value == 1.0
        else:
            assert record.interval[0] <= record.value <= record.interval[1]
    if kind is TaskKind.REGRESSION:
        # The values themselves, in no other unit.
        probed = [logits[0] for logits in outcome.manifest.probe.logits]
        assert all(isinstance(it, float) and 90 < it < 160 for it in probed)


@pytest.mark.each
@pytest.mark.parametrize(
    "method", [TopK(num_layers=1), *EVERY_METHOD[1:]], ids=lambda method: method.kind
)
@pytest.mark.parametrize("kind", list(TaskKind))
def test_what_is_served_gives_the_dev_logits_of_training(
    kind: TaskKind, method: Method, tmp_path: Path, registry: Registry, backbone: Backbone
) -> None:
    data = load_task_data(toy_folder(tmp_path / "toy", kind))
    recipe = default_recipe(method, changes={**QUICK, "epochs": 2})
    result = fit_task(data, recipe, backbone, report=Report())
    dev = objective_of(data).encode(data.dev, backbone.tokenizer, max_length=recipe.max_length)
    expected = branch_logits(backbone, result.spec, result.parameters)(dev.encodings, dropout=0.0)

    publish(result, registry, backbone, task="toy", created_at=CREATED_AT)

    manifest = registry.resolve("toy")
    loaded = load_task(manifest, registry.read_blob(manifest), backbone)
    with torch.inference_mode():
        for encoding, logits in zip(dev.encodings, expected, strict=True):
            (served,) = forward(backbone, [Row(encoding=encoding, branch=loaded.branch)])
            torch.testing.assert_close(served, logits, rtol=1e-5, atol=1e-4)


async def test_calibrated_scores_over_http_are_of_logits_divided_by_the_temperature(
    registry: Registry, backbone: Backbone
) -> None:
    data = noisy_data(num_test=40)
    assert data.test is not None
    texts = [example.text for example in data.test.examples]
    recipes = (
        default_recipe(TopK(num_layers=1), changes={**QUICK, "calibrate": it})
        for it in (False, True)
    )
    plain, calibrated = (fit_task(data, it, backbone, report=Report()) for it in recipes)
    assert calibrated.calibration is not None
    temperature = calibrated.calibration.temperature
    assert abs(temperature - 1) > 0.05
    encodings = backbone.tokenizer.encode(texts, max_length=plain.recipe.max_length)
    with torch.inference_mode():
        logits = branch_logits(backbone, plain.spec, plain.parameters)(encodings, dropout=0.0)
    divided = torch.stack(logits).double() / temperature

    publish(calibrated, registry, backbone, task="tone", created_at=CREATED_AT)

    async with running_client(pack_backbone(backbone), registry) as client:
        for function, wanted in (("softmax", divided.softmax(1)), ("none", divided)):
            body = {"inputs": texts, "parameters": {"top_k": 2, "function_to_apply": function}}
            answer = await client.post("/v1/tasks/tone/predict", json=body)
            assert answer.status_code == 200, answer.text
            rows = [{it["label"]: it["score"] for it in row} for row in answer.json()["outputs"]]
            served = torch.tensor([[row[label] for label in data.labels] for row in rows])
            torch.testing.assert_close(served.double(), wanted, rtol=0, atol=1e-4)

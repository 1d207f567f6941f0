"""Laws of training with `calibrate`."""

from datetime import UTC, datetime

import pytest
import torch
from pydantic import JsonValue
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.examples import noisy_data, toy_rows
from nunatak_contract.cards import task_card
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import TopK
from nunatak_model import Backbone
from nunatak_training.data import ExampleSet, LabelSet, load_task_data
from nunatak_training.fitting import TrainedTask, branch_logits, evaluate, fit_task
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.publishing import draft_trained
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report
from nunatak_training.scoring.calibration import calibration_error

METHOD = TopK(num_layers=1)
HEAD = {"head.output.weight", "head.output.bias"}


def recipe_of(**changes: JsonValue) -> Recipe:
    quick: dict[str, JsonValue] = {"epochs": 8, "batch_size": 8, "max_length": 32}
    return default_recipe(METHOD, changes={**quick, **changes})


@pytest.fixture(scope="module", name="pair")
def train_both(backbone: Backbone) -> tuple[TrainedTask, TrainedTask]:
    """One task without and one with calibration."""
    plain, calibrated = (
        fit_task(noisy_data(), recipe_of(calibrate=it), backbone, report=Report())
        for it in (False, True)
    )
    return plain.tested(backbone), calibrated.tested(backbone)


def logits_of(trained: TrainedTask, examples: ExampleSet, backbone: Backbone) -> Tensor:
    inputs = [it.model_input for it in examples.examples]
    encodings = backbone.tokenizer.encode(inputs, max_length=trained.recipe.max_length)
    with torch.inference_mode():
        logits = branch_logits(backbone, trained.spec, trained.parameters)
        return torch.stack(logits(encodings, dropout=0.0))


def test_only_the_output_layer_contains_the_temperature(
    pair: tuple[TrainedTask, TrainedTask],
) -> None:
    plain, calibrated = pair

    assert calibrated.calibration is not None
    temperature = calibrated.calibration.temperature
    assert abs(temperature - 1) > 0.05
    for name, tensor in plain.parameters.items():
        expected = tensor / temperature if name in HEAD else tensor
        assert torch.equal(calibrated.parameters[name], expected)


def test_a_decoders_head_without_offset_is_calibrated_too() -> None:
    llama = tiny_backbone(num_layers=2, family="llama")

    trained = fit_task(noisy_data(), recipe_of(calibrate=True, epochs=1), llama, report=Report())

    assert trained.calibration is not None
    assert "head.output.bias" not in trained.parameters


def test_every_answer_and_every_score_of_answers_stays(
    pair: tuple[TrainedTask, TrainedTask], backbone: Backbone
) -> None:
    plain, calibrated = pair
    examples = noisy_data().test
    assert examples is not None

    before, after = (logits_of(it, examples, backbone) for it in pair)

    assert torch.equal(before.argmax(dim=1), after.argmax(dim=1))
    assert plain.scores == calibrated.scores
    assert plain.test is not None
    assert calibrated.test is not None
    assert plain.test.values == calibrated.test.values
    assert plain.calibration is plain.test.reliability is None


def test_the_error_of_test_examples_is_that_of_the_published_parameters(
    pair: tuple[TrainedTask, TrainedTask], backbone: Backbone
) -> None:
    data = noisy_data()
    assert data.test is not None
    assert pair[1].test is not None
    recorded = pair[1].test.reliability
    assert recorded is not None

    for trained, error in zip(pair, (recorded.error_before, recorded.error_after), strict=True):
        scores, predicted = logits_of(trained, data.test, backbone).double().softmax(1).max(1)
        right = [
            data.labels[int(number)] == label
            for number, label in zip(predicted, data.test.labels(str), strict=True)
        ]
        expected = calibration_error(scores.numpy(), torch.tensor(right).double().numpy())
        assert error == pytest.approx(expected, abs=1e-6)
    assert recorded.data_digest == data.test.digest


def test_the_manifest_records_the_temperature_with_its_evidence(
    pair: tuple[TrainedTask, TrainedTask], backbone: Backbone
) -> None:
    plain, calibrated = (
        draft_trained(it, backbone, task="tone", created_at=datetime(2026, 1, 1, tzinfo=UTC))
        for it in pair
    )

    record = calibrated.manifest.calibration
    assert record is not None
    assert pair[1].calibration is not None
    assert record.temperature == pair[1].calibration.temperature
    assert record.dev == pair[1].calibration.dev
    assert record.test == (pair[1].test and pair[1].test.reliability)
    assert [curve.label for curve in record.curves] == ["early", "late"]
    assert "calibration" not in plain.manifest.model_dump_json()
    assert "calibrate" not in plain.manifest.model_dump_json()
    kept = record.model_copy(update={"temperature": 1.0})
    for found, told in ((record, "fitted to the dev examples"), (kept, "no other one lowered")):
        changes = {"version": 1, "calibration": found}
        card = task_card(TaskManifest.model_validate({**dict(calibrated.manifest), **changes}))
        section = card.partition("## Calibration")[2].partition("## Data")[0]
        assert [it in section for it in ("fitted to", told)] == [found is record, True]


def test_fitted_thresholds_give_the_recorded_scores(backbone: Backbone) -> None:
    data = load_task_data(
        {
            part: toy_rows(TaskKind.MULTI_LABEL, 120, seed=seed)
            for seed, part in enumerate(("train", "dev", "test"))
        }
    )
    half, fitted = (
        fit_task(
            data, recipe_of(calibrate=True, epochs=2, thresholds=it), backbone, report=Report()
        )
        for it in (None, "f1")
    )

    assert not half.thresholds
    assert set(fitted.thresholds) == set(data.labels)
    assert data.test is not None
    for examples, scores in (
        (data.dev, fitted.scores),
        (data.test, evaluate(fitted, data.test, backbone).values),
    ):
        needed = torch.tensor([fitted.thresholds[label] for label in data.labels])
        found = logits_of(fitted, examples, backbone).sigmoid() >= needed
        predicted = [
            {label for label, applies in zip(data.labels, row, strict=True) if applies}
            for row in found
        ]
        expected = [set(label.names) for label in examples.labels(LabelSet)]
        right = sum(own == other for own, other in zip(predicted, expected, strict=True))
        assert scores[Metric.ACCURACY].value == right / len(expected)
    assert fitted.scores[Metric.F1_MACRO].value >= half.scores[Metric.F1_MACRO].value
    draft = draft_trained(
        fitted, backbone, task="tone", created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert draft.manifest.head.thresholds == fitted.thresholds

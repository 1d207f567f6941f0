from collections.abc import Mapping
from itertools import product

import pytest
import torch
from pydantic import JsonValue
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.examples import SHORT_TRAINING, toy_data, toy_rows
from doubles.tasks import EVERY_METHOD
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Method, TopK
from nunatak_model import (
    Backbone,
    BranchSpec,
    TrunkCache,
    initial_parameters,
    parameter_shapes,
    quantize_backbone,
    stored_parameters,
)
from nunatak_training.data import load_task_data
from nunatak_training.data.examples import with_joined
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import TrainedTask, branch_logits, branch_spec, evaluate, fit_task
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report
from nunatak_training.scoring.calibration import MIN_EXAMPLES


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=3, pooling=Pooling.MEAN)


def quick_recipe(method: Method, **changes: JsonValue) -> Recipe:
    return default_recipe(method, changes={**SHORT_TRAINING, "epochs": 8, **changes})


def trained(method: Method, backbone: Backbone, **changes: JsonValue) -> TrainedTask:
    return fit_task(toy_data(), quick_recipe(method, **changes), backbone, report=Report())


@pytest.fixture(
    name="learnt",
    scope="module",
    params=[*EVERY_METHOD, Bottleneck(size=8, first_layer=1)],
    ids=lambda method: method.kind,
)
def learn(request: pytest.FixtureRequest, backbone: Backbone) -> TrainedTask:
    return trained(request.param, backbone)


def test_every_method_learns_a_separable_task(learnt: TrainedTask) -> None:
    # One half is chance, and a frozen random encoder allows no higher score than this.
    assert learnt.scores[Metric.ACCURACY].value >= 0.85
    assert learnt.history[-1].train_loss < learnt.history[0].train_loss


def test_recorded_scores_are_those_of_the_returned_parameters(
    learnt: TrainedTask, backbone: Backbone
) -> None:
    assert learnt.scores == evaluate(learnt, learnt.data.dev, backbone).values


@pytest.mark.usefixtures("learnt")
def test_backbone_is_bit_identical_after_training(backbone: Backbone) -> None:
    untrained = tiny_backbone(num_layers=3, pooling=Pooling.MEAN).parameters

    assert all(torch.equal(backbone.parameters[name], it) for name, it in untrained.items())
    assert not any(tensor.requires_grad for tensor in backbone.parameters.values())


def test_exactly_the_declared_parameters_are_trained(
    learnt: TrainedTask, backbone: Backbone
) -> None:
    generator = torch.Generator().manual_seed(learnt.recipe.seed)
    initial = initial_parameters(learnt.spec, backbone, generator=generator)

    assert not any(torch.equal(learnt.parameters[name], initial[name]) for name in initial)
    shapes = {name: tuple(tensor.shape) for name, tensor in learnt.parameters.items()}
    assert shapes == parameter_shapes(learnt.spec, backbone.config)


@pytest.mark.parametrize("method", [TopK(num_layers=2), Full()], ids=lambda method: method.kind)
def test_own_layers_are_quantized_and_scored_as_they_are_served(method: Method) -> None:
    backbone = quantize_backbone(tiny_backbone(num_layers=3, pooling=Pooling.MEAN))

    result = trained(method, backbone)

    weight = result.parameters["layers.2.qkv.weight"]
    assert weight.dtype is torch.int8
    assert "layers.2.qkv.weight_scale" in result.parameters
    assert result.scores[Metric.ACCURACY].value >= 0.85
    assert result.scores == evaluate(result, result.data.dev, backbone).values
    assert set(result.parameters) > set(parameter_shapes(result.spec, backbone.config))


def test_dev_scores_of_own_layers_come_from_the_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = quantize_backbone(tiny_backbone(num_layers=3, pooling=Pooling.MEAN))

    def spoiled(
        spec: BranchSpec, parameters: Mapping[str, Tensor], backbone: Backbone
    ) -> Mapping[str, Tensor]:
        found = dict(stored_parameters(spec, parameters, backbone))
        return {**found, "head.output.weight": torch.zeros_like(found["head.output.weight"])}

    monkeypatch.setattr("nunatak_training.fitting.stored_parameters", spoiled)

    result = trained(TopK(num_layers=2), backbone)

    assert result.scores[Metric.ACCURACY].value == 0.5


def test_recipe_metric_comes_first_and_accuracy_is_there_too(backbone: Backbone) -> None:
    result = trained(HeadOnly(), backbone, metric="f1", positive_label="late")

    assert list(result.scores) == [Metric.F1, Metric.ACCURACY]


def test_head_follows_the_backbone_unless_the_recipe_says_otherwise(backbone: Backbone) -> None:
    kind = HeadKind.SEQUENCE_CLASSIFICATION
    changes: dict[str, JsonValue] = {"pooling": "first", "dense": True}
    own, changed = (
        branch_spec(recipe, backbone, kind=kind, num_outputs=3).head
        for recipe in (default_recipe(HeadOnly()), default_recipe(HeadOnly(), changes=changes))
    )

    assert (own.num_labels, own.pooling, own.dense) == (3, Pooling.MEAN, False)
    assert (changed.pooling, changed.dense) == (Pooling.FIRST, True)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        (TaskKind.SINGLE_LABEL, {"max_length": 512}, "max_length must be at most"),
        (TaskKind.QUESTION_ANSWERING, {"max_length": 6}, "at least 8 tokens"),
        (TaskKind.TOKEN_CLASSIFICATION, {"pooling": "mean"}, "no pooling"),
        (TaskKind.TOKEN_CLASSIFICATION, {"on_long": "cut"}, "reads long texts as windows"),
        (TaskKind.REGRESSION, {"metric": "accuracy"}, "scored by spearman, pearson"),
        (TaskKind.SINGLE_LABEL, {"metric": "f1", "positive_label": "y"}, "positive_label must be"),
        (TaskKind.REGRESSION, {"default_label": "none"}, "has no default label, got 'none'"),
        (TaskKind.SINGLE_LABEL, {"default_label": "z"}, "none or one of 'early', 'late', got 'z'"),
        (TaskKind.SINGLE_LABEL, {"joined_share": 1, "default_label": "none"}, "default_label is"),
        (TaskKind.SINGLE_LABEL, {"joined_share": 1}, "default_label is"),
        (TaskKind.SINGLE_LABEL, {"calibrate": True}, "at least 50 dev examples, got 49"),
        *(
            (it, {"calibrate": True}, f"single-label or multi-label.*got {it}")
            for it in (TaskKind.REGRESSION, TaskKind.TOKEN_CLASSIFICATION, TaskKind.RANKING)
        ),
        (TaskKind.SINGLE_LABEL, {"calibrate": True, "thresholds": "f1"}, "needs a multi-label"),
    ],
)
def test_recipe_that_does_not_fit_the_data_or_the_backbone_is_refused(
    kind: TaskKind, changes: dict[str, JsonValue], problem: str, backbone: Backbone
) -> None:
    data = load_task_data({"train": toy_rows(kind, 8), "dev": toy_rows(kind, MIN_EXAMPLES - 1)})

    with pytest.raises(InvalidRecipeError, match=problem):
        fit_task(data, quick_recipe(HeadOnly(), **changes), backbone, report=Report())


def test_what_is_frozen_runs_once_however_often_it_is_trained_on(backbone: Backbone) -> None:
    recipe = quick_recipe(TopK(num_layers=1))
    spec = branch_spec(recipe, backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_outputs=2)
    parameters = initial_parameters(spec, backbone, generator=torch.Generator().manual_seed(0))
    texts = [example.text for example in toy_data().train.examples]
    encodings = backbone.tokenizer.encode(texts, max_length=recipe.max_length)
    trunk = TrunkCache(max_bytes=2**20)
    logits = branch_logits(backbone, spec, parameters, trunk)

    for _ in range(3):
        logits(encodings, dropout=0.1)

    assert trunk.stats.misses == len(set(encodings))
    assert trunk.stats.hits == 2 * len(set(encodings))


def test_joined_copies_stand_beside_the_default_label_and_fit() -> None:
    examples = toy_data().train
    sizes = [len(it.text.split()) for it in examples.examples]
    most = max(sizes) + min(sizes)

    joined = with_joined(examples, 0.5, default="early", sizes=sizes, most=most, seed=3)

    own, copies = joined.examples[: len(examples)], joined.examples[len(examples) :]
    texts = {label: {it.text for it in own if it.label == label} for label in ("early", "late")}
    assert own == examples.examples
    assert len(copies) == len(examples) / 2
    assert all(len(it.text.split()) <= most for it in copies)
    pairs = {it: list(product(texts[it], texts["early"])) for it in texts}
    before = [any(f"{a} {b}" == it.text for a, b in pairs[str(it.label)]) for it in copies]
    after = [any(f"{b} {a}" == it.text for a, b in pairs[str(it.label)]) for it in copies]
    assert all(it or other for it, other in zip(before, after, strict=True))
    assert not all(before)
    assert not all(after)
    assert with_joined(examples, 1, default="early", sizes=sizes, most=1, seed=3) == examples


def test_a_run_learns_from_joined_copies_and_records_its_own_examples(backbone: Backbone) -> None:
    changes: dict[str, JsonValue] = {"default_label": "early", "max_length": 64, "epochs": 1}
    alone, joined = (
        trained(HeadOnly(), backbone, **{**changes, "joined_share": share}) for share in (0, 1)
    )

    assert joined.data == alone.data
    assert not torch.equal(
        joined.parameters["head.output.bias"], alone.parameters["head.output.bias"]
    )

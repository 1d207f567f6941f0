from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, toy_data
from doubles.killed import EveryTime, Killed, Mortal
from nunatak_model import Backbone, Full, Method, TopK
from nunatak_training import (
    Example,
    ExampleSet,
    InvalidRecipeError,
    Recipe,
    SilentReport,
    TaskData,
    TaskKind,
    default_recipe,
)
from nunatak_training.multitask import FittedEncoder, fit_encoder

NUM_TRAIN = {"letters": 64, "value": 20}


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(name="tasks", scope="module")
def make_tasks() -> dict[str, TaskData]:
    return {"letters": toy_data(), "value": _values()}


def _values() -> TaskData:
    """How many of the letters are an a: a task of another kind."""
    texts = [" ".join("a" * (number % 5) + "b" * (4 - number % 5)) for number in range(25)]
    examples = [Example(text=text, label=float(text.count("a"))) for text in texts]
    train = ExampleSet(examples=tuple(examples[: NUM_TRAIN["value"]]))
    dev = ExampleSet(examples=tuple(examples[NUM_TRAIN["value"] :]))
    return TaskData(name="value", kind=TaskKind.REGRESSION, train=train, dev=dev, labels=("value",))


def recipe_of(method: Method | None = None, **changes: JsonValue) -> Recipe:
    quick: dict[str, JsonValue] = {
        "epochs": 6,
        "batch_size": 8,
        "max_length": 32,
        "learning_rate": 2e-3,
        "head_learning_rate": 2e-2,
    }
    return default_recipe(method or Full(), changes={**quick, **changes})


@pytest.fixture(name="fitted", scope="module")
def fit(tasks: dict[str, TaskData], backbone: Backbone) -> FittedEncoder:
    return fit_encoder(tasks, recipe_of(), backbone, report=SilentReport())


def test_tasks_of_different_kinds_are_learnt_together(fitted: FittedEncoder) -> None:
    assert fitted.scores["letters"].main >= 0.85
    assert fitted.scores["value"].main >= 0.8  # correlation
    assert fitted.history[-1].train_loss < fitted.history[0].train_loss


def test_all_of_the_encoder_moves_and_the_backbone_stays(
    fitted: FittedEncoder, backbone: Backbone
) -> None:
    assert fitted.parameters.keys() == backbone.parameters.keys()
    unmoved = [
        name
        for name, tensor in fitted.parameters.items()
        if torch.equal(tensor, backbone.parameters[name])
    ]
    assert not unmoved
    assert not any(tensor.requires_grad for tensor in backbone.parameters.values())


def test_same_seed_gives_the_same_bytes(
    fitted: FittedEncoder, tasks: dict[str, TaskData], backbone: Backbone
) -> None:
    again = fit_encoder(tasks, recipe_of(), backbone, report=SilentReport())
    other = fit_encoder(tasks, recipe_of(seed=1), backbone, report=SilentReport())

    assert _equal(fitted, again)
    assert not _equal(fitted, other)


def test_a_run_that_dies_again_and_again_gives_the_bytes_of_one_that_does_not(
    tasks: dict[str, TaskData], backbone: Backbone, tmp_path: Path
) -> None:
    recipe = recipe_of(epochs=3)
    steps = sum(-(-count // 8) for count in NUM_TRAIN.values())
    checkpoint = EveryTime(tmp_path / "run.safetensors")
    resumed = list[int]()
    for dies_at in (1, 5, steps, steps + 1, 2 * steps + 3):
        mortal = Mortal(dies_at=dies_at)
        with pytest.raises(Killed):
            fit_encoder(tasks, recipe, backbone, report=mortal, checkpoint=checkpoint)
        resumed.append(mortal.num_resumed)

    last = RecordingReport()
    found = fit_encoder(tasks, recipe, backbone, report=last, checkpoint=checkpoint)
    whole = fit_encoder(tasks, recipe, backbone, report=SilentReport())

    assert [*resumed, last.num_resumed] == [0, 0, 4, steps - 1, steps, 2 * steps + 2]
    assert _equal(found, whole)
    assert found.scores == whole.scores
    assert [it.dev_loss for it in found.history] == [it.dev_loss for it in whole.history]


def test_every_epoch_steps_through_each_batch_of_every_task(
    tasks: dict[str, TaskData], backbone: Backbone
) -> None:
    report = RecordingReport()

    fit_encoder(tasks, recipe_of(epochs=2), backbone, report=report)

    steps = sum(-(-count // 8) for count in NUM_TRAIN.values())
    assert report.num_steps == len(report.losses) == 2 * steps


def test_kept_epoch_has_the_highest_mean_score(fitted: FittedEncoder) -> None:
    best = max(fitted.history, key=lambda it: (it.dev_score, -it.dev_loss))

    assert fitted.best_epoch == best.epoch
    mean = sum(each.main for each in fitted.scores.values()) / len(fitted.scores)
    assert mean == pytest.approx(best.dev_score)


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        (recipe_of(TopK(num_layers=1)), "method full, got topk"),
        (recipe_of(regularizer={"name": "graddrop"}), "no regularizer"),
        (recipe_of(tapt={"epochs": 1}), "no tapt"),
        (recipe_of(metric="accuracy"), "no metric"),
    ],
)
def test_recipe_that_has_no_meaning_here_is_refused(
    recipe: Recipe, problem: str, tasks: dict[str, TaskData], backbone: Backbone
) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        fit_encoder(tasks, recipe, backbone, report=SilentReport())


def test_one_task_alone_is_refused(backbone: Backbone) -> None:
    with pytest.raises(InvalidRecipeError, match="two tasks or more, got 1"):
        fit_encoder({"letters": toy_data()}, recipe_of(), backbone, report=SilentReport())


def _equal(one: FittedEncoder, other: FittedEncoder) -> bool:
    return all(torch.equal(it, other.parameters[name]) for name, it in one.parameters.items())


@pytest.mark.parametrize("seed", [2**50, 2**63 - 1])
def test_every_seed_of_a_recipe_can_be_trained_with(
    tasks: dict[str, TaskData], backbone: Backbone, seed: int
) -> None:
    recipe = recipe_of(seed=seed, epochs=1)

    assert fit_encoder(tasks, recipe, backbone, report=SilentReport()).best_epoch == 1

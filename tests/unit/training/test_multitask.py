"""Laws of training one encoder on several tasks."""

from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, rows_of, toy_data, toy_examples, write_jsonl
from doubles.killed import Killed, Mortal
from doubles.refusals import raises
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import Full, Method, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_training.data import Example, ExampleSet, TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.kinds import TaskKind
from nunatak_training.multitask import FittedEncoder, MultitaskOutcome, fit_encoder, train_backbone
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report

NUM_TRAIN = {"letters": 64, "value": 20}


@pytest.fixture(name="tasks", scope="module")
def make_tasks() -> dict[str, TaskData]:
    return {"letters": toy_data(), "value": _values()}


def _values() -> TaskData:
    """A task of another kind: the number of letters a in a text."""
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
    return fit_encoder(tasks, recipe_of(), backbone, report=Report())


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
        (recipe_of(calibrate=True), "no calibrate"),
        (recipe_of(default_label="none"), "no default_label"),
        (recipe_of(joined_share=0.5), "no joined_share"),
        (recipe_of(on_long="cut"), "no on_long"),
    ],
)
def test_recipe_that_has_no_meaning_here_is_refused(
    recipe: Recipe, problem: str, tasks: dict[str, TaskData], backbone: Backbone
) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        fit_encoder(tasks, recipe, backbone, report=Report())


def test_one_task_alone_is_refused(backbone: Backbone) -> None:
    with pytest.raises(InvalidRecipeError, match="two tasks or more, got 1"):
        fit_encoder({"letters": toy_data()}, recipe_of(), backbone, report=Report())


@pytest.mark.parametrize("seed", [2**50, 2**63 - 1])
def test_every_seed_of_a_recipe_can_be_trained_with(
    tasks: dict[str, TaskData], backbone: Backbone, seed: int
) -> None:
    recipe = recipe_of(seed=seed, epochs=1)

    assert fit_encoder(tasks, recipe, backbone, report=Report()).best_epoch == 1


def settings_in(folder: Path) -> tuple[dict[str, Path], Recipe, Path]:
    tasks = {
        name: write_jsonl(folder / f"{name}.jsonl", rows_of(toy_examples(40)))
        for name in ("first", "second")
    }
    changes = {"epochs": 1, "batch_size": 8, "max_length": 32}
    recipe = default_recipe(Full(), changes=changes)
    return tasks, recipe, folder / "shared-base"


@pytest.fixture(name="base", scope="module")
def make_base() -> Backbone:
    return tiny_backbone(num_layers=2, pooling=Pooling.MEAN)


@pytest.fixture(name="outcome", scope="module")
def train(base: Backbone, tmp_path_factory: pytest.TempPathFactory) -> MultitaskOutcome:
    return train_backbone(*settings_in(tmp_path_factory.mktemp("multitask")), base)


def test_what_is_written_loads_as_a_backbone_of_its_own(
    outcome: MultitaskOutcome, base: Backbone
) -> None:
    loaded = load_backbone(outcome.folder)

    assert loaded.name == "shared-base"
    assert loaded.digest == outcome.digest != base.digest
    assert loaded.config == base.config
    assert loaded.pooling is base.pooling
    assert loaded.tokenizer.digest == base.tokenizer.digest
    assert all(
        torch.equal(loaded.parameters[name], tensor)
        for name, tensor in outcome.fitted.parameters.items()
    )
    assert loaded.pooler is not None
    assert base.pooler is not None
    assert torch.equal(loaded.pooler.weight, base.pooler.weight)


def test_a_killed_run_writes_nothing_and_its_next_start_ends_as_if_it_had_not_been(
    outcome: MultitaskOutcome, base: Backbone, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(Killed):
        train_backbone(*settings_in(tmp_path), base, report=Mortal(dies_at=3), checkpoints=cache)
    assert not (tmp_path / "shared-base").exists()

    again = train_backbone(*settings_in(tmp_path), base, checkpoints=cache)

    assert again.digest == outcome.digest
    assert not list(cache.rglob("*.safetensors"))


def test_place_that_takes_no_new_folder_is_refused_before_training_and_stays_as_it_is(
    base: Backbone, tmp_path: Path
) -> None:
    (tasks, recipe, output), report = settings_in(tmp_path), RecordingReport()
    output.mkdir()
    (output / "kept.txt").write_text("kept")

    with raises("folder_in_use"):
        train_backbone(tasks, recipe, output, base, report=report)
    with pytest.raises(FileExistsError):
        train_backbone(tasks, recipe, output / "kept.txt" / "base", base, report=report)

    assert report.num_steps == 0
    assert [path.name for path in output.iterdir()] == ["kept.txt"]


def test_architecture_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with raises("unsupported_export", match="modernbert"):
        train_backbone(*settings_in(tmp_path), tiny_backbone(num_layers=2, family="modernbert"))

"""A file of examples becomes a version that another process can load."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.examples import RecordingReport, load_test_set, rows_of, toy_examples, write_jsonl
from doubles.refusals import raises
from nunatak_contract.cards import score_text, task_card
from nunatak_contract.enums import IntervalMethod
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.data import DataWarning, load_task_data
from nunatak_training.fitting import evaluate, fit_task, recipe_on
from nunatak_training.kinds import Metric
from nunatak_training.loop.checkpoint import SavedRun, run_key
from nunatak_training.recipes import LayerChoice
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainOutcome, TrainSettings, train

QUICK: dict[str, JsonValue] = {"epochs": 3, "min_steps": 0, "batch_size": 16, "max_length": 32}


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=3)


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", rows_of(toy_examples(64, seed=1)))
    write_jsonl(folder / "dev.jsonl", rows_of(toy_examples(16, seed=2)))
    return folder


def settings(method: Method, data: Path, *, task: str = "toy") -> TrainSettings:
    return TrainSettings(task=task, data=data, settings=RunSettings(method=method, changes=QUICK))


def test_the_record_names_the_backbone_by_its_own_name(
    folder: Path, tmp_path: Path, registry: Registry
) -> None:
    loaded = load_backbone(save_tiny_backbone(tmp_path / "tiny"))

    outcome = train(settings(HeadOnly(), folder), registry=registry, backbone=loaded)

    assert outcome.manifest.backbone.digest == loaded.digest
    assert outcome.manifest.recipe is not None
    assert outcome.manifest.recipe.settings["backbone"] == loaded.name


def test_outcome_has_scores_and_course(
    folder: Path, registry: Registry, backbone: Backbone
) -> None:
    report = RecordingReport()

    outcome: TrainOutcome = train(
        settings(TopK(num_layers=1), folder), registry=registry, backbone=backbone, report=report
    )

    assert outcome.manifest.metrics[0].name == Metric.ACCURACY
    assert outcome.history == tuple(report.epochs)
    assert outcome.history[outcome.best_epoch - 1].dev_score == outcome.manifest.metrics[0].value
    assert outcome.seconds > sum(epoch.seconds for epoch in outcome.history)


def test_scores_of_test_examples_stand_in_the_manifest_and_on_the_card(
    folder: Path, registry: Registry, backbone: Backbone
) -> None:
    without = train(settings(HeadOnly(), folder), registry=registry, backbone=backbone)
    path = write_jsonl(folder / "test.jsonl", rows_of(toy_examples(24, seed=3)))

    outcome = train(settings(HeadOnly(), folder), registry=registry, backbone=backbone)

    assert without.manifest.test_metrics == ()
    assert "test_metrics" not in without.manifest.model_dump(mode="json")
    (metric,) = registry.resolve("toy").test_metrics
    examples = load_test_set(path, load_task_data(folder))
    trained = fit_task(
        load_task_data(folder),
        recipe_on(settings(HeadOnly(), folder).settings, backbone),
        backbone,
        report=RecordingReport(),
    )
    assert metric == evaluate(trained, examples, backbone).values[Metric.ACCURACY]
    assert (metric.data_digest, metric.num_examples) == (examples.digest, 24)
    assert metric.interval_method is IntervalMethod.WILSON
    assert score_text(metric) in task_card(outcome.manifest).partition("On test examples")[2]


def test_examples_longer_than_max_length_are_told_of(
    folder: Path, registry: Registry, backbone: Backbone
) -> None:
    told = list[DataWarning]()
    chosen = RunSettings(method=HeadOnly(), changes={**QUICK, "max_length": 6})

    outcome = train(
        replace(settings(HeadOnly(), folder), settings=chosen),
        registry=registry,
        backbone=backbone,
        warn=told.extend,
    )

    data = outcome.manifest.data
    assert data is not None
    (warning,) = [it for it in told if it.problem == "longer than max_length"]
    assert warning.found.startswith(f"{data.num_train_long} of 64 train examples")


def test_a_run_killed_before_it_published_goes_on_and_leaves_no_checkpoint(
    folder: Path, registry: Registry, backbone: Backbone, tmp_path: Path
) -> None:
    chosen, data = settings(HeadOnly(), folder), load_task_data(folder)
    recipe = recipe_on(chosen.settings, backbone)
    place = (
        tmp_path / "checkpoints" / f"{run_key({chosen.task: data}, recipe, backbone)}.safetensors"
    )
    place.parent.mkdir()
    # With a clock that stands still, a checkpoint is always due.
    held = SavedRun(place, interval=0.0, clock=lambda: 0.0)
    killed = fit_task(data, recipe, backbone, report=RecordingReport(), checkpoint=held)
    report = RecordingReport()

    outcome = train(
        chosen, registry=registry, backbone=backbone, report=report, checkpoints=tmp_path
    )

    assert (report.num_resumed, report.losses) == (12, [])
    assert outcome.history == killed.history
    assert not place.exists()


def test_a_registry_that_cannot_store_the_version_is_refused_before_training(
    folder: Path, registry: Registry, backbone: Backbone, tmp_path: Path
) -> None:
    (tmp_path / "registry" / "blobs").write_text("a file", encoding="utf-8")
    report = RecordingReport()

    with raises("store_unavailable"):
        train(settings(HeadOnly(), folder), registry=registry, backbone=backbone, report=report)

    assert report.losses == []


def test_layers_found_by_a_target_stand_in_the_manifest(
    folder: Path, registry: Registry, backbone: Backbone
) -> None:
    search = RunSettings(method=TopK(num_layers=2), layer_target=0.5, changes=QUICK)
    chosen = replace(settings(TopK(num_layers=2), folder), settings=search)

    outcome = train(chosen, registry=registry, backbone=backbone)

    assert outcome.manifest.recipe is not None
    choice = LayerChoice.model_validate(outcome.manifest.recipe.settings["layer_choice"])
    assert choice.layers in {run.layers for run in choice.runs}

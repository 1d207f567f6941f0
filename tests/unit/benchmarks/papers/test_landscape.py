"""Laws of the loss along a line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import JsonValue

from benchmarks.papers.analysis.landscape import landscape, line_losses
from doubles.backbones import tiny_backbone
from doubles.examples import toy_data, toy_rows, write_jsonl
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.data import load_task_data
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report

QUICK = {"epochs": 4, "max_length": 32, "dropout": 0.0}


def test_line_is_twenty_even_steps_from_minus_two_to_two_and_both_models() -> None:
    points = line_losses({"w": torch.tensor(0.0)}, {"w": torch.tensor(1.0)}, lambda _: 0.0)

    expected = sorted([*np.linspace(-2, 2, 20).tolist(), 0.0, 1.0])
    assert [it.alpha for it in points] == pytest.approx(expected)


def test_loss_is_taken_at_the_start_plus_a_times_the_way() -> None:
    start = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    end = {"w": torch.tensor([2.0, 0.0]), "b": torch.tensor(5.0)}

    points = line_losses(
        start, end, lambda found: float(found["w"].sum() * 10 + found["b"]), num_points=5
    )

    for it in points:
        a = it.alpha
        assert it.loss == pytest.approx(10 * (1 + a * 1 + 2 - a * 2) + 3 + a * 2)


def test_at_one_the_landscape_has_the_loss_of_the_trained_task() -> None:
    backbone = tiny_backbone(num_layers=2)
    data = toy_data(num_train=32, num_dev=16)
    trained = fit_task(
        data, default_recipe(HeadOnly(), changes=dict(QUICK)), backbone, report=Report()
    )

    points = landscape(trained, backbone, data.dev)

    best = trained.history[[it.epoch for it in trained.history].index(trained.best_epoch)]
    (at_one,) = (it.loss for it in points if it.alpha == 1.0)
    assert best.dev_loss == pytest.approx(at_one)


def test_same_data_gives_the_same_landscape_and_training_went_downhill() -> None:
    backbone = tiny_backbone(num_layers=2)
    data = toy_data(num_train=32, num_dev=16)
    recipe = default_recipe(HeadOnly(), changes=dict(QUICK))
    first, second = (fit_task(data, recipe, backbone, report=Report()) for _ in range(2))

    points = landscape(first, backbone, data.train)

    assert points == landscape(second, backbone, data.train)
    at = {round(it.alpha, 3): it.loss for it in points}
    assert at[0.947] < at[0.105]


def test_line_begins_where_tuning_began_after_pretraining() -> None:
    backbone = tiny_backbone(num_layers=2)
    data = toy_data(num_train=32, num_dev=16)
    # At this small rate, tuning does not move the pretrained parameters.
    changes: dict[str, JsonValue] = {
        **QUICK,
        "learning_rate": 1e-12,
        "head_learning_rate": 1e-12,
        "min_steps": 0,
    }
    changes["tapt"] = {"epochs": 3, "learning_rate": 1e-2}
    recipe = default_recipe(TopK(num_layers=1), changes=changes)
    trained = fit_task(data, recipe, backbone, report=Report())

    losses = [it.loss for it in landscape(trained, backbone, data.dev)]

    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-4)


def test_regression_is_measured_in_squared_units(tmp_path: Path) -> None:
    backbone = tiny_backbone(num_layers=2)
    rows = toy_rows(TaskKind.REGRESSION, 40)
    data = load_task_data(write_jsonl(tmp_path / "train.jsonl", rows))
    trained = fit_task(
        data, default_recipe(HeadOnly(), changes=dict(QUICK)), backbone, report=Report()
    )

    points = landscape(trained, backbone, data.dev)

    values = np.array(data.train.labels(float))
    best = trained.history[[it.epoch for it in trained.history].index(trained.best_epoch)]
    around = np.interp(1.0, [it.alpha for it in points], [it.loss for it in points])
    assert best.dev_loss * values.var() == pytest.approx(around, rel=0.2)

"""Laws of the loss along a line."""

import numpy as np
import pytest
import torch
from pydantic import JsonValue

from benchmarks.papers.analysis.landscape import landscape, line_losses
from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from nunatak_contract.methods import TopK
from nunatak_training.fitting import fit_task
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

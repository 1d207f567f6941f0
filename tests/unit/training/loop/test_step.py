from math import ceil

import pytest
import torch
from torch import optim

from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.loop.step import MAX_EVALUATIONS, Course, build_optimizer, course_of
from nunatak_training.recipes import Schedule, default_recipe


def test_rate_rises_to_its_full_value_and_falls_towards_zero() -> None:
    course = Course(num_epochs=2, steps_per_epoch=10, warmup_steps=4)

    factors = [course.rate_factor(step) for step in range(course.num_steps)]

    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.1
    assert course.rate_factor(course.num_steps) == 0.0


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule.LINEAR, [1.0, 0.75, 0.5, 0.25, 0.0]),
        (Schedule.COSINE, [1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0]),
        pytest.param(Schedule.CONSTANT, [1.0] * 5, id="constant"),
    ],
)
def test_rate_follows_the_schedule_after_its_warmup(
    schedule: Schedule, factors: list[float]
) -> None:
    course = Course(num_epochs=1, steps_per_epoch=8, warmup_steps=4, schedule=schedule)

    assert [course.rate_factor(step) for step in range(4, 9)] == pytest.approx(factors)
    assert course.rate_factor(0) == 0.25


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", optim.AdamW), ("adam", optim.Adam), ("sgd", optim.SGD)]
)
def test_recipe_names_the_optimizer(name: str, kind: type[optim.Optimizer]) -> None:
    recipe = default_recipe(TopK(num_layers=2), changes={"optimizer": name})

    assert type(build_optimizer({"head.output.bias": torch.zeros(2)}, recipe)) is kind


def test_rate_starts_full_without_warmup() -> None:
    assert Course(num_epochs=1, steps_per_epoch=1, warmup_steps=0).rate_factor(0) == 1.0


@pytest.mark.parametrize(("num_examples", "num_epochs"), [(10_000, 3), (100, 25)])
def test_small_data_gets_more_epochs_to_reach_the_steps(num_examples: int, num_epochs: int) -> None:
    changes = {"epochs": 3, "min_steps": 100, "batch_size": 32, "warmup_share": 0.1}
    recipe = default_recipe(TopK(num_layers=2), changes=dict(changes))

    course = course_of(recipe, steps_per_epoch=ceil(num_examples / recipe.batch_size))

    assert course.num_epochs == num_epochs
    assert course.num_steps >= 100


@pytest.mark.parametrize("num_epochs", [1, 3, 20, 21, 150])
def test_few_epochs_are_scored_of_many_but_the_last_always(num_epochs: int) -> None:
    course = Course(num_epochs=num_epochs, steps_per_epoch=1, warmup_steps=0)

    scored = [epoch for epoch in range(1, num_epochs + 1) if course.is_evaluated(epoch)]

    assert len(scored) <= MAX_EVALUATIONS
    assert len(scored) >= min(num_epochs, MAX_EVALUATIONS // 2)
    assert scored[-1] == num_epochs


def test_head_has_its_own_rate_and_vectors_have_no_decay() -> None:
    parameters = {
        "layers.0.qkv.weight": torch.zeros(2, 2),
        "layers.0.qkv.bias": torch.zeros(2),
        "head.output.weight": torch.zeros(2, 2),
        "head.output.bias": torch.zeros(2),
    }
    changes = {"learning_rate": 0.1, "head_learning_rate": 0.2, "weight_decay": 0.3}

    groups = build_optimizer(
        parameters, default_recipe(TopK(num_layers=2), changes=dict(changes))
    ).param_groups

    found = {
        name: (group["lr"], group["weight_decay"])
        for group in groups
        for name, tensor in parameters.items()
        if any(tensor is member for member in group["params"])
    }
    assert found == {
        "layers.0.qkv.weight": (0.1, 0.3),
        "layers.0.qkv.bias": (0.1, 0.0),
        "head.output.weight": (0.2, 0.3),
        "head.output.bias": (0.2, 0.0),
    }


def test_head_alone_has_the_learning_rate() -> None:
    recipe = default_recipe(HeadOnly(), changes={"learning_rate": 0.1})

    (group,) = build_optimizer({"head.output.bias": torch.zeros(2)}, recipe).param_groups

    assert group["lr"] == 0.1

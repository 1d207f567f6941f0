from dataclasses import replace
from functools import partial
from math import ceil

import pytest
import torch
from torch import Tensor, optim
from torch.nn import functional

from nunatak_contract.methods import TopK
from nunatak_training.loop.step import MAX_EVALUATIONS, Course, Stepper, build_optimizer, course_of
from nunatak_training.recipes import Schedule, default_recipe


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

    found = [course.rate_factor(step) for step in range(9)]

    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, *factors])
    assert replace(course, warmup_steps=0).rate_factor(0) == 1.0


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", optim.AdamW), ("adam", optim.Adam), ("sgd", optim.SGD)]
)
def test_recipe_names_the_optimizer(name: str, kind: type[optim.Optimizer]) -> None:
    recipe = default_recipe(TopK(num_layers=2), changes={"optimizer": name})

    assert type(build_optimizer({"head.output.bias": torch.zeros(2)}, recipe)) is kind


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


def test_gradients_of_embeddings_are_dense_and_of_the_last_batch_alone() -> None:
    table = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    recipe = default_recipe(TopK(num_layers=2), changes={"max_grad_norm": 1e9})
    stepper = Stepper({"embeddings.word": table}, recipe, course_of(recipe, steps_per_epoch=2))

    def loss(tokens: list[int]) -> Tensor:
        return functional.embedding(torch.tensor(tokens), table, sparse=True).square().sum()

    for tokens in ([1, 5, 1], [5, 7]):
        (expected,) = torch.autograd.grad(table[tokens].square().sum(), table)

        stepper.step(partial(loss, tokens))

        assert table.grad is not None
        torch.testing.assert_close(table.grad, expected)


@pytest.mark.parametrize("head_rate", [0.2, None])
def test_head_has_its_own_rate_and_vectors_have_no_decay(head_rate: float | None) -> None:
    parameters = {
        "layers.0.qkv.weight": torch.zeros(2, 2),
        "layers.0.qkv.bias": torch.zeros(2),
        "head.output.weight": torch.zeros(2, 2),
        "head.output.bias": torch.zeros(2),
    }
    changes = {"learning_rate": 0.1, "head_learning_rate": head_rate, "weight_decay": 0.3}
    recipe = default_recipe(TopK(num_layers=2), changes=dict(changes))

    found = {
        name: (group["lr"], group["weight_decay"])
        for group in build_optimizer(parameters, recipe).param_groups
        for name, tensor in parameters.items()
        if any(tensor is member for member in group["params"])
    }
    assert found == {
        "layers.0.qkv.weight": (0.1, 0.3),
        "layers.0.qkv.bias": (0.1, 0.0),
        "head.output.weight": (head_rate or 0.1, 0.3),
        "head.output.bias": (head_rate or 0.1, 0.0),
    }

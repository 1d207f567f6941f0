"""GradDrop-Epoch, its toggled form and GradFreeze: the entries that move in each epoch."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import operator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nunatak_training.regularizers import (
    EpochGradDrop,
    GradFreeze,
    IsFree,
    OrderOfLayers,
    Regularizer,
    draw_epochs,
)

NUM_EPOCHS = 5
LAYERS = ("layers.0.qkv", "layers.1.qkv", "layers.1.norm", "layers.2.qkv")
ALWAYS_FREE = ("embeddings.word", "head.output.weight")


def tuned() -> dict[str, Tensor]:
    return {name: torch.ones(11, 10, requires_grad=True) for name in (*ALWAYS_FREE, *LAYERS)}


def moved_by_epoch(
    tensors: dict[str, Tensor], regularizer: Regularizer, *, steps: int = 3
) -> list[dict[str, Tensor]]:
    """The entries that each epoch changes, under Adam's moments and weight decay."""
    optimizer = AdamW(tensors.values(), lr=0.1, weight_decay=0.1)
    moved: list[dict[str, Tensor]] = []
    for epoch in range(1, NUM_EPOCHS + 1):
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        regularizer.begin_epoch(epoch)
        for _ in range(steps):
            optimizer.zero_grad()
            sum((tensor**2).sum() for tensor in tensors.values()).backward()  # pyright: ignore[reportAttributeAccessIssue] - the sum of an int and tensors is a tensor
            regularizer.after_backward()
            optimizer.step()
            regularizer.after_step()
        moved.append({name: tensor.detach() != before[name] for name, tensor in tensors.items()})
    return moved


def epoch_graddrop(tensors: dict[str, Tensor], is_free: IsFree) -> EpochGradDrop:
    generator = torch.Generator().manual_seed(0)
    return EpochGradDrop(tensors, is_free, generator, num_epochs=NUM_EPOCHS)


def test_epochs_are_drawn_without_replacement_in_equal_parts() -> None:
    drawn = draw_epochs(torch.zeros(20, 10), NUM_EPOCHS, torch.Generator().manual_seed(0))

    assert drawn.shape == (20, 10)
    assert torch.equal(drawn.flatten().long().bincount(), torch.tensor([0, 40, 40, 40, 40, 40]))


def test_epochs_are_drawn_in_random_places() -> None:
    first, second = (
        draw_epochs(torch.zeros(1000), 2, torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )

    assert 0.4 < (first == second).float().mean().item() < 0.6


def test_freed_entries_stay_free_and_all_are_free_in_the_last_epoch() -> None:
    tensors = tuned()

    moved = moved_by_epoch(tensors, epoch_graddrop(tensors, operator.le))

    for name in LAYERS:
        for epoch, (before, after) in enumerate(pairwise(moved), start=1):
            assert before[name].sum().item() == 110 * epoch / NUM_EPOCHS
            assert (after[name] | ~before[name]).all()
        assert moved[-1][name].all()


def test_toggled_entries_move_in_one_epoch_and_rest_in_all_others() -> None:
    tensors = tuned()

    moved = moved_by_epoch(tensors, epoch_graddrop(tensors, operator.eq))

    for name in LAYERS:
        times = torch.stack([epoch[name] for epoch in moved]).sum(0)
        assert torch.equal(times, torch.ones_like(times))
        assert {epoch[name].sum().item() for epoch in moved} == {110 / NUM_EPOCHS}


def test_gradients_of_frozen_entries_are_zero_and_of_free_ones_unscaled() -> None:
    tensors = tuned()
    regularizer = epoch_graddrop(tensors, operator.eq)
    regularizer.begin_epoch(1)
    for tensor in tensors.values():
        tensor.grad = torch.full_like(tensor, 3.0)

    regularizer.after_backward()

    found = tensors["layers.0.qkv"].grad
    assert found is not None
    assert set(found.unique().tolist()) == {0.0, 3.0}


@pytest.mark.parametrize(
    ("order", "free_layers"),
    [
        pytest.param(reversed, [{2}, {1, 2}, {1, 2}, {0, 1, 2}, {0, 1, 2}], id="topdown"),
        pytest.param(iter, [{0}, {0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}], id="bottomup"),
    ],
)
def test_layers_come_free_one_after_another(
    order: OrderOfLayers, free_layers: list[set[int]]
) -> None:
    tensors = tuned()
    regularizer = GradFreeze(tensors, order, num_epochs=NUM_EPOCHS)

    moved = moved_by_epoch(tensors, regularizer)

    for epoch, expected in zip(moved, free_layers, strict=True):
        for name in LAYERS:
            is_free = int(name.split(".")[1]) in expected
            assert epoch[name].all().item() is is_free
            assert epoch[name].any().item() is is_free


@pytest.mark.parametrize("is_free", [operator.le, operator.eq])
def test_epoch_graddrop_leaves_embeddings_and_head_alone(is_free: IsFree) -> None:
    tensors = tuned()

    moved = moved_by_epoch(tensors, epoch_graddrop(tensors, is_free))

    assert all(epoch[name].all() for epoch in moved for name in ALWAYS_FREE)


def test_gradfreeze_leaves_embeddings_and_head_alone() -> None:
    tensors = tuned()

    moved = moved_by_epoch(tensors, GradFreeze(tensors, reversed, num_epochs=NUM_EPOCHS))

    assert all(epoch[name].all() for epoch in moved for name in ALWAYS_FREE)

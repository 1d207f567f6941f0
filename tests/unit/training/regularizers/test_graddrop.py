"""GradDrop and Layer-GradDrop against eq. 3 and 4 of O'Neill and Dutta 2023."""

import math
import operator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nunatak_training.regularizers import (
    EpochGradDrop,
    GradDrop,
    GradFreeze,
    IsFree,
    LayerGradDrop,
    OrderOfLayers,
    Regularizer,
    annealed_rate,
    draw_epochs,
)

NUM_LAYERS = 40
RATE = 0.2
NUM_EPOCHS = 5
LAYERS = ("layers.0.qkv", "layers.1.qkv", "layers.1.norm", "layers.2.qkv")
ALWAYS_FREE = ("embeddings.word", "head.output.weight")


def tuned(*, size: int = 100) -> dict[str, Tensor]:
    """Parameters of a full copy, with gradients that are all ones."""
    names = [f"layers.{layer}.{part}" for layer in range(NUM_LAYERS) for part in ("qkv", "norm")]
    tensors = {
        name: torch.zeros(size, size, requires_grad=True)
        for name in ("embeddings.word", *names, "head.output.weight")
    }
    give_gradients(tensors)
    return tensors


def give_gradients(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.grad = torch.ones_like(tensor)


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def owned() -> dict[str, Tensor]:
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
            sum((tensor**2).sum() for tensor in tensors.values()).backward()  # pyrefly: ignore[missing-attribute] - the sum of an int and tensors is a tensor
            regularizer.after_backward()
            optimizer.step()
            regularizer.after_step()
        moved.append({name: tensor.detach() != before[name] for name, tensor in tensors.items()})
    return moved


def epoch_graddrop(tensors: dict[str, Tensor], is_free: IsFree) -> EpochGradDrop:
    return EpochGradDrop(tensors, is_free, generator(), num_epochs=NUM_EPOCHS)


def test_mask_is_bernoulli_scaled_by_its_mean() -> None:
    tensors = tuned()

    GradDrop(tensors, lambda _: RATE, generator()).after_backward()

    values = torch.cat([gradient(tensors[f"layers.{at}.qkv"]).flatten() for at in range(10)])
    assert values.unique().tolist() == pytest.approx([0.0, 1 / (1 - RATE)])
    deviation = math.sqrt(RATE * (1 - RATE) / len(values))
    assert (values == 0).float().mean().item() == pytest.approx(RATE, abs=5 * deviation)
    assert values.mean().item() == pytest.approx(1.0, abs=5 * deviation / (1 - RATE))


def test_entries_are_dropped_independently_of_their_neighbours() -> None:
    tensors = tuned(size=300)

    GradDrop(tensors, lambda _: 0.5, generator()).after_backward()

    kept = gradient(tensors["layers.0.qkv"]) > 0
    pairs = torch.corrcoef(torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()]).float())
    assert abs(pairs[0, 1].item()) < 5 / math.sqrt(kept.numel())


@pytest.mark.parametrize("kind", [GradDrop, LayerGradDrop])
def test_every_batch_has_a_fresh_mask(kind: type[GradDrop | LayerGradDrop]) -> None:
    tensors = tuned(size=4)
    regularizer = kind(tensors, lambda _: 0.5, generator())
    masks: list[Tensor] = []
    for _ in range(2):
        give_gradients(tensors)
        regularizer.after_backward()
        masks.append(torch.stack([gradient(tensor) for tensor in tensors.values()]))

    assert not torch.equal(masks[0], masks[1])


@pytest.mark.parametrize("kind", [GradDrop, LayerGradDrop])
def test_embeddings_and_head_keep_their_gradients(kind: type[GradDrop | LayerGradDrop]) -> None:
    tensors = tuned(size=4)

    kind(tensors, lambda _: 0.99, generator()).after_backward()

    for name in ("embeddings.word", "head.output.weight"):
        assert torch.equal(gradient(tensors[name]), torch.ones(4, 4))


def test_layer_mask_is_one_unscaled_bit_for_all_tensors_of_a_layer() -> None:
    tensors = tuned(size=4)

    LayerGradDrop(tensors, lambda _: 0.5, generator()).after_backward()

    bits: list[float] = []
    for layer in range(NUM_LAYERS):
        parts = [gradient(tensors[f"layers.{layer}.{part}"]) for part in ("qkv", "norm")]
        (bit,) = torch.cat(parts).unique().tolist()
        bits.append(bit)
    assert set(bits) == {0.0, 1.0}


def test_layers_are_dropped_at_the_rate() -> None:
    tensors = tuned(size=1)
    regularizer = LayerGradDrop(tensors, lambda _: RATE, generator())
    dropped = 0
    for _ in range(100):
        give_gradients(tensors)
        regularizer.after_backward()
        dropped += sum(gradient(tensors[f"layers.{at}.qkv"]).item() == 0 for at in range(40))

    deviation = math.sqrt(RATE * (1 - RATE) / 4000)
    assert dropped / 4000 == pytest.approx(RATE, abs=5 * deviation)


@pytest.mark.parametrize("num_epochs", [2, 3, 7])
def test_annealed_rate_falls_linearly_to_zero_in_any_number_of_epochs(num_epochs: int) -> None:
    rate = annealed_rate(0.9, num_epochs=num_epochs)
    rates = [rate(epoch) for epoch in range(1, num_epochs + 1)]

    assert (rates[0], rates[-1]) == (0.9, 0.0)
    steps = {round(before - after, 12) for before, after in pairwise(rates)}
    assert len(steps) == 1


@pytest.mark.parametrize("kind", [GradDrop, LayerGradDrop])
def test_annealing_lets_everything_through_in_the_last_epoch(
    kind: type[GradDrop | LayerGradDrop],
) -> None:
    tensors = tuned(size=4)
    regularizer = kind(tensors, annealed_rate(0.9, num_epochs=3), generator())
    kept: list[float] = []
    for epoch in (1, 2, 3):
        regularizer.begin_epoch(epoch)
        give_gradients(tensors)
        regularizer.after_backward()
        layers = [gradient(t) for name, t in tensors.items() if name.startswith("layers.")]
        kept.append((torch.stack(layers) > 0).float().mean().item())

    assert kept == sorted(kept)
    assert kept[-1] == 1.0


def test_gradient_that_is_no_number_does_not_hide_behind_a_mask() -> None:
    tensors = tuned(size=4)
    gradient(tensors["layers.0.qkv"]).fill_(float("nan"))

    GradDrop(tensors, lambda _: 0.99, generator()).after_backward()

    assert gradient(tensors["layers.0.qkv"]).isnan().all()


def test_epochs_are_drawn_in_random_places() -> None:
    first, second = (draw_epochs(torch.zeros(1000), 2, generator(seed)) for seed in (0, 1))

    assert 0.4 < (first == second).float().mean().item() < 0.6


def test_freed_entries_stay_free_and_all_are_free_in_the_last_epoch() -> None:
    tensors = owned()

    moved = moved_by_epoch(tensors, epoch_graddrop(tensors, operator.le))

    for name in LAYERS:
        for epoch, (before, after) in enumerate(pairwise(moved), start=1):
            assert before[name].sum().item() == 110 * epoch / NUM_EPOCHS
            assert (after[name] | ~before[name]).all()
        assert moved[-1][name].all()
    assert all(epoch[name].all() for epoch in moved for name in ALWAYS_FREE)


def test_toggled_entries_move_in_one_epoch_and_rest_in_all_others() -> None:
    tensors = owned()

    moved = moved_by_epoch(tensors, epoch_graddrop(tensors, operator.eq))

    for name in LAYERS:
        times = torch.stack([epoch[name] for epoch in moved]).sum(0)
        assert torch.equal(times, torch.ones_like(times))
        assert {epoch[name].sum().item() for epoch in moved} == {110 / NUM_EPOCHS}
    assert all(epoch[name].all() for epoch in moved for name in ALWAYS_FREE)


def test_gradients_of_frozen_entries_are_zero_and_of_free_ones_unscaled() -> None:
    tensors = owned()
    regularizer = epoch_graddrop(tensors, operator.eq)
    regularizer.begin_epoch(1)
    for tensor in tensors.values():
        tensor.grad = torch.full_like(tensor, 3.0)

    regularizer.after_backward()

    assert set(gradient(tensors["layers.0.qkv"]).unique().tolist()) == {0.0, 3.0}


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
    tensors = owned()
    regularizer = GradFreeze(tensors, order, num_epochs=NUM_EPOCHS)

    moved = moved_by_epoch(tensors, regularizer)

    for epoch, expected in zip(moved, free_layers, strict=True):
        for name in LAYERS:
            is_free = int(name.split(".")[1]) in expected
            assert epoch[name].all().item() is is_free
            assert epoch[name].any().item() is is_free
        assert all(epoch[name].all() for name in ALWAYS_FREE)

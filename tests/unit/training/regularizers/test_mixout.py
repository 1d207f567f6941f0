"""Mixout against its definition, entry by entry."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math

import pytest
import torch
from torch import Tensor

from nunatak_training.regularizers import Mixout

RATE = 0.9
PRETRAINED, OWN = 1.0, 3.0
MIXED = ("layers.0.qkv.weight",)
NOT_MIXED = ("embeddings.word", "layers.0.qkv.bias", "head.output.weight")


def tuned() -> dict[str, Tensor]:
    tensors = {
        name: torch.full((100, 100), PRETRAINED, requires_grad=True)
        for name in (*MIXED, *NOT_MIXED)
        if not name.endswith("bias")
    }
    tensors["layers.0.qkv.bias"] = torch.full((100,), PRETRAINED, requires_grad=True)
    return tensors


def trained(tensors: dict[str, Tensor]) -> Mixout:
    """A mixout of weights that training has already moved."""
    mixout = Mixout(tensors, RATE, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(OWN)
    return mixout


def test_weights_are_pretrained_or_scaled_so_that_their_mean_stays() -> None:
    tensors = tuned()

    trained(tensors).before_forward()

    mixed = tensors["layers.0.qkv.weight"].detach()
    away = PRETRAINED + (OWN - PRETRAINED) / (1 - RATE)
    assert sorted(mixed.unique().tolist()) == pytest.approx([PRETRAINED, away])
    deviation = math.sqrt(RATE * (1 - RATE) / mixed.numel())
    share = (mixed == PRETRAINED).float().mean().item()
    assert share == pytest.approx(RATE, abs=5 * deviation)
    assert mixed.mean().item() == pytest.approx(OWN, abs=5 * deviation * (away - PRETRAINED))


def test_before_any_training_the_mixture_is_the_pretrained_model() -> None:
    tensors = tuned()
    mixout = Mixout(tensors, RATE, torch.Generator().manual_seed(0))

    mixout.before_forward()

    assert all((tensor == PRETRAINED).all() for tensor in tensors.values())


def test_embeddings_biases_and_head_are_not_mixed() -> None:
    tensors = tuned()

    trained(tensors).before_forward()

    assert all((tensors[name] == OWN).all() for name in NOT_MIXED)


def test_weights_come_back_and_gradients_match_the_formula() -> None:
    tensors = tuned()
    mixout = trained(tensors)
    weight = tensors["layers.0.qkv.weight"]

    mixout.before_forward()
    mask = (weight.detach() - PRETRAINED) / (OWN - PRETRAINED)
    (weight**2).sum().backward()
    mixout.after_backward()

    own = torch.full_like(weight, OWN, requires_grad=True)
    ((PRETRAINED + mask * (own - PRETRAINED)) ** 2).sum().backward()
    assert torch.equal(weight, torch.full_like(weight, OWN))
    torch.testing.assert_close(weight.grad, own.grad)


def test_every_forward_pass_has_a_fresh_mixture() -> None:
    tensors = tuned()
    mixout = trained(tensors)
    mixtures: list[Tensor] = []
    for _ in range(2):
        mixout.before_forward()
        mixtures.append(tensors["layers.0.qkv.weight"].detach().clone())
        mixout.after_backward()

    assert not torch.equal(mixtures[0], mixtures[1])

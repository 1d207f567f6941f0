"""Laws of the parts of a layer, against plain formulas."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from doubles.backbones import Family, tiny_backbone
from nunatak_contract.enums import Activation, AdapterInput
from nunatak_model.architectures import architecture_of
from nunatak_model.layer import Adapter, BottleneckLayer, TokenSpan, add_adapters, mix_layer
from nunatak_model.ops.attention import attention_by_runs
from nunatak_model.ops.linear import layer_norm
from nunatak_model.weights import Linear

WIDTH, EPSILON = 32, 1e-5
FROZEN = tiny_backbone(num_layers=1).layers[0]


@pytest.mark.parametrize("reads", AdapterInput)
def test_adapters_and_their_gradients_match_the_plain_formula(reads: AdapterInput) -> None:
    generator = torch.Generator().manual_seed(0)
    down, up = (
        Linear(weight=torch.randn(shape, generator=generator), bias=None)
        for shape in ((4, WIDTH), (WIDTH, 4))
    )
    residual, block = torch.randn(2, 6, WIDTH, generator=generator)
    inputs = [residual, block, down.weight, up.weight]
    for tensor in inputs:
        tensor.requires_grad_()
    adapter = Adapter(down=down, up=up, activation=Activation.TANH, reads=reads)

    found = adapted(residual, block, adapter)

    x = block if reads is AdapterInput.BLOCK else normed(residual + block)
    update = torch.tanh(x @ down.weight.T) @ up.weight.T
    expected = residual + block + functional.pad(update[2:5], (0, 0, 2, 1))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(it.square().sum(), inputs) for it in (found, expected)]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)


def adapted(residual: Tensor, block: Tensor, adapter: Adapter) -> Tensor:
    """Return residual and block, with the adapter on the middle of three spans."""
    span = TokenSpan(tokens=slice(2, 5))
    override = BottleneckLayer(
        attention_adapter=adapter, feedforward_adapter=None, attention_norm=None, output_norm=None
    )
    layer = mix_layer(FROZEN, [(span, override)], index=0, num_tokens=len(block))
    summed = residual + block
    add_adapters(
        summed, block, layer, "attention_adapter", norm=FROZEN.attention_norm, epsilon=EPSILON
    )
    return summed


def normed(x: Tensor) -> Tensor:
    norm = FROZEN.attention_norm
    assert norm is not None
    return functional.layer_norm(x, (WIDTH,), norm.weight, norm.bias, EPSILON)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_layer_that_drops_everything_adds_nothing_to_its_residual_sum(family: Family) -> None:
    backbone = tiny_backbone(num_layers=2, family=family)
    config, frozen = backbone.config, backbone.layers[0]
    hidden = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    attention = attention_by_runs([5], hidden.device)
    run_layer = architecture_of(config).plan_layers(attention, config)

    found = run_layer(hidden, mix_layer(frozen, [], index=0, num_tokens=5, dropout=1.0))

    expected = hidden
    for norm in (frozen.attention_norm, frozen.output_norm) if family == "bert" else ():
        expected = layer_norm(expected, norm, epsilon=config.layer_norm_epsilon)
    torch.testing.assert_close(found, expected)

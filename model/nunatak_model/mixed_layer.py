"""The parts of a transformer layer over a mixed batch, from which architectures build theirs.

Whatever tasks share with the backbone is one product over all their tokens; whatever is a task's
own runs on its span alone.

Axes: tokens = packed tokens of the batch, width = hidden width, out = output width of a map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model.config import Activation
from nunatak_model.overrides import (
    Adapter,
    AdapterActivation,
    AdapterInput,
    BottleneckLayer,
    LayerOverride,
    LoraLayer,
    LoraTarget,
    OwnLayer,
)
from nunatak_model.weights import LayerWeights, Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLayer:
    """One layer as a mixed batch runs it: the frozen weights, and what differs where.

    Tokens `[0, frozen_end)` run the frozen linear maps, `[0, shared_norm_end)` the frozen norms.
    """

    index: int
    frozen: LayerWeights
    frozen_end: int
    shared_norm_end: int
    lora: tuple[tuple[slice, LoraLayer], ...]
    bottleneck: tuple[tuple[slice, BottleneckLayer], ...]
    own: tuple[tuple[slice, LayerWeights], ...]


def mix_layer(
    frozen: LayerWeights,
    overrides: Sequence[tuple[slice, LayerOverride]],
    *,
    index: int,
    num_tokens: int,
) -> MixedLayer:
    """Sort the overrides of a layer by kind; they come in the order of the plan's lanes."""
    lora = tuple((span, it) for span, it in overrides if isinstance(it, LoraLayer))
    bottleneck = tuple((span, it) for span, it in overrides if isinstance(it, BottleneckLayer))
    own = tuple((span, it.weights) for span, it in overrides if isinstance(it, OwnLayer))
    frozen_end = int(own[0][0].start) if own else num_tokens
    return MixedLayer(
        index=index,
        frozen=frozen,
        frozen_end=frozen_end,
        shared_norm_end=int(bottleneck[0][0].start) if bottleneck else frozen_end,
        lora=lora,
        bottleneck=bottleneck,
        own=own,
    )


def mixed_linear(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, pick: Callable[[LayerWeights], Linear]
) -> Float[Tensor, "tokens out"]:
    """Run a linear map, frozen or a task's own, without low-rank updates."""
    parts = list[Tensor]()
    if layer.frozen_end:
        frozen = pick(layer.frozen)
        parts.append(functional.linear(x[: layer.frozen_end], frozen.weight, frozen.bias))
    for span, weights in layer.own:
        own = pick(weights)
        parts.append(functional.linear(x[span], own.weight, own.bias))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mixed_norm(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Norm],
    pick_bottleneck: Callable[[BottleneckLayer], Norm | None],
    *,
    epsilon: float,
) -> Float[Tensor, "tokens width"]:
    """Run a layer norm: frozen, of a bottleneck, or of a task's own layer."""
    pieces = list[tuple[slice, Norm]]()
    if layer.shared_norm_end:
        pieces.append((slice(0, layer.shared_norm_end), pick(layer.frozen)))
    pieces += [
        (span, pick_bottleneck(override) or pick(layer.frozen))
        for span, override in layer.bottleneck
    ]
    pieces += [(span, pick(weights)) for span, weights in layer.own]
    normed = [layer_norm(x[span], norm, epsilon=epsilon) for span, norm in pieces]
    return normed[0] if len(normed) == 1 else torch.cat(normed)


def layer_norm(
    x: Float[Tensor, "tokens width"], norm: Norm, *, epsilon: float
) -> Float[Tensor, "tokens width"]:
    """Normalise each token over its width."""
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, epsilon)


def add_lora(
    y: Float[Tensor, "tokens out"],
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    target: LoraTarget,
) -> None:
    """Add the low-rank updates of `target` to its output, in place."""
    for span, override in layer.lora:
        update = override.updates.get(target)
        if update is not None:
            inner = functional.linear(x[span], update.down)
            y[span].addmm_(inner, update.up.t(), alpha=update.scale)


def add_adapters(
    summed: Float[Tensor, "tokens width"],
    block: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[BottleneckLayer], Adapter | None],
    normalise: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Add the bottleneck adapters of a block to its residual sum, in place.

    `normalise` is the frozen norm over the sum, for adapters that read `NORMED_SUM`; layers that
    norm elsewhere have none, and no such adapters.
    """
    for span, override in layer.bottleneck:
        adapter = pick(override)
        if adapter is None:
            continue
        if normalise is not None and adapter.reads is AdapterInput.NORMED_SUM:
            update = _adapter_update(normalise(summed[span]), adapter)
        else:
            update = _adapter_update(block[span], adapter)
        summed[span].add_(update)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the non-linearity of the feed-forward block."""
    match activation:
        case Activation.GELU:
            return functional.gelu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return functional.relu(x)


def _adapter_update(x: Tensor, adapter: Adapter) -> Tensor:
    inner = _activate_adapter(
        functional.linear(x, adapter.down.weight, adapter.down.bias), adapter.activation
    )
    return functional.linear(inner, adapter.up.weight, adapter.up.bias)


def _activate_adapter(x: Tensor, activation: AdapterActivation) -> Tensor:
    match activation:
        case AdapterActivation.TANH:
            return torch.tanh(x)
        case AdapterActivation.RELU:
            return functional.relu(x)
        case AdapterActivation.LEAKY_RELU:
            return functional.leaky_relu(x)
        case AdapterActivation.GELU:
            return functional.gelu(x)
        case AdapterActivation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case AdapterActivation.SILU:
            return functional.silu(x)

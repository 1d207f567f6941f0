"""One transformer layer over a mixed batch.

The post-norm layer of BERT (Devlin et al. 2019) and its family. Whatever tasks share with the
backbone is one product over all their tokens; whatever is a task's own runs on its span alone.

Axes: tokens = packed tokens of the batch, width = hidden width, out = output width of a map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model.attention import AttentionPlan, attend
from nunatak_model.config import Activation, BackboneConfig
from nunatak_model.methods import (
    Adapter,
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

    frozen: LayerWeights
    frozen_end: int
    shared_norm_end: int
    lora: tuple[tuple[slice, LoraLayer], ...]
    bottleneck: tuple[tuple[slice, BottleneckLayer], ...]
    own: tuple[tuple[slice, LayerWeights], ...]


def mix_layer(
    frozen: LayerWeights, overrides: Sequence[tuple[slice, LayerOverride]], *, num_tokens: int
) -> MixedLayer:
    """Sort the overrides of a layer by kind; they come in the order of the plan's lanes."""
    lora = tuple((span, it) for span, it in overrides if isinstance(it, LoraLayer))
    bottleneck = tuple((span, it) for span, it in overrides if isinstance(it, BottleneckLayer))
    own = tuple((span, it.weights) for span, it in overrides if isinstance(it, OwnLayer))
    frozen_end = int(own[0][0].start) if own else num_tokens
    return MixedLayer(
        frozen=frozen,
        frozen_end=frozen_end,
        shared_norm_end=int(bottleneck[0][0].start) if bottleneck else frozen_end,
        lora=lora,
        bottleneck=bottleneck,
        own=own,
    )


def run_layer(
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    attention: AttentionPlan,
    config: BackboneConfig,
    *,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Run one layer; every row's result is what its own task's layer gives for it alone.

    Semantics:
        for row in rows:
            x = hidden[row];  W = frozen, plus the row's task's updates, or its own layer
            a = W.attention_output(attend(W.qkv(x)))
            x = W.attention_norm(x + a + attention_adapter(a))
            f = W.feedforward_out(activation(W.feedforward_in(x)))
            out[row] = W.output_norm(x + f + feedforward_adapter(f))
    """
    qkv = _linear(hidden, layer, lambda weights: weights.qkv)
    for part, target in enumerate((LoraTarget.QUERY, LoraTarget.KEY, LoraTarget.VALUE)):
        width = config.hidden_width
        _add_lora(qkv[:, part * width : (part + 1) * width], hidden, layer, target)
    context = attend(qkv, attention, num_heads=config.num_heads, dropout=dropout)

    block = _linear(context, layer, lambda weights: weights.attention_output)
    _add_lora(block, context, layer, LoraTarget.ATTENTION_OUTPUT)
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    summed = hidden + block
    for span, override in layer.bottleneck:
        summed[span].add_(_adapter_update(block[span], override.attention_adapter))
    hidden = _norm(
        summed, layer, config, lambda own: own.attention_norm, lambda own: own.attention_norm
    )

    inner = _linear(hidden, layer, lambda weights: weights.feedforward_in)
    _add_lora(inner, hidden, layer, LoraTarget.FEEDFORWARD_IN)
    inner = _activate(inner, config.activation)
    block = _linear(inner, layer, lambda weights: weights.feedforward_out)
    _add_lora(block, inner, layer, LoraTarget.FEEDFORWARD_OUT)
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    summed = hidden + block
    for span, override in layer.bottleneck:
        summed[span].add_(_adapter_update(block[span], override.feedforward_adapter))
    return _norm(summed, layer, config, lambda own: own.output_norm, lambda own: own.output_norm)


def _linear(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, pick: Callable[[LayerWeights], Linear]
) -> Float[Tensor, "tokens out"]:
    parts = list[Tensor]()
    if layer.frozen_end:
        frozen = pick(layer.frozen)
        parts.append(functional.linear(x[: layer.frozen_end], frozen.weight, frozen.bias))
    for span, weights in layer.own:
        own = pick(weights)
        parts.append(functional.linear(x[span], own.weight, own.bias))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _norm(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    config: BackboneConfig,
    pick: Callable[[LayerWeights], Norm],
    pick_bottleneck: Callable[[BottleneckLayer], Norm],
) -> Float[Tensor, "tokens width"]:
    pieces = list[tuple[slice, Norm]]()
    if layer.shared_norm_end:
        pieces.append((slice(0, layer.shared_norm_end), pick(layer.frozen)))
    pieces += [(span, pick_bottleneck(override)) for span, override in layer.bottleneck]
    pieces += [(span, pick(weights)) for span, weights in layer.own]
    normed = [layer_norm(x[span], norm, config) for span, norm in pieces]
    return normed[0] if len(normed) == 1 else torch.cat(normed)


def layer_norm(
    x: Float[Tensor, "tokens width"], norm: Norm, config: BackboneConfig
) -> Float[Tensor, "tokens width"]:
    """Normalise each token over its width."""
    return functional.layer_norm(
        x, (config.hidden_width,), norm.weight, norm.bias, config.layer_norm_epsilon
    )


def _add_lora(
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


def _adapter_update(block: Tensor, adapter: Adapter) -> Tensor:
    inner = torch.tanh(functional.linear(block, adapter.down.weight, adapter.down.bias))
    return functional.linear(inner, adapter.up.weight, adapter.up.bias)


def _activate(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case Activation.GELU:
            return functional.gelu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return functional.relu(x)

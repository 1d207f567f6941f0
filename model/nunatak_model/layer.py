"""The parts of a transformer layer over a mixed batch, from which architectures build theirs.

An *override* runs at a layer of a branch in place of the frozen weights, or is added to them.
Weights that tasks share with the backbone run as one product over all tokens. A task's own weights
run on the task's span alone.

Axes: tokens = packed tokens of the batch, width = hidden width, out = output width of a map,
three_width = query, key and value side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation, AdapterInput, LoraTarget
from nunatak_model.errors import LayerNotHeldError
from nunatak_model.ops.grouped import SlotGroups, grouped_product
from nunatak_model.ops.linear import activate, apply_linear, layer_norm
from nunatak_model.weights import LayerWeights, Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayer:
    """The task runs its own copy of the layer."""

    weights: LayerWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraUpdate:
    """`y += scale * (x @ down.T) @ up.T`."""

    down: Tensor
    up: Tensor
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """The frozen layer, with low-rank updates of some of its linear maps."""

    updates: Mapping[LoraTarget, LoraUpdate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One bottleneck adapter: `up(activation(down(x)))`."""

    down: Linear
    up: Linear
    activation: Activation
    reads: AdapterInput


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckLayer:
    """The frozen layer, with an adapter in one or both blocks.

    A block without an adapter has none here; a norm that is None is the frozen one.
    """

    attention_adapter: Adapter | None
    attention_norm: Norm | None
    feedforward_adapter: Adapter | None
    output_norm: Norm | None


LayerOverride = OwnLayer | LoraLayer | BottleneckLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Neighbouring tokens that run the same override: one task's, or stacked ones of many tasks."""

    tokens: slice
    groups: SlotGroups | None = None
    """The slot of each token in the stacked parameters; None for the parameters of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLayer:
    """One layer as a mixed batch runs it: the frozen weights, and what differs where.

    Tokens `[0, frozen_end)` run the frozen linear maps, `[0, shared_norm_end)` the frozen norms.
    """

    index: int
    frozen: LayerWeights
    frozen_end: int
    shared_norm_end: int
    lora: tuple[tuple[TokenSpan, LoraLayer], ...]
    bottleneck: tuple[tuple[TokenSpan, BottleneckLayer], ...]
    own: tuple[tuple[TokenSpan, LayerWeights], ...]


def mix_layer(
    frozen: LayerWeights | None,
    overrides: Sequence[tuple[TokenSpan, LayerOverride]],
    *,
    index: int,
    num_tokens: int,
) -> MixedLayer:
    """Sort the overrides of a layer by kind; they come in the order of the plan's lanes.

    Raises:
        LayerNotHeldError: `frozen` is None, and not every token has a layer of its own.
    """
    lora = tuple((span, it) for span, it in overrides if isinstance(it, LoraLayer))
    bottleneck = tuple((span, it) for span, it in overrides if isinstance(it, BottleneckLayer))
    own = tuple((span, it.weights) for span, it in overrides if isinstance(it, OwnLayer))
    frozen_end = int(own[0][0].tokens.start) if own else num_tokens
    if frozen is None:
        if frozen_end:
            raise LayerNotHeldError(index)
        # No token runs it; it says which parts a layer has.
        frozen = own[0][1]
    return MixedLayer(
        index=index,
        frozen=frozen,
        frozen_end=frozen_end,
        shared_norm_end=int(bottleneck[0][0].tokens.start) if bottleneck else frozen_end,
        lora=lora,
        bottleneck=bottleneck,
        own=own,
    )


def mixed_qkv(
    x: Float[Tensor, "tokens width"], layer: MixedLayer
) -> Float[Tensor, "tokens three_width"]:
    """Project to query, key and value, with their low-rank updates.

    Semantics:
        for token in tokens:
            W = qkv of the token's own layer, else the frozen one
            qkv[token] = W(x[token]), and for each part with an update of the token's task:
                qkv[token, part] += scale * (x[token] @ down.T) @ up.T
    """
    qkv = _linear(x, layer, lambda weights: weights.qkv, None)
    width = qkv.shape[1] // 3
    for part, target in enumerate((LoraTarget.QUERY, LoraTarget.KEY, LoraTarget.VALUE)):
        _add_lora(qkv[:, part * width : (part + 1) * width], x, layer, target)
    return qkv


def mixed_linear(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Linear],
    target: LoraTarget,
    *,
    activation: Activation | None = None,
) -> Float[Tensor, "tokens out"]:
    """Run a linear map, frozen or a task's own, with its low-rank updates, and an activation.

    Updates come before the activation, which is then not part of the product.

    Semantics:
        for token in tokens:
            W = the map of the token's own layer, else the frozen one
            y[token] = activation(W(x[token]) + scale * (x[token] @ down.T) @ up.T)
    """
    if not _has_lora(layer, target):
        return _linear(x, layer, pick, activation)
    y = _linear(x, layer, pick, None)
    _add_lora(y, x, layer, target)
    return y if activation is None else activate(y, activation)


def _linear(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Linear],
    activation: Activation | None,
) -> Float[Tensor, "tokens out"]:
    parts = list[Tensor]()
    if layer.frozen_end:
        frozen = pick(layer.frozen)
        parts.append(apply_linear(x[: layer.frozen_end], frozen, activation=activation))
    for span, weights in layer.own:
        linear = pick(weights)
        parts.append(
            apply_linear(x[span.tokens], linear, activation=activation, groups=span.groups)
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mixed_norm(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Norm | None],
    pick_bottleneck: Callable[[BottleneckLayer], Norm | None] | None,
    *,
    epsilon: float,
) -> Float[Tensor, "tokens width"]:
    """Run a layer norm, if the layer has it: frozen, of a bottleneck, or of a task's own layer.

    Where bottlenecks have no such norm of their own (`pick_bottleneck` is None), theirs is frozen.

    Semantics:
        for token in tokens:
            y[token] = layer_norm(x[token]) with the norm of the token's own layer, else of its
                bottleneck, else the frozen one
    """
    frozen = pick(layer.frozen)
    if frozen is None:
        return x
    pieces = list[tuple[TokenSpan, Norm | None]]()
    frozen_end = layer.frozen_end if pick_bottleneck is None else layer.shared_norm_end
    if frozen_end:
        pieces.append((TokenSpan(tokens=slice(0, frozen_end)), frozen))
    if pick_bottleneck is not None:
        for span, override in layer.bottleneck:
            own = pick_bottleneck(override)
            pieces.append((TokenSpan(tokens=span.tokens), frozen) if own is None else (span, own))
    pieces += [(span, pick(weights)) for span, weights in layer.own]
    # All rows of a layer have the norm or none has; the filter only narrows the type.
    normed = [
        layer_norm(x[span.tokens], norm, epsilon=epsilon, groups=span.groups)
        for span, norm in pieces
        if norm
    ]
    return normed[0] if len(normed) == 1 else torch.cat(normed)


def _has_lora(layer: MixedLayer, target: LoraTarget) -> bool:
    return any(target in override.updates for _, override in layer.lora)


def _add_lora(
    y: Float[Tensor, "tokens out"],
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    target: LoraTarget,
) -> None:
    """Add the low-rank updates of `target` to its output, in place.

    They are computed in float32 on the CPU: its bfloat16 products cost more to call than to
    compute at these sizes.
    """
    if not _has_lora(layer, target):
        return
    # Rows of one lane are adjacent, so that one copy serves all their tasks.
    lane = slice(layer.lora[0][0].tokens.start, layer.lora[-1][0].tokens.stop)
    dtype = torch.float32 if y.device.type == "cpu" else y.dtype
    inputs, sums = x[lane].to(dtype), y[lane].to(dtype)
    for span, override in layer.lora:
        update = override.updates.get(target)
        if update is not None:
            rows = slice(span.tokens.start - lane.start, span.tokens.stop - lane.start)
            _add_update(sums[rows], inputs[rows], update, span.groups)
    if dtype is not y.dtype:
        y[lane] = sums


def _add_update(y: Tensor, x: Tensor, update: LoraUpdate, groups: SlotGroups | None) -> None:
    down, up = update.down.to(x.dtype), update.up.to(x.dtype)
    if groups is None:
        y.addmm_(functional.linear(x, down), up.t(), alpha=update.scale)
    else:
        inner = grouped_product(x, down, groups)
        y.add_(grouped_product(inner, up, groups), alpha=update.scale)


def add_adapters(
    summed: Float[Tensor, "tokens width"],
    block: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[BottleneckLayer], Adapter | None],
    *,
    norm: Norm | None,
    epsilon: float,
) -> None:
    """Add the bottleneck adapters of a block to its residual sum, in place.

    `norm` is the frozen one over the sum, for adapters that read `NORMED_SUM`; None where norms
    stand before the blocks and no adapter reads so.

    Semantics:
        for token in tokens of bottleneck tasks with an adapter here:
            x = norm(summed[token]) if the adapter reads NORMED_SUM else block[token]
            summed[token] += up(activation(down(x)))
    """
    for span, override in layer.bottleneck:
        adapter = pick(override)
        if adapter is None:
            continue
        tokens = span.tokens
        x = block[tokens]
        if norm is not None and adapter.reads is AdapterInput.NORMED_SUM:
            rows = summed[tokens]
            # The gradient of the norm needs the sum as it was before the adapter adds to it.
            x = layer_norm(rows.clone() if rows.requires_grad else rows, norm, epsilon=epsilon)
        summed[tokens].add_(_adapter_update(x, adapter, span.groups))


def _adapter_update(x: Tensor, adapter: Adapter, groups: SlotGroups | None) -> Tensor:
    inner = apply_linear(x, adapter.down, activation=adapter.activation, groups=groups)
    return apply_linear(inner, adapter.up, groups=groups)

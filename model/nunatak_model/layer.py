"""The parts of a transformer layer over a mixed batch, from which architectures build theirs.

An *override* runs at a layer of a branch in place of the frozen weights, or is added to them.
Weights that tasks share with the backbone run as one product over all tokens. A task's own weights
run on the task's span alone.

Axes: tokens = packed tokens of the batch, width = hidden width, out = output width of a map,
qkv_width = query, key and value side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import Activation, AdapterInput, LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_model.config import QKV
from nunatak_model.ops.grouped import SlotGroups
from nunatak_model.ops.linear import ApplyNorm, activate, apply_linear, layer_norm
from nunatak_model.plan import Lane
from nunatak_model.weights import LayerWeights, Linear, Norm, RelativePositions


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayer:
    """The task runs its own copy of the layer."""

    lane: ClassVar = Lane.OWN
    weights: LayerWeights

    @property
    def has_additions(self) -> bool:
        """False: the task's own layer replaces the frozen weights."""
        return False


@runtime_checkable
class MapChange(Protocol):
    """A task's change of a frozen linear map."""

    def has_effect(self) -> bool:
        """Whether any input gets another output than from the frozen map."""
        ...

    def merge(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        """Write the change into the map itself, in place."""
        ...


@runtime_checkable
class InputChange(MapChange, Protocol):
    """A change of the inputs of a frozen linear map."""

    def apply(self, x: Float[Tensor, "tokens in"], groups: SlotGroups | None) -> None:
        """Change the inputs of the task's tokens, in place; with `groups`, of many tasks."""
        ...


@runtime_checkable
class OutputChange(MapChange, Protocol):
    """A change of the outputs of a frozen linear map."""

    def apply(
        self,
        y: Float[Tensor, "tokens out"],
        x: Float[Tensor, "tokens in"],
        groups: SlotGroups | None,
    ) -> None:
        """Change the outputs `y` of the inputs `x`, in place; with `groups`, of many tasks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedMaps:
    """The frozen layer, with changes of the inputs or outputs of some of its linear maps.

    Query, key and value read one input. No task changes this input for only one of the three.
    """

    lane: ClassVar = Lane.MAPS
    inputs: Mapping[LinearMap, InputChange]
    outputs: Mapping[LinearMap, OutputChange]

    @property
    def has_additions(self) -> bool:
        """Whether any change has an effect."""
        return any(it.has_effect() for it in (*self.inputs.values(), *self.outputs.values()))


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

    An adapter that is None means a block without adapter. A norm that is None means the frozen
    norm.
    """

    lane: ClassVar = Lane.BOTTLENECK
    attention_adapter: Adapter | None
    attention_norm: Norm | None
    feedforward_adapter: Adapter | None
    output_norm: Norm | None

    @property
    def has_additions(self) -> bool:
        """Whether any adapter adds anything to its block."""
        adapters = (self.attention_adapter, self.feedforward_adapter)
        ups = [it.up for it in adapters if it is not None]
        return any(bool(it.any()) for up in ups for it in (up.weight, up.bias) if it is not None)


LayerOverride = OwnLayer | ChangedMaps | BottleneckLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Adjacent tokens that run the same override: of one task, or of many tasks stacked."""

    tokens: slice
    groups: SlotGroups | None = None
    """The slot of each token in the stacked parameters; None for the parameters of one task."""

    @property
    def num_tokens(self) -> int:
        """The number of its tokens."""
        return self.tokens.stop - self.tokens.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLayer:
    """One layer of a mixed batch: the frozen weights, and the overrides of spans.

    Tokens `[0, frozen_end)` run the frozen linear maps, `[0, shared_norm_end)` the frozen norms.
    """

    index: int
    frozen: LayerWeights
    frozen_end: int
    shared_norm_end: int
    changed: tuple[tuple[TokenSpan, ChangedMaps], ...]
    bottleneck: tuple[tuple[TokenSpan, BottleneckLayer], ...]
    own: tuple[tuple[TokenSpan, LayerWeights], ...]
    relative: RelativePositions | None = None
    """The backbone's relative positions; tasks that own their embeddings have others."""

    def shared_relative(self) -> RelativePositions:
        """The backbone's relative positions.

        Raises:
            ValueError: the backbone has none.
        """
        if self.relative is None:
            raise ValueError(f"layer {self.index} was given no relative positions")
        return self.relative


def mix_layer(
    frozen: LayerWeights | None,
    overrides: Sequence[tuple[TokenSpan, LayerOverride]],
    *,
    index: int,
    num_tokens: int,
    relative: RelativePositions | None = None,
) -> MixedLayer:
    """Sort the overrides of a layer by kind. The spans must be in the order of the plan's lanes.

    Raises:
        NunatakError: `layer_not_held`, `frozen` is None, and a token has no own layer.
    """
    changed = tuple((span, it) for span, it in overrides if isinstance(it, ChangedMaps))
    bottleneck = tuple((span, it) for span, it in overrides if isinstance(it, BottleneckLayer))
    own = tuple((span, it.weights) for span, it in overrides if isinstance(it, OwnLayer))
    frozen_end = int(own[0][0].tokens.start) if own else num_tokens
    if frozen is None:
        if frozen_end:
            raise NunatakError("layer_not_held", index=index)
        # No token runs this layer. It only shows which parts a layer has.
        frozen = own[0][1]
    return MixedLayer(
        index=index,
        frozen=frozen,
        frozen_end=frozen_end,
        shared_norm_end=int(bottleneck[0][0].tokens.start) if bottleneck else frozen_end,
        changed=changed,
        bottleneck=bottleneck,
        own=own,
        relative=relative,
    )


def mixed_qkv(
    x: Float[Tensor, "tokens width"], layer: MixedLayer
) -> Float[Tensor, "tokens qkv_width"]:
    """Project to query, key and value, with the changes of tasks.

    Semantics:
        for token in tokens:
            W = qkv of the token's own layer, else the frozen one
            qkv[token] = W(x[token]), and for each part that the token's task changes:
                change.apply(qkv[token, part], x[token])
    """
    qkv = _linear(x, layer, lambda weights: weights.qkv, None)
    outputs, begin = dict[LinearMap, Tensor](), 0
    for width, target in zip(_qkv_widths(qkv, layer), QKV, strict=True):
        # `narrow`, because autograd refuses to change the results of a split in place.
        outputs[target] = qkv.narrow(1, begin, width)
        begin += width
    _change_outputs(outputs, x, layer)
    return qkv


def _qkv_widths(qkv: Float[Tensor, "tokens qkv_width"], layer: MixedLayer) -> tuple[int, int, int]:
    """Widths of query, key and value. Keys and values may have fewer heads than queries."""
    # The output map reads one value for each value of the query.
    query = layer.frozen.attention_output.weight.shape[-1]
    shared = (qkv.shape[1] - query) // 2
    return query, shared, shared


def mixed_linear(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Linear],
    target: LinearMap,
    *,
    activation: Activation | None = None,
) -> Float[Tensor, "tokens out"]:
    """Run a linear map, frozen or a task's own, with the changes of tasks, and an activation.

    Outputs change before the activation, which is then not part of the product.

    Semantics:
        for token in tokens:
            W = the map of the token's own layer, else the frozen one
            if the token's task changes the input: change.apply(x[token])
            y = W(x[token])
            if the token's task changes the output: change.apply(y, x[token])
            result[token] = activation(y)
    """
    x = _changed_inputs(x, layer, target)
    if not any(target in override.outputs for _, override in layer.changed):
        return _linear(x, layer, pick, activation)
    y = _linear(x, layer, pick, None)
    _change_outputs({target: y}, x, layer)
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
    x: Float[Tensor, "tokens *heads width"],
    layer: MixedLayer,
    pick: Callable[[LayerWeights], Norm | None],
    pick_bottleneck: Callable[[BottleneckLayer], Norm | None] | None,
    *,
    epsilon: float,
    apply: ApplyNorm = layer_norm,
) -> Float[Tensor, "tokens *heads width"]:
    """Run a norm, if the layer has it: frozen, of a bottleneck, or of a task's own layer.

    If bottlenecks do not own this norm (`pick_bottleneck` is None), their tokens run the frozen
    norm.

    Semantics:
        for token in tokens:
            y[token] = apply(x[token]) with the norm of the token's own layer, else of its
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
    rows = torch.split(x, [span.num_tokens for span, _ in pieces])
    # Either all rows of a layer have the norm or none; the filter only narrows the type.
    normed = [
        apply(own, norm, epsilon=epsilon, groups=span.groups)
        for own, (span, norm) in zip(rows, pieces, strict=True)
        if norm
    ]
    return normed[0] if len(normed) == 1 else torch.cat(normed)


def _changed_inputs(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, target: LinearMap
) -> Float[Tensor, "tokens width"]:
    """The inputs of `target` with the changes of tasks; a copy where there are any."""
    changes = [
        (span, change)
        for span, override in layer.changed
        if (change := override.inputs.get(target)) is not None
    ]
    if not changes:
        return x
    # The residual sum, or a gradient of an earlier operation, may need the unchanged inputs.
    x = x.clone()
    for span, change in changes:
        change.apply(x[span.tokens], span.groups)
    return x


def change_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The number format of the changes of outputs, in a batch of format `dtype`.

    It is float32 on the CPU, whose bfloat16 products cost more to call than to compute at these
    sizes.
    """
    return torch.float32 if device.type == "cpu" else dtype


def _change_outputs(
    outputs: Mapping[LinearMap, Float[Tensor, "tokens out"]],
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
) -> None:
    """Change the outputs of maps of one input for the tasks that do, in place."""
    changed = [
        target
        for target in outputs
        if any(target in override.outputs for _, override in layer.changed)
    ]
    if not changed:
        return
    # Rows of one lane are adjacent, so that one copy serves all their tasks.
    spans = [span for span, _ in layer.changed]
    lane = slice(spans[0].tokens.start, spans[-1].tokens.stop)
    dtype = change_dtype(x.dtype, x.device)
    inputs = torch.split(x[lane].to(dtype), [span.num_tokens for span in spans])
    for target in changed:
        rows = outputs[target][lane]
        exact = rows.to(dtype)
        for (span, override), own in zip(layer.changed, inputs, strict=True):
            change = override.outputs.get(target)
            if change is not None:
                # Gradients forbid to change a part of `split` in place.
                part = exact.narrow(0, span.tokens.start - lane.start, span.num_tokens)
                change.apply(part, own, span.groups)
        if dtype is not rows.dtype:
            rows.copy_(exact)


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

    `norm` is the frozen norm over the sum, for adapters that read `NORMED_SUM`. `norm` is None in
    architectures with norms before the blocks.

    Semantics:
        for token in tokens of bottleneck tasks with an adapter here:
            x = norm(summed[token]) if the adapter reads NORMED_SUM else block[token]
            summed[token] += up(activation(down(x)))
    """
    adapted = [
        (span, adapter)
        for span, override in layer.bottleneck
        if (adapter := pick(override)) is not None
    ]
    for _, neighbours in groupby(adapted, _adapter_form):
        run = list(neighbours)
        inputs = list[Tensor]()
        for span, adapter in run:
            x = block[span.tokens]
            if norm is not None and adapter.reads is AdapterInput.NORMED_SUM:
                rows = summed[span.tokens]
                # The gradient of the norm needs the sum without the adapter's output.
                x = layer_norm(rows.clone() if rows.requires_grad else rows, norm, epsilon=epsilon)
            inputs.append(x)
        for (span, _), update in zip(run, _adapter_updates(run, inputs), strict=True):
            summed[span.tokens].add_(update)


_Adapted = tuple[TokenSpan, Adapter]


def _adapter_form(adapted: _Adapted) -> tuple[bool, Activation, int]:
    """The key of neighbours that share a call of their activation."""
    span, adapter = adapted
    return span.groups is None, adapter.activation, adapter.down.weight.shape[-2]


def _adapter_updates(run: Sequence[_Adapted], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of adapters of one form, without the residual sum."""
    grouped = [
        _grouped_update(x, adapter, span.groups)
        for (span, adapter), x in zip(run, inputs, strict=True)
        if span.groups is not None
    ]
    if grouped:
        return grouped
    # Each call of an activation waits for all cores, so one call serves the whole run.
    inner = [apply_linear(x, adapter.down) for (_, adapter), x in zip(run, inputs, strict=True)]
    joined = inner[0] if len(inner) == 1 else torch.cat(inner)
    active = activate(joined, run[0][1].activation, in_place=not joined.requires_grad)
    parts = torch.split(active, [len(x) for x in inputs])
    return [apply_linear(x, adapter.up) for (_, adapter), x in zip(run, parts, strict=True)]


def _grouped_update(x: Tensor, adapter: Adapter, groups: SlotGroups) -> Tensor:
    down, up = adapter.down, adapter.up
    inner = groups.product(groups.pad(x), down.weight, down.bias)
    inner = activate(inner, adapter.activation)
    return groups.unpad(groups.product(inner, up.weight, up.bias))

"""The parts of a transformer layer over a mixed batch, from which architectures build theirs.

An *override* runs at a layer of a branch in place of the frozen weights, or is added to them.
Weights that tasks share with the backbone run as one product over all tokens. A task's own weights
run on the task's span alone.

Axes: tokens = packed tokens of the batch, read = those that heads read at the top, or all of them,
width = hidden width, out = output width of a map,
qkv_width = query, key and value side by side, query = the query heads side by side.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import ClassVar, Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation, AdapterInput, LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_model.config import QKV
from nunatak_model.ops import native
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
        return False


@runtime_checkable
class MapChange(Protocol):
    """A task's change of the inputs or of the outputs of a frozen linear map."""

    def has_effect(self) -> bool: ...

    def apply(
        self,
        changed: Float[Tensor, "tokens changed"],
        x: Float[Tensor, "tokens in"],
        groups: SlotGroups | None,
    ) -> None:
        """Change the outputs of `x`, or `x` itself, in place; with `groups`, of many tasks."""
        ...

    def merge(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedMaps:
    """The frozen layer, with changes of the inputs or outputs of some of its linear maps.

    Query, key and value read one input. No task changes this input for only one of the three.
    """

    lane: ClassVar = Lane.MAPS
    inputs: Mapping[LinearMap, MapChange]
    outputs: Mapping[LinearMap, MapChange]

    @property
    def has_additions(self) -> bool:
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
    """The frozen layer with adapters; a norm that is None means the frozen norm."""

    lane: ClassVar = Lane.BOTTLENECK
    attention_adapter: Adapter | None
    attention_norm: Norm | None
    feedforward_adapter: Adapter | None
    output_norm: Norm | None

    @property
    def has_additions(self) -> bool:
        adapters = (self.attention_adapter, self.feedforward_adapter)
        ups = [it.up for it in adapters if it is not None]
        return any(bool(it.any()) for up in ups for it in (up.weight, up.bias) if it is not None)


MANY_TOKENS = 1024
"""From so many tokens on, a block runs on the weights of one task after the other on a CPU."""
LayerOverride = OwnLayer | ChangedMaps | BottleneckLayer
NormName = Literal["attention_norm", "output_norm", "final_norm", "query_norm", "key_norm"]
BOTTLENECK_NORMS = ("attention_norm", "output_norm")
"""The norms that a bottleneck may own. Bottlenecks run the other norms frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Adjacent tokens that run the same override: of one task, or of many tasks stacked."""

    tokens: slice
    groups: SlotGroups | None = None
    """The slot of each token in stacked parameters."""

    @property
    def num_tokens(self) -> int:
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
    kernels: native.TaskKernels = native.NO_TASK_KERNELS
    dropout: float = 0.0
    top: "tuple[Int[Tensor, ' read'], MixedLayer] | None" = None
    """At the top: the places of the tokens that heads read, and the layer over these tokens."""

    def after_attention(
        self, hidden: Float[Tensor, "tokens width"], context: Float[Tensor, "tokens query"]
    ) -> "tuple[MixedLayer, Float[Tensor, 'read width'], Float[Tensor, 'read query']]":
        """Go on with the tokens that are read: only attention mixes tokens."""
        if self.top is None:
            return self, hidden, context
        places, layer = self.top
        return layer, hidden.index_select(0, places), context.index_select(0, places)

    def drop(self, block: Float[Tensor, "read width"]) -> Float[Tensor, "read width"]:
        return functional.dropout(block, self.dropout, training=self.dropout > 0.0)

    def shared_relative(self) -> RelativePositions:
        if self.relative is None:
            raise ValueError(f"layer {self.index} was given no relative positions")
        return self.relative

    def run_by_weights(
        self, run: Callable[[Tensor, "MixedLayer"], Tensor], x: Float[Tensor, "tokens width"]
    ) -> Float[Tensor, "tokens width"]:
        """Run a block of single tokens on the frozen weights, then on each task's own weights.

        So the inner states of the block, its widest ones, exist for one set of weights at a time.
        A device runs all tokens at once, and so do few tokens, because calls cost them more.
        """
        end = self.frozen_end
        is_small = x.device.type != "cpu" or x.shape[0] < MANY_TOKENS
        if is_small or len(self.own) + bool(end) < 2:
            return run(x, self)
        parts = [run(x[:end], replace(self, own=()))] if end else []
        none = replace(self, frozen_end=0, shared_norm_end=0, changed=(), bottleneck=())
        for span, weights in self.own:
            alone = TokenSpan(tokens=slice(0, span.num_tokens), groups=span.groups)
            parts.append(run(x[span.tokens], replace(none, own=((alone, weights),))))
        return torch.cat(parts)


def mix_layer(
    frozen: LayerWeights | None,
    overrides: Sequence[tuple[TokenSpan, LayerOverride]],
    *,
    index: int,
    num_tokens: int,
    relative: RelativePositions | None = None,
    kernels: native.TaskKernels = native.NO_TASK_KERNELS,
    dropout: float = 0.0,
) -> MixedLayer:
    """Sort the overrides, whose spans are in the order of the plan's lanes, by kind."""
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
        kernels=kernels,
        dropout=dropout,
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
    qkv = _linear(x, layer, "qkv", None)
    # The output map reads one value for each value of the query. Keys and values may have fewer
    # heads than queries.
    _, query = layer.frozen.attention_output.widths
    shared = (qkv.shape[1] - query) // 2
    ends = accumulate((query, shared, shared), initial=0)
    _change_outputs(qkv, dict(zip(QKV, pairwise(ends), strict=True)), x, layer)
    return qkv


def mixed_linear(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
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
        return _linear(x, layer, target, activation)
    y = _linear(x, layer, target, None)
    _change_outputs(y, {target: (0, y.shape[1])}, x, layer)
    if activation is None or not getattr(layer.frozen, target).is_packed_integers:
        return y if activation is None else activate(y, activation)
    # An activation apart may differ in the last bit, which integers of the next map would round.
    fused = _linear(x, layer, target, activation)
    for span, override in layer.changed:
        if target in override.outputs:
            fused[span.tokens] = activate(y[span.tokens], activation)
    return fused


def _linear(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, name: str, activation: Activation | None
) -> Float[Tensor, "tokens out"]:
    maps: list[tuple[int, Linear, SlotGroups | None]] = [
        (span.tokens.stop, getattr(weights, name), span.groups) for span, weights in layer.own
    ]
    if layer.frozen_end:
        maps.insert(0, (layer.frozen_end, getattr(layer.frozen, name), None))
    if all(it.is_packed_integers for _, it, _ in maps):
        return native.integer_linear(x, [it[:2] for it in maps], activation)
    return _by_weights(partial(apply_linear, activation=activation), x, maps)


def mixed_norm(
    x: Float[Tensor, "tokens *heads width"],
    layer: MixedLayer,
    name: NormName,
    *,
    epsilon: float,
    apply: ApplyNorm = layer_norm,
) -> Float[Tensor, "tokens *heads width"]:
    """Run a norm, if the layer has it: frozen, of a bottleneck, or of a task's own layer.

    Semantics:
        for token in tokens:
            y[token] = apply(x[token]) with the norm of the token's own layer, else of its
                bottleneck if it may own this norm, else the frozen one
    """
    frozen: Norm | None = getattr(layer.frozen, name)
    if frozen is None:
        return x
    norms = list[tuple[int, Norm, SlotGroups | None]]()
    may_be_own = name in BOTTLENECK_NORMS
    frozen_end = layer.shared_norm_end if may_be_own else layer.frozen_end
    if frozen_end:
        norms.append((frozen_end, frozen, None))
    if may_be_own:
        for span, override in layer.bottleneck:
            own: Norm | None = getattr(override, name)
            norms.append((span.tokens.stop, own or frozen, span.groups if own else None))
    # Either all rows of a layer have the norm or none.
    norms += [(it.tokens.stop, getattr(weights, name), it.groups) for it, weights in layer.own]
    # torch runs a single norm sooner, but its last bit, which integers would round, may differ.
    is_native = len(norms) > 1 or layer.frozen.qkv.is_packed_integers
    runs = layer.kernels.norms if is_native and apply is layer_norm else None
    if runs is not None and native.can_normalise(x, ends := [it[:2] for it in norms]):
        return runs(x, ends, epsilon)
    return _by_weights(partial(apply, epsilon=epsilon), x, norms)


def _by_weights(
    apply: Callable[..., Tensor],
    x: Float[Tensor, "tokens *heads width"],
    weights: Sequence[tuple[int, Linear | Norm, SlotGroups | None]],
) -> Float[Tensor, "tokens *heads out"]:
    """Apply each of the weights to its tokens; the number is the end of these tokens."""
    if len(weights) == 1:
        return apply(x, weights[0][1], groups=weights[0][2])
    parts, begin = list[Tensor](), 0
    for end, own, groups in weights:
        parts.append(apply(x[begin:end], own, groups=groups))
        begin = end
    return torch.cat(parts)


def _changed_inputs(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, target: LinearMap
) -> Float[Tensor, "tokens width"]:
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
        part = x[span.tokens]
        change.apply(part, part, span.groups)
    return x


_Changed = tuple[TokenSpan, LinearMap, MapChange]


def _change_outputs(
    y: Float[Tensor, "tokens all_out"],
    columns: Mapping[LinearMap, tuple[int, int]],
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
) -> None:
    """In place; `columns` gives the half-open range of each map's outputs in `y`."""
    changes = [
        (span, target, change)
        for target in columns
        for span, override in layer.changed
        if (change := override.outputs.get(target)) is not None
    ]
    if changes and layer.kernels.low_rank is not None:
        updates = [
            native.LowRank(tokens=span.tokens, first_column=columns[target][0], update=change)
            for span, target, change in changes
            if native.can_update(change, x)
        ]
        layer.kernels.low_rank(y, x, updates)
        if len(updates) == len(changes):
            return
        changes = [it for it in changes if not native.can_update(it[2], x)]
    if changes:
        _change_one_by_one(y, columns, x, changes)


def _change_one_by_one(
    y: Float[Tensor, "tokens all_out"],
    columns: Mapping[LinearMap, tuple[int, int]],
    x: Float[Tensor, "tokens width"],
    changes: Sequence[_Changed],
) -> None:
    # Rows of one lane are adjacent, so that one copy serves all their tasks.
    first = min(span.tokens.start for span, _, _ in changes)
    lane = slice(first, max(span.tokens.stop for span, _, _ in changes))
    # On the CPU, bfloat16 products of such sizes cost more to call than to compute.
    dtype = torch.float32 if x.device.type == "cpu" else x.dtype
    inputs = x[lane].to(dtype)
    for target, of_target in groupby(changes, lambda it: it[1]):
        begin, end = columns[target]
        # `narrow`, because autograd refuses to change the results of a split in place.
        rows = y.narrow(1, begin, end - begin)[lane]
        exact = rows.to(dtype)
        for span, _, change in of_target:
            start = span.tokens.start - first
            own, part = (it.narrow(0, start, span.num_tokens) for it in (inputs, exact))
            change.apply(part, own, span.groups)
        if dtype is not rows.dtype:
            rows.copy_(exact)


def add_adapters(
    summed: Float[Tensor, "tokens width"],
    block: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    name: Literal["attention_adapter", "feedforward_adapter"],
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
    if not layer.bottleneck:
        return
    adapted = [
        (span, adapter)
        for span, override in layer.bottleneck
        if (adapter := cast("Adapter | None", getattr(override, name))) is not None
    ]
    if layer.kernels.adapters is not None:
        adapted = _add_in_one_call(summed, block, adapted, layer.kernels.adapters)
    # Neighbours of one form share a call of their activation.
    for _, neighbours in groupby(
        adapted, lambda it: (it[0].groups is None, it[1].activation, it[1].down.weight.shape[-2])
    ):
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


def _add_in_one_call(
    summed: Float[Tensor, "tokens width"],
    block: Float[Tensor, "tokens width"],
    adapted: Sequence[_Adapted],
    add: native.AddAdapters,
) -> list[_Adapted]:
    """Add the adapters that the operator runs, a call for each activation; return the others."""
    rest, ready = list[_Adapted](), defaultdict[Activation, list[native.AdapterMaps]](list)
    for span, it in adapted:
        if it.reads is AdapterInput.BLOCK and native.can_adapt(it.down, it.up, summed):
            maps = native.AdapterMaps(tokens=span.tokens, down=it.down, up=it.up)
            ready[it.activation].append(maps)
        else:
            rest.append((span, it))
    for activation, adapters in ready.items():
        add(summed, block, adapters, activation)
    return rest


def _adapter_updates(run: Sequence[_Adapted], inputs: Sequence[Tensor]) -> list[Tensor]:
    grouped = list[Tensor]()
    for (span, adapter), x in zip(run, inputs, strict=True):
        if (groups := span.groups) is not None:
            inner = groups.product(groups.pad(x), adapter.down.weight, adapter.down.bias)
            active = activate(inner, adapter.activation)
            update = groups.product(active, adapter.up.weight, adapter.up.bias)
            grouped.append(groups.unpad(update))
    if grouped:
        return grouped
    # Each call of an activation waits for all cores, so one call serves the whole run.
    inners = [apply_linear(x, adapter.down) for (_, adapter), x in zip(run, inputs, strict=True)]
    joined = inners[0] if len(inners) == 1 else torch.cat(inners)
    active = activate(joined, run[0][1].activation, in_place=not joined.requires_grad)
    parts = torch.split(active, [len(x) for x in inputs])
    return [apply_linear(x, adapter.up) for (_, adapter), x in zip(run, parts, strict=True)]

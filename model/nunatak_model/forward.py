"""The mixed forward: any rows of any tasks through one frozen backbone, in one pass.

Axes: tokens = packed tokens of the batch, entered = packed tokens of the stage that begins,
width = hidden width, labels = outputs of a task, *vectors = the tokens of a row for token heads,
nothing for others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model.architectures import architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.batch import LayerSpan, in_slot_order, layer_spans, read_places, run_heads
from nunatak_model.branch import Branch
from nunatak_model.layer import MixedLayer, mix_layer
from nunatak_model.ops.device import to_device
from nunatak_model.ops.rows import select_rows
from nunatak_model.plan import TRUNK, BranchTraits, ForwardPlan, Lane, Layout, Stage, plan_batch
from nunatak_model.text.encoding import Encoding
from nunatak_model.trunk import TrunkActivations, TrunkSource, TrunkStates, trunk_source

_num_tokens = attrgetter("num_tokens")

BetweenLayers = Callable[[], None]
"""Called before each layer, including the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question: this input, to this task version."""

    encoding: Encoding
    branch: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    inputs: tuple[Encoding, ...]
    branches: tuple[Branch, ...]
    pairs: tuple[tuple[int, int], ...]


def run_trunk(
    backbone: Backbone, inputs: Sequence[Encoding], *, depth: int, trunk: TrunkStates | None = None
) -> TrunkActivations:
    """Run the backbone's embeddings and layers below `depth` on each distinct input.

    With `trunk`, each input starts from its deepest held state; no state is offered to the cache.
    """
    distinct = tuple(dict.fromkeys(inputs))
    if not distinct:
        return TrunkActivations(depth=depth, hidden={})
    batch = _Batch(inputs=distinct, branches=(), pairs=())
    sources = [] if trunk is None else [trunk_source(backbone, it) for it in distinct]
    plan = plan_batch(
        [(index, 0) for index in range(len(distinct))],
        branches=[BranchTraits(lane=Lane.TRUNK, split_depth=depth)],
        input_lengths=[encoding.num_tokens for encoding in distinct],
        num_layers=depth,
        held_depths=[] if trunk is None else [trunk.depths(source) for source in sources],
    )
    held = _read_states(trunk, plan, sources)
    hidden, layout = _run(plan, held, backbone, batch)
    rows = torch.split(hidden, list(layout.lengths))
    return TrunkActivations(depth=depth, hidden=dict(zip(distinct, rows, strict=True)))


def forward(
    backbone: Backbone,
    rows: Sequence[Row],
    *,
    dropout: float = 0.0,
    trunk: TrunkStates | None = None,
    between_layers: BetweenLayers | None = None,
) -> list[Float[Tensor, "*vectors labels"]]:
    """Logits of each row, in float32, in the order of the rows.

    Sequence heads give one vector per row, [labels]. Token heads give one vector per token,
    [tokens, labels]. Each row's logits equal the logits of its task's own model for its input
    alone, in any batch. Equal inputs share their trunk; equal rows are computed once.

    Gradients flow to branch parameters that require them. Those of embeddings are sparse on a CPU.

    Args:
        backbone: the frozen encoder.
        rows: inputs, each with its branch.
        dropout: a probability, for branch layers and heads only. All rows must have one split
            depth.
        trunk: states of earlier batches. Each input starts from its deepest held state at or below
            its split depths. Newly computed states at the start of a branch are offered to the
            cache. The cache changes answers only by the order of sums.
        between_layers: may run another forward pass; the two passes do not affect each other. An
            exception in `between_layers` ends this pass.

    Semantics:
        for row in rows:
            x = embeddings(row.encoding)
            for layer in range(num_layers):
                run = row.branch.layers if layer >= split_depth else backbone.layers
                x = run[layer](x)
            logits[row] = row.branch.head(pool(x) if it pools else x)
    """
    if not rows:
        return []
    if dropout > 0.0 and len({row.branch.split_depth for row in rows}) > 1:
        raise ValueError("dropout asks that all rows of a batch have the same split depth")
    batch = _distinct(rows)
    sources = [] if trunk is None else [trunk_source(backbone, it) for it in batch.inputs]
    plan = plan_batch(
        batch.pairs,
        branches=[
            BranchTraits(
                lane=next((layer.lane for layer in it.layers.values()), Lane.TRUNK),
                split_depth=it.split_depth,
                reads_one=it.head.reads_one,
            )
            for it in batch.branches
        ],
        input_lengths=[encoding.num_tokens for encoding in batch.inputs],
        num_layers=backbone.config.num_layers,
        held_depths=[] if trunk is None else [trunk.depths(source) for source in sources],
    )
    # Held states are read before new states are offered, because an offer may drop held states.
    held = _read_states(trunk, plan, sources)
    offer = None if trunk is None else partial(_offer_states, trunk, sources)
    hidden, layout = _run(
        plan, held, backbone, batch, dropout=dropout, between_layers=between_layers, offer=offer
    )
    row_of = dict(zip(batch.pairs, plan.output_rows, strict=True))
    logits = run_heads(
        hidden,
        layout,
        batch.branches,
        row_of,
        inputs=batch.inputs,
        ops=backbone.ops,
        dropout=dropout,
    )
    return [logits[pair] for pair in batch.pairs]


def _run(
    plan: ForwardPlan,
    held: Sequence[Sequence[Float[Tensor, "_ width"]]],
    backbone: Backbone,
    batch: _Batch,
    *,
    dropout: float = 0.0,
    between_layers: BetweenLayers | None = None,
    offer: Callable[[Tensor, Stage], None] | None = None,
) -> tuple[Float[Tensor, "tokens width"], Layout]:
    layout = plan.start
    # If the states of all inputs are held, no row comes from the embeddings.
    shape = (0, backbone.config.hidden_width)
    hidden = (
        _embed(backbone, batch, layout, dropout=dropout)
        if layout.rows
        else torch.empty(shape, dtype=backbone.dtype, device=backbone.device)
    )
    for stage, states in zip(plan.stages, held, strict=True):
        hidden = _enter_stage(hidden, layout, stage, states)
        layout = stage.outputs
        hidden = _run_stage(
            hidden, backbone, batch, stage, dropout=dropout, between_layers=between_layers
        )
        if offer is not None:
            offer(hidden, stage)
    return hidden, layout


def _distinct(rows: Sequence[Row]) -> _Batch:
    # Inputs of one length become adjacent, so that one call of attention serves them all.
    encodings = sorted(dict.fromkeys(row.encoding for row in rows), key=_num_tokens)
    inputs = {encoding: index for index, encoding in enumerate(encodings)}
    branches = in_slot_order(row.branch for row in rows)
    index_of = {branch: index for index, branch in enumerate(branches)}
    pairs = tuple((inputs[row.encoding], index_of[row.branch]) for row in rows)
    return _Batch(inputs=tuple(inputs), branches=branches, pairs=pairs)


def _embed(
    backbone: Backbone, batch: _Batch, layout: Layout, *, dropout: float
) -> Float[Tensor, "tokens width"]:
    architecture = architecture_of(backbone.config)
    parts = list[Tensor]()
    for branch, rows in groupby(layout.rows, lambda row: row.branch):
        own = None if branch == TRUNK else batch.branches[branch].embeddings
        inputs = [batch.inputs[row.input] for row in rows]
        part = architecture.embed(inputs, own or backbone.embeddings, backbone.config)
        rate = 0.0 if own is None else dropout
        parts.append(functional.dropout(part, rate, training=rate > 0.0))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _read_states(
    trunk: TrunkStates | None, plan: ForwardPlan, sources: Sequence[TrunkSource]
) -> list[list[Float[Tensor, "_ width"]]]:
    if trunk is None:
        return [[] for _ in plan.stages]
    return [
        [trunk.read(sources[item], stage.begin_layer) for item in stage.entering]
        for stage in plan.stages
    ]


def _offer_states(
    trunk: TrunkStates,
    sources: Sequence[TrunkSource],
    hidden: Float[Tensor, "tokens width"],
    stage: Stage,
) -> None:
    layout = stage.outputs
    for row in stage.kept_rows:
        state = hidden[layout.offsets[row] : layout.offsets[row + 1]]
        trunk.offer(sources[layout.rows[row].input], stage.end_layer, state)


def _enter_stage(
    hidden: Float[Tensor, "tokens width"],
    before: Layout,
    stage: Stage,
    entering: Sequence[Float[Tensor, "_ width"]],
) -> Float[Tensor, "entered width"]:
    """Copy every row of the stage from its earlier place, its trunk row or its held state."""
    if stage.source_rows is None:
        return hidden
    if not entering:
        return select_rows(hidden, before.offsets, stage.source_rows)
    lengths = [*before.lengths, *map(len, entering)]
    offsets = tuple(accumulate(lengths, initial=0))
    return select_rows(torch.cat([hidden, *entering]), offsets, stage.source_rows)


def _run_stage(
    hidden: Float[Tensor, "tokens width"],
    backbone: Backbone,
    batch: _Batch,
    stage: Stage,
    *,
    dropout: float,
    between_layers: BetweenLayers | None,
) -> Float[Tensor, "read width"]:
    layout = stage.layout
    begin, end = stage.begin_layer, stage.end_layer
    if begin == end:
        return hidden
    spans = layer_spans(layout, batch.branches, backbone.ops.groups, hidden.device)
    attention = backbone.ops.attention(layout.lengths, hidden.device)
    run_layer = architecture_of(backbone.config).plan_layers(attention, backbone.config)
    for index in range(begin, end):
        if between_layers is not None:
            between_layers()
        layer = _mixed(backbone, spans, index, num_tokens=layout.num_tokens, dropout=dropout)
        if index + 1 == end and stage.outputs.num_tokens < layout.num_tokens:
            layer = replace(layer, top=_top(backbone, batch, stage, dropout=dropout))
        hidden = run_layer(hidden, layer)
    return hidden


def _mixed(
    backbone: Backbone, spans: Sequence[LayerSpan], index: int, *, num_tokens: int, dropout: float
) -> MixedLayer:
    return mix_layer(
        backbone.layer(index),
        [(own.span, own.layers[index]) for own in spans],
        index=index,
        num_tokens=num_tokens,
        relative=backbone.embeddings.relative,
        kernels=backbone.ops.tasks,
        dropout=dropout if spans else 0.0,
    )


def _top(
    backbone: Backbone, batch: _Batch, stage: Stage, *, dropout: float
) -> tuple[Tensor, MixedLayer]:
    """The places of the tokens that heads read, and the last layer over these tokens."""
    places = read_places(stage.layout, stage.outputs, batch.branches, batch.inputs)
    spans = layer_spans(stage.outputs, batch.branches, backbone.ops.groups, backbone.device)
    num_tokens, last = stage.outputs.num_tokens, stage.end_layer - 1
    layer = _mixed(backbone, spans, last, num_tokens=num_tokens, dropout=dropout)
    return to_device(places, backbone.device), layer

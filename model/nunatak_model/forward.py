"""The mixed forward: any rows of any tasks through one frozen backbone, in one pass.

The plan's rows of single branches become runs of a device. Branches in slots of one page run
together, in the order of their slots, if the operations of the device have groups. All other
branches run alone.

Axes: tokens = packed tokens of the batch or of the last layout, entered = packed tokens of the
stage that begins, width = hidden width, vectors = pooled vectors or token vectors of some rows,
labels = outputs of a task, *vectors = the tokens of a row for token heads, nothing for others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Pooling
from nunatak_model.architectures import architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.branch import Branch, Layers
from nunatak_model.heads import Head, apply_head, pool, unpadded_length
from nunatak_model.layer import MixedLayer, TokenSpan, mix_layer
from nunatak_model.ops.choice import Ops
from nunatak_model.ops.device import to_device
from nunatak_model.ops.grouped import PlanGroups, SlotGroups
from nunatak_model.ops.rows import select_rows
from nunatak_model.plan import (
    TRUNK,
    BranchTraits,
    ForwardPlan,
    Lane,
    Layout,
    Segment,
    Stage,
    plan_batch,
)
from nunatak_model.text.encoding import Encoding
from nunatak_model.trunk import TrunkActivations, TrunkSource, TrunkStates, trunk_source

_num_tokens = attrgetter("num_tokens")

BetweenLayers = Callable[[], None]
"""Called before each layer, including the lowest."""
Pair = tuple[int, int]
"""An input and a branch, by index."""
_Reading = tuple[Pooling | None, int | None]
"""Pooling and padding id of a head. Heads with the same ones read the same vectors."""
_Span = tuple[TokenSpan, Layers]
"""The tokens of a run, and the override of these tokens at each layer."""
NO_PLACE = (-1, 0)
"""The place of branches without slots, which sorts before the places of all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question: this input, to this task version."""

    encoding: Encoding
    branch: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    inputs: tuple[Encoding, ...]
    branches: tuple[Branch, ...]
    pairs: tuple[Pair, ...]


def run_trunk(
    backbone: Backbone, inputs: Sequence[Encoding], *, depth: int, trunk: TrunkStates | None = None
) -> TrunkActivations:
    """Run the backbone's embeddings and layers below `depth` on each distinct input.

    With `trunk`, each input starts from its deepest held state; no state is offered to the cache.
    """
    distinct = tuple(dict.fromkeys(inputs))
    if not distinct:
        return TrunkActivations(depth=depth, hidden={})
    pairs = tuple((index, 0) for index in range(len(distinct)))
    batch = _Batch(inputs=distinct, branches=(), pairs=pairs)
    traits = [BranchTraits(lane=Lane.TRUNK, split_depth=depth)]
    plan, sources = _plan(backbone, batch, traits, trunk, num_layers=depth)
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

    Gradients flow to branch parameters that require them.

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
    traits = [
        BranchTraits(
            lane=next((layer.lane for layer in it.layers.values()), Lane.TRUNK),
            split_depth=it.split_depth,
            reads_one=it.head.reads_one,
        )
        for it in batch.branches
    ]
    plan, sources = _plan(backbone, batch, traits, trunk, num_layers=backbone.config.num_layers)
    # Held states are read before new states are offered, because an offer may drop held states.
    held = _read_states(trunk, plan, sources)
    offer = None if trunk is None else partial(_offer_states, trunk, sources)
    hidden, layout = _run(
        plan, held, backbone, batch, dropout=dropout, between_layers=between_layers, offer=offer
    )
    row_of = dict(zip(batch.pairs, plan.output_rows, strict=True))
    logits = _run_heads(
        hidden,
        layout,
        batch.branches,
        row_of,
        inputs=batch.inputs,
        ops=backbone.ops,
        dropout=dropout,
    )
    return [logits[pair] for pair in batch.pairs]


def _plan(
    backbone: Backbone,
    batch: _Batch,
    traits: Sequence[BranchTraits],
    trunk: TrunkStates | None,
    *,
    num_layers: int,
) -> tuple[ForwardPlan, list[TrunkSource]]:
    sources = [] if trunk is None else [trunk_source(backbone, it) for it in batch.inputs]
    plan = plan_batch(
        batch.pairs,
        branches=traits,
        input_lengths=[encoding.num_tokens for encoding in batch.inputs],
        num_layers=num_layers,
        held_depths=[] if trunk is None else [trunk.depths(source) for source in sources],
    )
    return plan, sources


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
    branches = _in_slot_order(row.branch for row in rows)
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
    spans = _layer_spans(layout, batch.branches, backbone.ops.groups, hidden.device)
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
    backbone: Backbone, spans: Sequence[_Span], index: int, *, num_tokens: int, dropout: float
) -> MixedLayer:
    return mix_layer(
        backbone.layer(index),
        [(span, layers[index]) for span, layers in spans],
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
    places = _read_places(stage.layout, stage.outputs, batch.branches, batch.inputs)
    spans = _layer_spans(stage.outputs, batch.branches, backbone.ops.groups, backbone.device)
    num_tokens, last = stage.outputs.num_tokens, stage.end_layer - 1
    layer = _mixed(backbone, spans, last, num_tokens=num_tokens, dropout=dropout)
    return to_device(places, backbone.device), layer


def _in_slot_order(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Distinct branches; the branches of one page are adjacent, in the order of their slots."""
    return tuple(sorted(dict.fromkeys(branches), key=_place))


def _layer_spans(
    layout: Layout, branches: Sequence[Branch], plan_groups: PlanGroups | None, device: torch.device
) -> tuple[_Span, ...]:
    own = [span for span in layout.spans if span.lane is not Lane.TRUNK]
    if plan_groups is None:
        return tuple(_lone_span(span, branches[span.branch]) for span in own)
    found = list[_Span]()
    for _, neighbours in groupby(own, lambda span: _page(span.branch, branches)):
        spans = list(neighbours)
        found.append(_span(spans, [branches[it.branch] for it in spans], plan_groups, device))
    return tuple(found)


def _lone_span(span: Segment, branch: Branch) -> _Span:
    return TokenSpan(tokens=slice(span.begin, span.end)), branch.layers


def _span(
    spans: Sequence[Segment],
    branches: Sequence[Branch],
    plan_groups: PlanGroups,
    device: torch.device,
) -> _Span:
    first = branches[0].slots
    if len(spans) == 1 or first is None or first.layers is None:
        return _lone_span(spans[0], branches[0])
    members = [
        (branch.slots.layers.index, span.end - span.begin)
        for span, branch in zip(spans, branches, strict=True)
        if branch.slots is not None and branch.slots.layers is not None
    ]
    page = first.layers.page
    groups = plan_groups(members, page.num_slots, device)
    tokens = slice(spans[0].begin, spans[-1].end)
    return TokenSpan(tokens=tokens, groups=groups), page.stack


def _page(index: int, branches: Sequence[Branch]) -> tuple[int, int]:
    page, _ = _place(branches[index])
    return (page, 0) if page >= 0 else (page, index)


def _place(branch: Branch) -> tuple[int, int]:
    slots = branch.slots
    return NO_PLACE if slots is None or slots.layers is None else slots.layers.place


def _read_places(
    layout: Layout, outputs: Layout, branches: Sequence[Branch], inputs: Sequence[Encoding]
) -> list[int]:
    """The places in a layout of the tokens that its outputs have."""
    places = list[int]()
    for row, begin, length, kept in zip(
        layout.rows, layout.offsets, layout.lengths, outputs.lengths, strict=False
    ):
        if kept == length:
            places += range(begin, begin + length)
        else:
            head = branches[row.branch].head
            places.append(begin + head.place_in(inputs[row.input].token_ids))
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadRun:
    """Rows that run through heads together: of one task, or of many tasks with stacked heads."""

    pairs: tuple[Pair, ...]
    rows: tuple[int, ...]
    head: Head
    groups: SlotGroups | None = None


def _run_heads(
    hidden: Float[Tensor, "tokens width"],
    layout: Layout,
    branches: Sequence[Branch],
    row_of: dict[Pair, int],
    *,
    inputs: Sequence[Encoding],
    ops: Ops,
    dropout: float,
) -> dict[Pair, Float[Tensor, "*vectors labels"]]:
    pooled = dict[_Reading, Tensor]()
    for pooling, padding_id in dict.fromkeys(_reading(branch.head) for branch in branches):
        if pooling is not None and pooling is not Pooling.LATE:
            rows = zip(layout.rows, layout.lengths, strict=True)
            # A row may have only the token that its head reads.
            ends = [
                min(length, unpadded_length(inputs[row.input].token_ids, padding_id))
                for row, length in rows
            ]
            pooled[pooling, padding_id] = pool(
                hidden, layout.lengths, pooling, ends=ends, sum_rows=ops.sum_rows
            )
    logits = dict[Pair, Tensor]()
    for run in _head_runs(row_of, branches, layout, ops.groups, hidden.device):
        if run.head.scores_tokens:
            features = select_rows(hidden, layout.offsets, run.rows)
            scores = apply_head(features, run.head, dropout=dropout, groups=run.groups)
            parts = _token_scores(scores, [layout.lengths[row] for row in run.rows], run.head, ops)
        else:
            features = _select(pooled[_reading(run.head)], run.rows)
            parts = apply_head(features, run.head, dropout=dropout, groups=run.groups).unbind()
        for pair, part in zip(run.pairs, parts, strict=True):
            num_labels = branches[pair[1]].spec.head.num_labels
            logits[pair] = part if run.groups is None else part[..., :num_labels]
    return logits


def _token_scores(
    scores: Float[Tensor, "tokens labels"], lengths: Sequence[int], head: Head, ops: Ops
) -> Sequence[Float[Tensor, "*vectors labels"]]:
    """The logits of the tokens of each row, or their mean."""
    if head.pooling is None:
        return torch.split(scores, list(lengths))
    return pool(scores, lengths, head.pooling, ends=lengths, sum_rows=ops.sum_rows).unbind()


def _select(
    pooled: Float[Tensor, "rows width"], rows: Sequence[int]
) -> Float[Tensor, "vectors width"]:
    """The vectors of some rows; a view if the rows are adjacent, as those of a task mostly are."""
    first = rows[0]
    if list(rows) == list(range(first, first + len(rows))):
        return pooled.narrow(0, first, len(rows))
    return pooled.index_select(0, to_device(rows, pooled.device))


def _reading(head: Head) -> _Reading:
    return head.pooling, head.padding_id


def _head_runs(
    row_of: dict[Pair, int],
    branches: Sequence[Branch],
    layout: Layout,
    plan_groups: PlanGroups | None,
    device: torch.device,
) -> list[_HeadRun]:
    pages = defaultdict[int, list[Pair]](list)
    for pair in sorted(row_of, key=lambda it: (_slot(branches[it[1]]), it[1])):
        slots = branches[pair[1]].slots
        # A branch that runs alone gets a unique number, which no page has.
        is_alone = slots is None or plan_groups is None
        pages[-1 - pair[1] if is_alone else slots.head.page.number].append(pair)
    runs = list[_HeadRun]()
    for pairs in pages.values():
        rows = tuple(row_of[pair] for pair in pairs)
        first, is_of_many = branches[pairs[0][1]], pairs[0][1] != pairs[-1][1]
        if first.slots is None or plan_groups is None or not is_of_many:
            runs.append(_HeadRun(pairs=tuple(pairs), rows=rows, head=first.head))
            continue
        page = first.slots.head.page
        sizes = [layout.lengths[row] if first.head.scores_tokens else 1 for row in rows]
        slots = [_slot(branches[branch]) for _, branch in pairs]
        groups = plan_groups(list(zip(slots, sizes, strict=True)), page.num_slots, device)
        runs.append(_HeadRun(pairs=tuple(pairs), rows=rows, head=page.stack, groups=groups))
    return runs


def _slot(branch: Branch) -> int:
    return 0 if branch.slots is None else branch.slots.head.index

"""The batch: the plan's rows of single branches become runs of a device.

Branches in slots of one page run together, in the order of their slots, if the operations of the
device have groups. All other branches run alone.

Axes: tokens = packed tokens of the last layout, width = hidden width, vectors = pooled vectors or
token vectors of some rows, labels = outputs of a task, *vectors = the tokens of a row for token
heads, nothing for others.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_model.branch import Branch, Layers
from nunatak_model.heads import Head, apply_head, pool, unpadded_length
from nunatak_model.layer import TokenSpan
from nunatak_model.ops.choice import Ops
from nunatak_model.ops.device import to_device
from nunatak_model.ops.grouped import PlanGroups, SlotGroups
from nunatak_model.ops.rows import select_rows
from nunatak_model.plan import Lane, Layout, Segment
from nunatak_model.text.encoding import Encoding

Pair = tuple[int, int]
"""An input and a branch, by index."""
_Reading = tuple[Pooling | None, int | None]
"""Pooling and padding id of a head. Heads with the same ones read the same vectors."""
NO_PLACE = (-1, 0)
"""The place of branches without slots, which sorts before the places of all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpan:
    """The tokens of a run, and the override of these tokens at each layer."""

    span: TokenSpan
    layers: Layers


def in_slot_order(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Distinct branches; the branches of one page are adjacent, in the order of their slots."""
    return tuple(sorted(dict.fromkeys(branches), key=_place))


def layer_spans(
    layout: Layout, branches: Sequence[Branch], plan_groups: PlanGroups | None, device: torch.device
) -> tuple[LayerSpan, ...]:
    own = [span for span in layout.spans if span.lane is not Lane.TRUNK]
    if plan_groups is None:
        return tuple(_lone_span(span, branches[span.branch]) for span in own)
    found = list[LayerSpan]()
    for _, neighbours in groupby(own, lambda span: _page(span.branch, branches)):
        spans = list(neighbours)
        found.append(_span(spans, [branches[it.branch] for it in spans], plan_groups, device))
    return tuple(found)


def _lone_span(span: Segment, branch: Branch) -> LayerSpan:
    return LayerSpan(span=TokenSpan(tokens=slice(span.begin, span.end)), layers=branch.layers)


def _span(
    spans: Sequence[Segment],
    branches: Sequence[Branch],
    plan_groups: PlanGroups,
    device: torch.device,
) -> LayerSpan:
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
    return LayerSpan(span=TokenSpan(tokens=tokens, groups=groups), layers=page.stack)


def _page(index: int, branches: Sequence[Branch]) -> tuple[int, int]:
    page, _ = _place(branches[index])
    return (page, 0) if page >= 0 else (page, index)


def _place(branch: Branch) -> tuple[int, int]:
    slots = branch.slots
    return NO_PLACE if slots is None or slots.layers is None else slots.layers.place


def read_places(
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


def run_heads(
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
    pairs_of: dict[int, list[Pair]] = defaultdict(list)
    for pair in row_of:
        pairs_of[pair[1]].append(pair)
    pages: dict[int, list[int]] = defaultdict(list)
    for branch in pairs_of:
        slots = branches[branch].slots
        if slots is None or plan_groups is None:
            # A branch that runs alone gets a unique number, which no page has.
            pages[-1 - branch].append(branch)
        else:
            pages[slots.head.page.number].append(branch)
    runs = list[_HeadRun]()
    for members in pages.values():
        ordered = sorted(members, key=lambda it: _slot(branches[it]))
        pairs = tuple(pair for branch in ordered for pair in pairs_of[branch])
        rows = tuple(row_of[pair] for pair in pairs)
        first = branches[ordered[0]]
        if len(ordered) == 1 or first.slots is None or plan_groups is None:
            runs.append(_HeadRun(pairs=pairs, rows=rows, head=first.head))
            continue
        page = first.slots.head.page
        sizes = [layout.lengths[row] if first.head.scores_tokens else 1 for row in rows]
        slots = [_slot(branches[branch]) for _, branch in pairs]
        groups = plan_groups(list(zip(slots, sizes, strict=True)), page.num_slots, device)
        runs.append(_HeadRun(pairs=pairs, rows=rows, head=page.stack, groups=groups))
    return runs


def _slot(branch: Branch) -> int:
    return 0 if branch.slots is None else branch.slots.head.index

"""Spans: from the plan's spans of one branch each to what the kernels of a device run at once.

Branches in slots of one page run together, in the order of their slots; all others by themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from nunatak_model.branch import Branch, Layers
from nunatak_model.layer import TokenSpan
from nunatak_model.ops.grouped import slot_groups
from nunatak_model.plan import Lane, Layout, Span

NO_PLACE = (-1, 0)
"""Of branches without slots; before that of any page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpan:
    """Tokens, and what they run at each layer."""

    span: TokenSpan
    layers: Layers


def in_slot_order(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Distinct branches so that those of one page are neighbours, in the order of their slots."""
    return tuple(sorted(dict.fromkeys(branches), key=_place))


def layer_spans(
    layout: Layout, branches: Sequence[Branch], device: torch.device
) -> tuple[LayerSpan, ...]:
    """What the tokens of a stage run that is not frozen, in the order of the plan's lanes."""
    own = [span for span in layout.spans if span.lane is not Lane.TRUNK]
    found = list[LayerSpan]()
    for _, neighbours in groupby(own, lambda span: _page(span.branch, branches)):
        spans = list(neighbours)
        found.append(_span(spans, [branches[it.branch] for it in spans], device))
    return tuple(found)


def _span(spans: Sequence[Span], branches: Sequence[Branch], device: torch.device) -> LayerSpan:
    tokens = slice(spans[0].begin, spans[-1].end)
    first = branches[0].slots
    if len(spans) == 1 or first is None or first.layers is None:
        return LayerSpan(span=TokenSpan(tokens=tokens), layers=branches[0].layers)
    members = [
        (branch.slots.layers.index, span.end - span.begin)
        for span, branch in zip(spans, branches, strict=True)
        if branch.slots is not None and branch.slots.layers is not None
    ]
    page = first.layers.page
    groups = slot_groups(members, num_slots=page.num_slots, device=device)
    return LayerSpan(span=TokenSpan(tokens=tokens, groups=groups), layers=page.stack)


def _page(index: int, branches: Sequence[Branch]) -> tuple[int, int]:
    """Equal for branches that run together."""
    page, _ = _place(branches[index])
    return (page, 0) if page >= 0 else (page, index)


def _place(branch: Branch) -> tuple[int, int]:
    slots = branch.slots
    return NO_PLACE if slots is None or slots.layers is None else slots.layers.place

"""The plan of one mixed batch: which rows run which layers with whose parameters. Pure.

Two kinds of rows walk up the layers:

- trunk rows, one per distinct input that somebody above still needs;
- branch rows, one per distinct (input, branch) pair that has passed its split depth.

Between two split depths nothing changes, so the walk falls into stages. At the start of a stage
each new branch row is copied from its input's trunk row, and trunk rows that nobody needs any more
are dropped. Within a stage rows lie in lanes, ordered by what they share with the backbone:

    trunk | lora | bottleneck | own
    '----- frozen products ----'
    '- frozen norms -'

so that everything that runs frozen weights is one contiguous range of tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, groupby, pairwise

TRUNK = -1
"""Branch index of a trunk row."""


class Lane(IntEnum):
    """What a row shares with the backbone; rows of a stage are sorted by it."""

    TRUNK = 0
    LORA = 1
    BOTTLENECK = 2
    OWN = 3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlannedRow:
    """A row of a stage; the field order is the sort order."""

    lane: Lane
    branch: int
    input: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTraits:
    """What planning needs to know of a branch."""

    lane: Lane
    split_depth: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The contiguous tokens of one branch (or of the trunk) in a stage."""

    lane: Lane
    branch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the rows of a stage lie in the packed batch."""

    rows: tuple[PlannedRow, ...]
    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    """First token of each row, and the number of all tokens at the end."""
    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return self.offsets[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers `[begin_layer, end_layer)` on one layout."""

    begin_layer: int
    end_layer: int
    layout: Layout
    source_rows: tuple[int, ...] | None
    """Row of the layout before that each row is copied from; None if nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A whole forward: fill the first layout, run the stages, read the outputs."""

    start: Layout
    """The rows before the first stage, from the embeddings or from trunk activations."""
    stages: tuple[Stage, ...]
    output_rows: tuple[int, ...]
    """For each requested (input, branch) pair, its row in the last layout."""


def plan_batch(
    pairs: Sequence[tuple[int, int]],
    *,
    branches: Sequence[BranchTraits],
    input_lengths: Sequence[int],
    num_layers: int,
    first_layer: int = 0,
) -> BatchPlan:
    """Plan the forward of (input, branch) pairs, given by index; equal pairs are computed once.

    A forward that starts at a `first_layer` above 0 is given the trunk rows of that depth; no
    branch may then split below it.

    Semantics:
        for input, branch in pairs:
            x = embed(input)
            for layer in range(first_layer, num_layers):
                x = layer of branch if layer >= its split depth else layer of the backbone
            output = head of branch(x)
    """
    wanted = sorted(set(pairs))
    layout = _layout(_rows_at(first_layer - 1, wanted, branches), input_lengths)
    start, stages = layout, list[Stage]()
    for begin, end in pairwise(_stage_bounds(wanted, branches, first_layer, num_layers)):
        rows = _rows_at(begin, wanted, branches)
        source = None if rows == layout.rows else _source_rows(rows, layout)
        layout = layout if source is None else _layout(rows, input_lengths)
        stages.append(Stage(begin_layer=begin, end_layer=end, layout=layout, source_rows=source))
    row_of = _index(layout.rows)
    return BatchPlan(
        start=start,
        stages=tuple(stages),
        output_rows=tuple(_find(row_of, item, branch) for item, branch in pairs),
    )


def _stage_bounds(
    wanted: Iterable[tuple[int, int]],
    branches: Sequence[BranchTraits],
    first_layer: int,
    num_layers: int,
) -> list[int]:
    depths = {branches[branch].split_depth for _, branch in wanted}
    if first_layer and any(depth is None or depth < first_layer for depth in depths):
        raise ValueError(f"a branch splits below layer {first_layer}, where this forward starts")
    return sorted({first_layer, num_layers} | {depth for depth in depths if depth is not None})


def _rows_at(
    depth: int, wanted: Sequence[tuple[int, int]], branches: Sequence[BranchTraits]
) -> tuple[PlannedRow, ...]:
    """The rows that run layer `depth` (-1: the embeddings), in lane order."""
    rows = set[PlannedRow]()
    for item, branch in wanted:
        traits = branches[branch]
        if traits.split_depth is None or traits.split_depth <= depth:
            rows.add(PlannedRow(lane=traits.lane, branch=branch, input=item))
        else:
            rows.add(PlannedRow(lane=Lane.TRUNK, branch=TRUNK, input=item))
    return tuple(sorted(rows))


def _layout(rows: tuple[PlannedRow, ...], input_lengths: Sequence[int]) -> Layout:
    lengths = tuple(input_lengths[row.input] for row in rows)
    offsets = tuple(accumulate(lengths, initial=0))
    spans = list[Span]()
    for (lane, branch), group in groupby(enumerate(rows), lambda it: (it[1].lane, it[1].branch)):
        members = [position for position, _ in group]
        spans.append(
            Span(
                lane=lane,
                branch=branch,
                begin=offsets[members[0]],
                end=offsets[members[-1] + 1],
            )
        )
    return Layout(rows=rows, lengths=lengths, offsets=offsets, spans=tuple(spans))


def _index(rows: Sequence[PlannedRow]) -> dict[tuple[int, int], int]:
    return {(row.input, row.branch): position for position, row in enumerate(rows)}


def _find(row_of: dict[tuple[int, int], int], item: int, branch: int) -> int:
    """The row of the pair itself, or the trunk row it has not left yet."""
    own = row_of.get((item, branch))
    return row_of[item, TRUNK] if own is None else own


def _source_rows(rows: Sequence[PlannedRow], before: Layout) -> tuple[int, ...]:
    row_of = _index(before.rows)
    return tuple(_find(row_of, row.input, row.branch) for row in rows)

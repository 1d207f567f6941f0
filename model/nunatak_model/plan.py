"""The plan of one mixed batch: which rows run which layers with whose parameters. Pure.

Two kinds of rows go up the layers:

- trunk rows, one per distinct input that a branch still needs;
- branch rows, one per distinct (input, branch) pair that has passed its split depth.

A trunk row enters at the embeddings. If an earlier batch left a state of the input at some depth,
the trunk row enters at that depth. Between two depths where rows enter or split, the set of rows is
constant. These intervals are the stages. At the start of a stage each new branch row is copied from
its input's trunk row, and trunk rows without further branches are dropped. Within a stage rows
lie in lanes, ordered by the work they share with the backbone:

    trunk | maps | bottleneck | own
    '----- frozen products ----'
    '- frozen norms -'

so that all rows with frozen weights form one contiguous range of tokens.

After the attention of the top layer, a branch row whose head reads one token has only this token.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

TRUNK = -1
"""Branch index of a trunk row."""
EMBEDDINGS = -1
"""The depth below layer 0, where rows come from the embeddings."""


_ORDER = attrgetter("lane", "branch", "input")


class Lane(IntEnum):
    """The work that a row shares with the backbone; rows of a stage are sorted by lane."""

    TRUNK = 0
    MAPS = 1
    """Frozen maps and norms; the task changes what some of the maps take or give."""
    BOTTLENECK = 2
    """Frozen maps; adapters after the blocks, and often the task's own norms."""
    OWN = 3
    """Nothing: the layer is the task's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row of a stage; rows lie in the order of their fields."""

    lane: Lane
    branch: int
    input: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTraits:
    """The facts of a branch that planning needs."""

    lane: Lane
    split_depth: int | None
    reads_one: bool = False
    """Whether the head reads one token of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The contiguous tokens of one branch (or of the trunk) in a stage."""

    lane: Lane
    branch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of a stage's rows in the packed batch."""

    rows: tuple[PlannedRow, ...]
    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    """First token of each row, and the number of all tokens."""
    spans: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers `[begin_layer, end_layer)` on one layout."""

    begin_layer: int
    end_layer: int
    layout: Layout
    outputs: Layout
    """The layout after the attention of the last layer: the same, except at the top."""
    entering: tuple[int, ...]
    """Inputs whose held states enter; their rows follow the previous layout's rows."""
    source_rows: tuple[int, ...] | None
    """A row of the previous outputs or an entering row, for each row. None: no change."""
    kept_rows: tuple[int, ...]
    """Trunk rows that some branch leaves at `end_layer`, for the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPlan:
    """A whole forward: fill the first layout, run the stages, read the outputs."""

    start: Layout
    """The rows that come from the embeddings; none if all inputs are held."""
    stages: tuple[Stage, ...]
    output_rows: tuple[int, ...]
    """The row in the last outputs of each requested pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Numbers of tokens of the rows, by input, and the branches whose heads read one token."""

    of_inputs: Sequence[int]
    reads_one: frozenset[int]

    def at(self, row: PlannedRow, *, is_top: bool) -> int:
        return 1 if is_top and row.branch in self.reads_one else self.of_inputs[row.input]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """The path of one pair: its trunk row in layers `[enter, leave)`, and its own row above."""

    trunk: PlannedRow
    own: PlannedRow
    enter: int
    leave: int

    def row_at(self, depth: int) -> PlannedRow | None:
        if depth >= self.leave:
            return self.own
        return self.trunk if depth >= self.enter else None


def plan_batch(
    pairs: Sequence[tuple[int, int]],
    *,
    branches: Sequence[BranchTraits],
    input_lengths: Sequence[int],
    num_layers: int,
    held_depths: Sequence[Collection[int]] = (),
) -> ForwardPlan:
    """Plan the forward of (input, branch) pairs, given by index; equal pairs are computed once.

    `held_depths` gives, for each input, the depths of its trunk states in memory; by default there
    are none. Each pair starts from the deepest state that is not above its split depth.

    Semantics:
        for input, branch in pairs:
            enter = deepest held depth <= split depth of branch, else 0
            x = held state of input at enter, else embed(input)
            for layer in range(enter, num_layers):
                x = layer of branch if layer >= its split depth else layer of the backbone
            output = head of branch(x)
    """
    routes = _routes(pairs, branches, held_depths)
    lengths = _Lengths(
        of_inputs=input_lengths,
        reads_one=frozenset(index for index, it in enumerate(branches) if it.reads_one),
    )
    layout = _layout(_rows_at(EMBEDDINGS, routes), lengths)
    start, stages = layout, list[Stage]()
    for begin, end in pairwise(_stage_bounds(routes, num_layers)):
        stage = _stage(begin, end, routes, layout, lengths, top=num_layers)
        layout = stage.outputs
        stages.append(stage)
    row_of = _index(layout.rows)
    return ForwardPlan(
        start=start,
        stages=tuple(stages),
        output_rows=tuple(_find(row_of, item, branch) for item, branch in pairs),
    )


def _routes(
    pairs: Iterable[tuple[int, int]],
    branches: Sequence[BranchTraits],
    held_depths: Sequence[Collection[int]],
) -> list[_Route]:
    wanted = sorted(set(pairs))
    trunk = {item: _trunk_row(item) for item, _ in wanted}
    routes = list[_Route]()
    for item, branch in wanted:
        traits = branches[branch]
        own = trunk[item]  # A head alone keeps the trunk row to the end.
        if traits.lane is not Lane.TRUNK:
            own = PlannedRow(lane=traits.lane, branch=branch, input=item)
        leave = EMBEDDINGS if traits.split_depth is None else traits.split_depth
        held = held_depths[item] if held_depths else ()
        enter = max((depth for depth in held if depth <= leave), default=EMBEDDINGS)
        routes.append(_Route(trunk=trunk[item], own=own, enter=enter, leave=leave))
    return routes


def _trunk_row(item: int) -> PlannedRow:
    return PlannedRow(lane=Lane.TRUNK, branch=TRUNK, input=item)


def _stage_bounds(routes: Sequence[_Route], num_layers: int) -> list[int]:
    depths = {depth for route in routes for depth in (route.enter, route.leave)}
    bounds = sorted({max(depth, 0) for depth in depths} | {num_layers})
    # A last stage without layers: the entering states are read by heads only.
    is_read_by_heads = any(route.enter == num_layers for route in routes)
    return [*bounds, num_layers] if is_read_by_heads else bounds


def _rows_at(depth: int, routes: Iterable[_Route]) -> tuple[PlannedRow, ...]:
    rows = {route.row_at(depth) for route in routes}
    return tuple(sorted((row for row in rows if row is not None), key=_ORDER))


def _stage(
    begin: int, end: int, routes: Sequence[_Route], before: Layout, lengths: _Lengths, *, top: int
) -> Stage:
    rows = _rows_at(begin, routes)
    entering = tuple(sorted({route.own.input for route in routes if route.enter == begin}))
    is_changed = rows != before.rows
    layout = _layout(rows, lengths, is_top=begin == top) if is_changed else before
    kept = {route.own.input for route in routes if route.enter <= begin < end == route.leave}
    return Stage(
        begin_layer=begin,
        end_layer=end,
        layout=layout,
        outputs=_layout(rows, lengths, is_top=True) if end == top and lengths.reads_one else layout,
        entering=entering,
        source_rows=_source_rows(rows, before, entering) if is_changed else None,
        kept_rows=tuple(
            position
            for position, row in enumerate(rows)
            if row.branch == TRUNK and row.input in kept
        ),
    )


def _layout(rows: tuple[PlannedRow, ...], of_rows: _Lengths, *, is_top: bool = False) -> Layout:
    lengths = tuple(of_rows.at(row, is_top=is_top) for row in rows)
    offsets = tuple(accumulate(lengths, initial=0))
    spans = list[Segment]()
    for (lane, branch), group in groupby(enumerate(rows), lambda it: (it[1].lane, it[1].branch)):
        members = [position for position, _ in group]
        spans.append(
            Segment(
                lane=lane, branch=branch, begin=offsets[members[0]], end=offsets[members[-1] + 1]
            )
        )
    return Layout(rows=rows, lengths=lengths, offsets=offsets, spans=tuple(spans))


def _index(rows: Sequence[PlannedRow]) -> dict[tuple[int, int], int]:
    return {(row.input, row.branch): position for position, row in enumerate(rows)}


def _find(row_of: dict[tuple[int, int], int], item: int, branch: int) -> int:
    own = row_of.get((item, branch))
    return row_of[item, TRUNK] if own is None else own


def _source_rows(
    rows: Sequence[PlannedRow], before: Layout, entering: Iterable[int]
) -> tuple[int, ...]:
    row_of = _index([*before.rows, *map(_trunk_row, entering)])
    return tuple(_find(row_of, row.input, row.branch) for row in rows)

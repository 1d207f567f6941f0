from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_model.plan import EMBEDDINGS, TRUNK, BranchTraits, ForwardPlan, Lane, plan_batch

NUM_LAYERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A random mixed batch, as the planner sees it."""

    pairs: list[tuple[int, int]]
    branches: list[BranchTraits]
    lengths: list[int]
    held: list[set[int]]

    def entry(self, item: int, branch: int) -> int:
        """The deepest held depth at or below the split depth of the branch."""
        depth = self.branches[branch].split_depth
        usable = [held for held in self.held[item] if depth is not None and held <= depth]
        return max(usable, default=EMBEDDINGS)

    def plan(self) -> ForwardPlan:
        return plan_batch(
            self.pairs,
            branches=self.branches,
            input_lengths=self.lengths,
            num_layers=NUM_LAYERS,
            held_depths=self.held,
        )


@st.composite
def branches(draw: st.DrawFn) -> BranchTraits:
    lane, reads_one = draw(st.sampled_from(Lane)), draw(st.booleans())
    match lane:
        case Lane.TRUNK:
            depth: int | None = NUM_LAYERS
        case Lane.OWN:
            depth = draw(st.none() | st.integers(0, NUM_LAYERS - 1))
        case _:
            depth = draw(st.integers(0, NUM_LAYERS - 1))
    return BranchTraits(lane=lane, split_depth=depth, reads_one=reads_one)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    traits = draw(st.lists(branches(), min_size=1, max_size=6))
    pair = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, len(traits) - 1))
    pairs = draw(st.lists(pair, min_size=1, max_size=12))
    depths = st.sets(st.integers(0, NUM_LAYERS), max_size=3)
    held = draw(st.lists(depths, min_size=len(lengths), max_size=len(lengths)))
    return Question(pairs=pairs, branches=traits, lengths=lengths, held=held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The history of a row of the last layout."""

    ran: list[tuple[int, int]]
    """The runs of the row: (layer, branch or TRUNK); layer -1 is the embeddings."""
    inputs: set[int]
    """The inputs that the row read."""
    entered: int
    """Depth of the held state at the start of the row."""


def way_to(plan: ForwardPlan, row: int) -> Way:
    ran, inputs = list[tuple[int, int]](), set[int]()
    layouts = [plan.start, *(stage.layout for stage in plan.stages)]
    for before, stage in zip(layouts[-2::-1], reversed(plan.stages), strict=True):
        planned = stage.layout.rows[row]
        inputs.add(planned.input)
        layers = range(stage.begin_layer, stage.end_layer)
        ran = [(layer, planned.branch) for layer in layers] + ran
        row = row if stage.source_rows is None else stage.source_rows[row]
        if row >= len(before.rows):
            inputs.add(stage.entering[row - len(before.rows)])
            return Way(ran=ran, inputs=inputs, entered=stage.begin_layer)
    first = plan.start.rows[row]
    ran = [(EMBEDDINGS, first.branch), *ran]
    return Way(ran=ran, inputs=inputs | {first.input}, entered=EMBEDDINGS)


def every_pair_enters_at_the_deepest_state_that_is_held_below_its_split_depth(
    question: Question, plan: ForwardPlan
) -> None:
    for (item, branch), row in zip(question.pairs, plan.output_rows, strict=True):
        assert way_to(plan, row).entered == question.entry(item, branch)


def every_pair_runs_the_trunk_below_its_split_depth_and_its_branch_above(
    question: Question, plan: ForwardPlan
) -> None:
    for (item, branch), row in zip(question.pairs, plan.output_rows, strict=True):
        depth = question.branches[branch].split_depth
        first_own = EMBEDDINGS if depth is None else depth
        expected = [
            (layer, branch if layer >= first_own else TRUNK)
            for layer in range(question.entry(item, branch), NUM_LAYERS)
        ]
        assert way_to(plan, row).ran == expected


def every_pair_reads_its_own_input_all_the_way(question: Question, plan: ForwardPlan) -> None:
    for (item, _), row in zip(question.pairs, plan.output_rows, strict=True):
        assert way_to(plan, row).inputs == {item}


def no_row_is_computed_twice_and_none_that_nobody_needs(
    question: Question, plan: ForwardPlan
) -> None:
    wanted = set(question.pairs)
    embedded = [(row.input, row.branch) for row in plan.start.rows]
    assert len(embedded) == len(set(embedded))
    assert {item for item, _ in embedded} == {
        item for item, branch in wanted if question.entry(item, branch) == EMBEDDINGS
    }

    for stage in plan.stages:
        rows = [(row.input, row.branch) for row in stage.layout.rows]
        trunk = {item for item, branch in rows if branch == TRUNK}
        needed = {
            item
            for item, branch in wanted
            if question.entry(item, branch)
            <= stage.begin_layer
            < (question.branches[branch].split_depth or 0)
        }
        assert len(rows) == len(set(rows))
        if stage.begin_layer < NUM_LAYERS:
            assert trunk == needed


def exactly_the_states_that_branches_start_from_and_were_computed_are_kept(
    question: Question, plan: ForwardPlan
) -> None:
    kept = [
        (stage.layout.rows[row].input, stage.end_layer)
        for stage in plan.stages
        for row in stage.kept_rows
    ]

    used = {(item, question.branches[branch].split_depth or 0) for item, branch in question.pairs}
    computed = {(item, depth) for item, depth in used if depth and depth not in question.held[item]}
    assert sorted(kept) == sorted(computed)


def only_a_branch_that_reads_one_token_has_fewer_and_only_after_the_top_attention(
    question: Question, plan: ForwardPlan
) -> None:
    for stage in plan.stages:
        assert stage.outputs.rows == stage.layout.rows
        for layout, is_top in (
            (stage.layout, stage.begin_layer == NUM_LAYERS),
            (stage.outputs, stage.end_layer == NUM_LAYERS),
        ):
            for row, length in zip(layout.rows, layout.lengths, strict=True):
                cuts = is_top and row.branch != TRUNK and question.branches[row.branch].reads_one
                assert length == (1 if cuts else question.lengths[row.input])


def tokens_that_run_frozen_weights_are_one_contiguous_range(_: Question, plan: ForwardPlan) -> None:
    for stage in plan.stages:
        layout = stage.layout
        lanes = [span.lane for span in layout.spans]
        assert lanes == sorted(lanes)
        assert [span.begin for span in layout.spans[1:]] == [s.end for s in layout.spans[:-1]]
        assert layout.num_tokens == sum(layout.lengths)


LAWS = (
    every_pair_enters_at_the_deepest_state_that_is_held_below_its_split_depth,
    every_pair_runs_the_trunk_below_its_split_depth_and_its_branch_above,
    every_pair_reads_its_own_input_all_the_way,
    no_row_is_computed_twice_and_none_that_nobody_needs,
    exactly_the_states_that_branches_start_from_and_were_computed_are_kept,
    only_a_branch_that_reads_one_token_has_fewer_and_only_after_the_top_attention,
    tokens_that_run_frozen_weights_are_one_contiguous_range,
)


@settings(derandomize=True, deadline=None)
@given(questions())
def test_every_plan_keeps_every_law(question: Question) -> None:
    """Drawing a batch takes longer than its plan and all laws."""
    plan = question.plan()

    for law in LAWS:
        law(question, plan)

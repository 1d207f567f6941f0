from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_model.plan import TRUNK, BatchPlan, BranchTraits, Lane, plan_batch

NUM_LAYERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A random mixed batch, as the planner sees it."""

    pairs: list[tuple[int, int]]
    branches: list[BranchTraits]
    lengths: list[int]

    def plan(self) -> BatchPlan:
        return plan_batch(
            self.pairs,
            branches=self.branches,
            input_lengths=self.lengths,
            num_layers=NUM_LAYERS,
        )


@st.composite
def branches(draw: st.DrawFn) -> BranchTraits:
    lane = draw(st.sampled_from(Lane))
    match lane:
        case Lane.TRUNK:
            return BranchTraits(lane=lane, split_depth=NUM_LAYERS)
        case Lane.OWN:
            depth = draw(st.none() | st.integers(0, NUM_LAYERS - 1))
            return BranchTraits(lane=lane, split_depth=depth)
        case _:
            return BranchTraits(lane=lane, split_depth=draw(st.integers(0, NUM_LAYERS - 1)))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    traits = draw(st.lists(branches(), min_size=1, max_size=6))
    pair = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, len(traits) - 1))
    pairs = draw(st.lists(pair, min_size=1, max_size=12))
    return Question(pairs=pairs, branches=traits, lengths=lengths)


def trace(plan: BatchPlan, row: int) -> list[tuple[int, int]]:
    """Who ran each layer on the way to `row` of the last layout: (layer, branch or TRUNK)."""
    ran = list[tuple[int, int]]()
    for index in range(len(plan.stages) - 1, -1, -1):
        stage = plan.stages[index]
        branch = stage.layout.rows[row].branch
        ran = [(layer, branch) for layer in range(stage.begin_layer, stage.end_layer)] + ran
        row = row if stage.source_rows is None else stage.source_rows[row]
    return [(-1, plan.start.rows[row].branch), *ran]


@settings(derandomize=True, deadline=None)
@given(questions())
def test_every_pair_runs_the_trunk_below_its_split_depth_and_its_branch_above(
    question: Question,
) -> None:
    plan = question.plan()

    for (_, branch), row in zip(question.pairs, plan.output_rows, strict=True):
        depth = question.branches[branch].split_depth
        first_own = -1 if depth is None else depth
        expected = [
            (layer, branch if layer >= first_own else TRUNK) for layer in range(-1, NUM_LAYERS)
        ]
        assert trace(plan, row) == expected


@settings(derandomize=True, deadline=None)
@given(questions())
def test_every_pair_reads_its_own_input_all_the_way(question: Question) -> None:
    plan = question.plan()

    for (item, _), final_row in zip(question.pairs, plan.output_rows, strict=True):
        row = final_row
        for stage in reversed(plan.stages):
            assert stage.layout.rows[row].input == item
            row = row if stage.source_rows is None else stage.source_rows[row]
        assert plan.start.rows[row].input == item


@settings(derandomize=True, deadline=None)
@given(questions())
def test_no_row_is_computed_twice_and_none_that_nobody_needs(question: Question) -> None:
    plan = question.plan()
    wanted = set(question.pairs)

    for stage in plan.stages:
        rows = [(row.input, row.branch) for row in stage.layout.rows]
        trunk = {item for item, branch in rows if branch == TRUNK}
        needed = {
            item
            for item, branch in wanted
            if (question.branches[branch].split_depth or 0) > stage.begin_layer
        }
        assert len(rows) == len(set(rows))
        assert trunk == needed


@settings(derandomize=True, deadline=None)
@given(questions())
def test_tokens_that_run_frozen_weights_are_one_contiguous_range(question: Question) -> None:
    for stage in question.plan().stages:
        layout = stage.layout
        lanes = [span.lane for span in layout.spans]
        assert lanes == sorted(lanes)
        assert [span.begin for span in layout.spans[1:]] == [s.end for s in layout.spans[:-1]]
        assert layout.num_tokens == sum(layout.lengths)


def test_five_tasks_on_one_text_share_one_trunk_row() -> None:
    plan = plan_batch(
        [(0, branch) for branch in range(5)],
        branches=[BranchTraits(lane=Lane.OWN, split_depth=3)] * 5,
        input_lengths=[7],
        num_layers=NUM_LAYERS,
    )

    assert [len(stage.layout.rows) for stage in plan.stages] == [1, 5]
    assert [(stage.begin_layer, stage.end_layer) for stage in plan.stages] == [(0, 3), (3, 5)]

import itertools
from collections.abc import Sequence
from functools import partial
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import changed, left_by, text_of, waiting_row
from doubles.waiting import waiting_row as row
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import (
    OLDEST_EVERY,
    BatchPlan,
    TurnOrder,
    TurnRules,
    add_shadows,
    plan_batch,
    plan_next,
)
from nunatak_server.scheduler.rows import PendingRow, Priority, Queues, flow_of

NOW = 100.0
LATER = 200.0
LIMITS = BatchLimits(max_tokens=64, max_rows=6)
TEXT = text_of("text")


def plan(rows: list[PendingRow], limits: BatchLimits = LIMITS) -> BatchPlan:
    return plan_batch(Queues(rows), limits=limits)


def cost(rows: tuple[PendingRow, ...]) -> int:
    trunks = {r.spec.encoding: r.spec.trunk_tokens for r in rows if r.spec.trunk_tokens}
    return sum(trunks.values()) + sum(r.spec.branch_tokens for r in rows)


@st.composite
def waiting_rows(draw: st.DrawFn) -> list[PendingRow]:
    rows: list[PendingRow] = []
    for group in range(draw(st.integers(0, 12))):
        # The largest row needs half of the budget as trunk row, and half as branch row.
        tokens = draw(st.integers(1, LIMITS.max_tokens // 2))
        key = draw(st.sampled_from(["x", "y", "z"])) + str(tokens)
        rows.extend(
            waiting_row(
                task=draw(st.sampled_from("abcde")),
                caller=draw(st.sampled_from("xy")),
                priority=draw(st.sampled_from(Priority)),
                group=group,
                encoding=text_of(key),
                trunk_tokens=draw(st.sampled_from([0, tokens])),
                branch_tokens=draw(st.sampled_from([0, tokens])),
                deadline=draw(st.sampled_from([NOW - 1, NOW, LATER])),
            )
            for _ in range(draw(st.integers(1, 4)))
        )
    return rows


@st.composite
def rows_of_backbones(draw: st.DrawFn) -> list[PendingRow]:
    """Rows of few tasks; each task has one backbone."""
    tasks = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=24))
    return [
        changed(waiting_row(task, group), backbone="heavy" if task in "ab" else "light")
        for group, task in enumerate(tasks)
    ]


fake_row = partial(waiting_row, "tone", 0, encoding=TEXT, branch_tokens=2, deadline=10.0, caller="")


def plan_shadows(
    rows: Sequence[PendingRow],
    shadows: Sequence[PendingRow] = (),
    *,
    max_tokens: int = 100,
    max_rows: int = 100,
    max_work: float = inf,
    held: Sequence[PendingRow] = (),
) -> BatchPlan:
    limits = BatchLimits(max_tokens=max_tokens, max_rows=max_rows, max_work=max_work)
    rules = TurnRules(is_trunk_held=lambda row: row in held)
    planned = plan_batch(Queues(rows), limits=limits, rules=rules)
    return add_shadows(planned, shadows, limits=limits, rules=rules)


@given(waiting_rows())
@settings(derandomize=True)
def test_batches_within_their_limits_take_each_row_once_until_everybody_is_served(
    rows: list[PendingRow],
) -> None:
    pending, num_batches = list(rows), 0

    while pending:
        found = plan(pending)
        left = left_by(found, pending)
        assert sorted(map(id, (*found.batch, *left))) == sorted(map(id, pending))
        assert found.backlog == set(map(flow_of, left))
        assert len(found.batch) <= LIMITS.max_rows
        assert found.num_tokens == cost(found.batch) <= LIMITS.max_tokens
        pending, num_batches = left, num_batches + 1
        assert num_batches <= len(rows)


@given(waiting_rows(), st.floats(0, 40))
@settings(derandomize=True, max_examples=50)
def test_only_the_rows_of_one_text_exceed_the_work_of_a_batch(
    rows: list[PendingRow], max_work: float
) -> None:
    limits = BatchLimits(max_tokens=64, max_rows=6, max_work=max_work)

    found = plan(rows, limits)

    *earlier, last = [
        list(them) for _, them in itertools.groupby(found.batch, lambda r: r.spec.group)
    ] or [[]]
    specs = [row.spec for them in earlier for row in them]
    before = sum((it.branch_tokens * (1 - it.trunk_share) for it in specs), 0.0)
    assert before <= max_work or len({r.spec.group for r in found.batch}) == 1
    assert last or not rows


@given(waiting_rows(), st.integers(0, 11), st.integers(1, 3))
@settings(derandomize=True, max_examples=30, deadline=None)
def test_a_row_behind_n_older_ones_is_computed_within_so_many_batches(
    rows: list[PendingRow], position: int, num_arriving: int
) -> None:
    """Whatever arrives: here callers that nobody has heard of before, at high priority."""
    pending = list(rows) or [row("a", 0)]
    wanted = pending[min(position, len(pending) - 1)]
    num_older, order, fresh = pending.index(wanted), TurnOrder(), itertools.count(1000)

    num_batches = 0
    while wanted in pending:
        found = plan_batch(Queues(pending), limits=LIMITS, order=order)
        order, num_batches = found.order, num_batches + 1
        pending = [
            *left_by(found, pending),
            *(newcomer(next(fresh)) for _ in range(num_arriving * 6)),
        ]

    assert num_batches <= OLDEST_EVERY * (num_older + 1)


def newcomer(number: int) -> PendingRow:
    return row("new", number, caller=f"new-{number}", priority=Priority.HIGH, tokens=5)


def test_rows_of_one_text_land_in_one_batch() -> None:
    fan_out = [row(task, 7) for task in "abc"]
    others = [row(task, group) for group, task in enumerate("ddd")]

    found = plan([*others, *fan_out], BatchLimits(max_tokens=1000, max_rows=4))

    assert [r.spec.group for r in found.batch] == [0, 7, 7, 7]


def test_a_trunk_state_that_is_held_costs_nothing() -> None:
    rows = [row("a", 1, tokens=20), row("a", 2, tokens=20), row("a", 3, tokens=20)]
    rules = TurnRules(is_trunk_held=lambda r: r.spec.group != 1)

    found = plan_batch(Queues(rows), limits=BatchLimits(max_tokens=80, max_rows=9), rules=rules)

    assert len(found.batch) == 3
    assert (found.num_tokens, found.work, found.asked_tokens) == (80, 40, 60)
    assert (found.num_trunk_rows, found.num_held_rows) == (1, 2)


def test_work_counts_the_layers_that_a_row_passes() -> None:
    deep = waiting_row(task="a", group=1, encoding=text_of("x"), trunk_share=0.75)
    flat = waiting_row(task="b", group=1, encoding=text_of("x"), trunk_share=0.25)

    assert (plan([deep]).work, plan([flat]).work) == (4, 4)
    assert plan([flat, deep]).work == 4 * (0.75 + 0.25 + 0.75)


def test_a_row_without_room_keeps_the_order_of_its_task() -> None:
    long, short = row("a", 1, tokens=32), row("a", 2, tokens=1)
    first, other = row("b", 0, tokens=8), row("c", 3, tokens=1)

    assert plan([first, long, short, other]).batch == (first, other)


@given(rows_of_backbones())
@settings(derandomize=True)
def test_each_batch_belongs_to_one_backbone_and_every_row_is_computed(
    rows: list[PendingRow],
) -> None:
    pending, order = list(rows), TurnOrder()
    for number in itertools.count(1):
        found = plan_next(Queues(pending), limits=LIMITS, order=order)
        assert len({it.spec.backbone for it in found.batch}) == 1
        order, pending = found.order, left_by(found, pending)
        if not pending:
            break
        assert number <= OLDEST_EVERY * len(rows)


@pytest.mark.parametrize("token_cost", [1.0, 0.1])
def test_the_bound_of_the_work_counts_tokens_of_the_backbone_of_the_batch(
    token_cost: float,
) -> None:
    limits = BatchLimits(max_tokens=1000, max_rows=100, max_work=24.0)
    rows = [changed(waiting_row("tone", n, tokens=4), token_cost=token_cost) for n in range(20)]

    assert len(plan_batch(Queues(rows), limits=limits).batch) == 6


@pytest.mark.parametrize(
    ("shadow", "work"),
    [
        pytest.param(fake_row(), 2 * 0.5, id="as-high"),
        pytest.param(fake_row(trunk_share=0.25), 2 * 0.75, id="lower"),
        pytest.param(fake_row(trunk_share=0.75), 4 * 0.25 + 2 * 0.25, id="higher"),
        pytest.param(fake_row(encoding=text_of("longer")), 4 * 0.5 + 2 * 0.5, id="other-text"),
    ],
)
def test_a_shadow_costs_what_it_adds_and_has_room_for_no_less(
    shadow: PendingRow, work: float
) -> None:
    own = fake_row()
    alone = plan_shadows([own])

    both = plan_shadows([own], [shadow], max_work=alone.work + work)

    assert both.batch == (own, shadow)
    assert both.work - alone.work == both.asked_tokens - alone.asked_tokens == work
    assert plan_shadows([own], [shadow], max_work=alone.work + work - 0.01).batch == (own,)


def test_a_shadow_whose_trunk_state_is_held_costs_its_branch_alone() -> None:
    own, shadow = fake_row(), fake_row()

    planned = plan_shadows([own], [shadow], held=[own, shadow])

    assert (planned.work, planned.asked_tokens) == (2, 2 * (2 * 0.5) + 4 * 0.5 * 2)
    assert (planned.num_tokens, planned.num_trunk_rows, planned.num_held_rows) == (4, 0, 2)


def test_a_shadow_that_finds_no_room_is_not_taken() -> None:
    own, shadow = fake_row(), fake_row()

    assert plan_shadows([own], [shadow], max_tokens=7).batch == (own,)
    assert plan_shadows([own], [shadow], max_rows=1).batch == (own,)


def test_no_shadow_is_taken_while_a_row_that_somebody_waits_for_does_not_fit() -> None:
    small, large = fake_row(), changed(fake_row(encoding=text_of("long"), trunk_tokens=90), group=1)

    assert plan_shadows([small, large], [fake_row()], max_tokens=20).batch == (small,)


def test_a_shadow_without_what_it_shadows_is_not_computed() -> None:
    assert plan_shadows([], [fake_row()]).batch == ()


rows = st.builds(
    waiting_row,
    task=st.sampled_from("abc"),
    group=st.integers(0, 3),
    encoding=st.sampled_from("xyz").map(text_of),
    trunk_tokens=st.sampled_from([0, 4, 9]),
    branch_tokens=st.integers(0, 9),
    caller=st.just(""),
)


@given(
    own=st.lists(rows, max_size=20),
    shadows=st.lists(rows, max_size=20),
    max_tokens=st.integers(18, 60),
    max_work=st.floats(0, 60),
)
def test_what_callers_wait_for_is_planned_as_if_there_were_no_shadows(
    own: list[PendingRow], shadows: list[PendingRow], max_tokens: int, max_work: float
) -> None:
    both = plan_shadows(own, shadows, max_tokens=max_tokens, max_work=max_work)
    alone = plan_shadows(own, max_tokens=max_tokens, max_work=max_work)

    num_own = len(alone.batch)
    assert both.batch[:num_own] == alone.batch
    assert set(both.batch[num_own:]) <= set(shadows)
    assert both.order == alone.order
    assert both.num_tokens <= max_tokens
    assert both.work <= max(alone.work, max_work)

"""Laws of the rows that go before a planned batch: light rows next to heavy flows."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, heavy, left_by, waiting_row, work_of
from nunatak_server.scheduler.fairness import Flow, Queues, Usage, VirtualTimes, flow_of
from nunatak_server.scheduler.planner import (
    OLDEST_EVERY,
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    work_by_flow,
)
from nunatak_server.scheduler.preemption import (
    MAX_PREEMPTION,
    begin_batch,
    plan_before,
    plan_light_first,
    plan_preemption,
)
from nunatak_server.scheduler.rows import Priority

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)
LIMITS_OF_EIGHT = replace(LIMITS, max_rows=8)
RULES: TurnRules[WaitingRow] = TurnRules()


def plan_of(
    pending: Sequence[WaitingRow],
    *,
    max_rows: int,
    virtual_times: VirtualTimes | None = None,
    given: Mapping[Flow, float] | None = None,
) -> BatchPlan[WaitingRow]:
    return plan_light_first(
        Queues(pending),
        limits=replace(LIMITS, max_rows=max_rows),
        order=TurnOrder(
            virtual_times=virtual_times or VirtualTimes(), usage=Usage().plus(given or {})
        ),
        rules=RULES,
    )


def test_a_row_that_waits_beside_a_heavy_flow_goes_before_the_batch() -> None:
    light = waiting_row("light", 1)

    plan = plan_of([*heavy(20), light], max_rows=8)

    assert plan.going_first == (light,)
    assert {row.task for row in plan.batch} == {"heavy"}
    assert len(plan.batch) == 8


@pytest.mark.parametrize("tasks", [["busy"], ["busy", "light"]])
def test_where_one_row_of_a_batch_goes_first_all_do_that_are_of_no_heavy_flow(
    tasks: list[str],
) -> None:
    others = [waiting_row(task, number) for number, task in enumerate(tasks)]

    plan = plan_of([*heavy(20), *others], max_rows=8, given={flow_of(others[0]): 100.0})

    assert set(plan.going_first) == (set(others) if "light" in tasks else set())
    assert len(plan.batch) == 8


def test_a_heavy_flow_that_is_asked_about_the_texts_of_another_keeps_nobody_in_the_batch() -> None:
    """The lesser one cannot go first with its texts, but both together can be preempted."""
    heavy_flows = [
        waiting_row(task, number)
        for number in range(40)
        for task in (("heavy", "other") if number % 5 == 0 else ("heavy",))
    ]
    light = waiting_row("light", 100)

    plan = plan_of([*heavy_flows, light], max_rows=8)

    assert plan.going_first == (light,)
    assert {row.task for row in plan.batch} == {"heavy", "other"}
    late = waiting_row("late", 101)
    assert plan_preemption(
        [late], running=begin_batch(plan), queues=Queues([late]),
        limits=LIMITS, order=plan.order, rules=RULES,
    )  # fmt: skip


def test_a_second_heavy_flow_that_has_just_begun_keeps_nobody_in_the_batch() -> None:
    second = [waiting_row("second", 100 + number) for number in range(20)]
    light, given = waiting_row("light", 1), {flow_of(row): 1000.0 for row in heavy(1)}

    plan = plan_of([*heavy(20), *second, light], max_rows=8, given=given)

    assert plan.going_first == (light,)
    assert {row.task for row in plan.batch} == {"heavy", "second"}
    assert len(plan.batch) == 8


def test_what_goes_first_is_four_times_the_work_of_the_rest_at_most() -> None:
    long = [waiting_row(f"long-{number}", number, tokens=40) for number in range(4)]
    given = {flow_of(row): 1000.0 for row in heavy(1)}

    for num_long in range(1, 5):
        rows = [*heavy(20), *long[:num_long]]
        plan = plan_of(rows, max_rows=8, given=given)
        assert bool(plan.going_first) is (num_long * 40 <= MAX_PREEMPTION * 8 * 4)


@given(owed=st.floats(0, 12), max_rows=st.integers(4, 12))
def test_whoever_comes_into_the_place_of_one_that_goes_first_goes_first_too(
    owed: float, max_rows: int
) -> None:
    light, owing = waiting_row("light", 1), waiting_row("owing", 2)
    virtual_times = VirtualTimes(flows={flow_of(owing): owed * work_of(owing)})
    plan = plan_of([*heavy(30), light, owing], max_rows=max_rows, virtual_times=virtual_times)

    assert light in plan.going_first
    assert {row.task for row in plan.batch} == {"heavy"}


def test_a_light_flow_goes_first_with_all_rows_that_find_a_place_whatever_it_owes() -> None:
    rows = [waiting_row("light", number) for number in range(5)]
    given = {flow_of(row): 1000.0 for row in heavy(1)}
    virtual_times = VirtualTimes(flows={flow_of(rows[0]): 5 * work_of(rows[0])})

    plan = plan_of([*heavy(20), *rows], max_rows=8, virtual_times=virtual_times, given=given)

    assert set(plan.going_first) == set(rows)
    assert len(plan.batch) == 8


def test_a_text_that_a_heavy_flow_is_asked_about_too_stays_in_the_batch() -> None:
    text = [waiting_row("heavy", 1), waiting_row("light", 1)]

    plan = plan_of([*text, *heavy(20)], max_rows=8)

    assert set(text) <= set(plan.batch)
    assert not plan.going_first


def test_no_more_rows_go_first_than_a_batch_holds() -> None:
    others = [waiting_row(f"task-{number}", number, tokens=1) for number in range(20)]
    virtual_times = VirtualTimes(flows={flow_of(row): 10 * work_of(row) for row in others[5:]})

    plan = plan_of([*heavy(30), *others], max_rows=8, virtual_times=virtual_times)

    assert {row.task for row in plan.batch} > {"heavy"}
    assert not plan.going_first


def test_a_batch_that_takes_all_rows_is_one() -> None:
    plan = plan_of([*heavy(7), waiting_row("light", 1)], max_rows=8)

    assert not plan.going_first
    assert len(plan.batch) == 8


@given(
    heavy_flows=st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True),
    wanted=st.builds(
        waiting_row,
        st.sampled_from(["a", "heavy"]),
        st.just(1),
        tokens=st.integers(1, 30),
        caller=st.sampled_from(["x", "y", "z"]),
        priority=st.sampled_from(list(Priority)),
    ),
    light=st.lists(st.sampled_from(["x", "y", "z"]), max_size=3),
)
def test_the_oldest_row_is_computed_within_so_many_batches_whoever_else_asks(
    heavy_flows: list[str], wanted: WaitingRow, light: list[str]
) -> None:
    pending, order, fresh, num_batches = [wanted], TurnOrder(), itertools.count(10), 0

    while wanted in pending:
        pending += [
            waiting_row("heavy", next(fresh), caller=it) for it in heavy_flows for _ in range(9)
        ]
        pending += [waiting_row("light", next(fresh), caller=it) for it in light]
        queues = Queues(pending)
        plan = plan_light_first(queues, limits=LIMITS_OF_EIGHT, order=order, rules=RULES)
        queues.remove(plan.batch)
        order, num_batches = plan.order, num_batches + 1
        if plan.going_first:
            first = plan_before(
                plan.going_first, queues=queues, limits=LIMITS_OF_EIGHT, order=order, rules=RULES
            )
            assert set(first.batch) == set(plan.going_first)
            queues.remove(first.batch)
            order = first.order
        pending = list(queues)

    assert num_batches <= OLDEST_EVERY


rows = st.builds(
    waiting_row,
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(0, 12),
    tokens=st.integers(1, 30),
    caller=st.sampled_from(["x", "y"]),
    priority=st.sampled_from(list(Priority)),
)


@given(
    pending=st.lists(rows, min_size=1, max_size=30) | st.integers(9, 30).map(heavy),
    arrived=st.lists(rows, max_size=10),
    max_rows=st.integers(1, 8),
    preempted_by=st.sampled_from([0.0, 30.0]),
    work=st.lists(st.floats(0, 200), min_size=40, max_size=40),
)
def test_every_row_is_in_one_place_and_something_always_runs(
    pending: list[WaitingRow],
    arrived: list[WaitingRow],
    max_rows: int,
    preempted_by: float,
    work: list[float],
) -> None:
    flows = sorted({flow_of(row) for row in (*pending, *arrived)})
    given, owed = dict(zip(flows, work, strict=False)), dict(zip(flows, work[::-1], strict=False))
    plan = plan_of(pending, max_rows=max_rows, given=given, virtual_times=VirtualTimes(flows=owed))

    assert plan.batch
    left = left_by(plan, pending)
    behind = [row for row in left if row not in plan.going_first]
    assert set(plan.going_first) <= set(left)
    assert plan.backlog == set(map(flow_of, behind))
    first = work_by_flow(plan.going_first, rules=RULES)
    assert sum(first.values()) <= MAX_PREEMPTION * plan.charged + 1e-6
    assert {row.group for row in plan.going_first}.isdisjoint(row.group for row in plan.batch)
    running = replace(begin_batch(plan), preempted_by=preempted_by)
    over = plan_preemption(
        [*plan.going_first, *arrived],
        running=running,
        queues=Queues([*left, *arrived]),
        limits=LIMITS,
        order=plan.order,
        rules=RULES,
    )
    if over is not None:
        assert set(over.batch) <= {*plan.going_first, *arrived}
        assert set(map(flow_of, over.batch)).isdisjoint(map(flow_of, behind))
        preempting_work = preempted_by + sum(work_by_flow(over.batch, rules=RULES).values())
        assert preempting_work <= MAX_PREEMPTION * running.charged + 1e-6
        assert over.order.num_in_turn == plan.order.num_in_turn

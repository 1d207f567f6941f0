"""Laws of preemption: the rows that go before a running batch, and the rows that do not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from doubles.waiting import WaitingRow, heavy, waiting_row, work_of
from nunatak_server.scheduler.fairness import Flow, Queues, Usage, flow_of
from nunatak_server.scheduler.planner import (
    BatchLimits,
    BatchPlan,
    TurnOrder,
    TurnRules,
    plan_batch,
)
from nunatak_server.scheduler.preemption import (
    Running,
    may_preempt_later,
    plan_preemption,
)
from nunatak_server.scheduler.rows import Priority

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)
RULES: TurnRules[WaitingRow] = TurnRules()


def running_of(batch: Sequence[WaitingRow], *, is_heavy: bool = True) -> Running[WaitingRow]:
    flows = frozenset(flow_of(row) for row in batch if row.task == "heavy")
    return Running(
        batch=batch,
        charged=sum(map(work_of, batch)),
        heavy_flows=flows if is_heavy else frozenset(),
    )


def preemption(
    arrived: Sequence[WaitingRow],
    running: Running[WaitingRow],
    *,
    waiting: Sequence[WaitingRow] = (),
    given: Mapping[Flow, float] | None = None,
    rules: TurnRules[WaitingRow] = RULES,
) -> tuple[WaitingRow, ...]:
    """Return the rows that preempt a batch; `given` is the service of flows before the batch."""
    order = order_with(running.batch, TurnOrder(usage=Usage().plus(given or {})))
    plan = preemption_plan(arrived, running, waiting=waiting, order=order, rules=rules)
    return () if plan is None else plan.batch


def preemption_plan(
    arrived: Sequence[WaitingRow],
    running: Running[WaitingRow],
    *,
    order: TurnOrder,
    waiting: Sequence[WaitingRow] = (),
    rules: TurnRules[WaitingRow] = RULES,
) -> BatchPlan[WaitingRow] | None:
    return plan_preemption(
        arrived, running=running, queues=Queues([*waiting, *arrived]),
        limits=LIMITS, order=order, rules=rules,
    )  # fmt: skip


def order_with(batch: Sequence[WaitingRow], order: TurnOrder | None = None) -> TurnOrder:
    """Return the order as a batch leaves it."""
    return plan_batch(Queues(batch), limits=LIMITS, order=order).order


def test_a_row_goes_before_a_heavy_flow() -> None:
    light = waiting_row("light", 1)

    assert preemption([light], running_of(heavy())) == (light,)


def test_a_batch_that_took_all_there_was_is_no_heavy_flow() -> None:
    assert not preemption([waiting_row("light", 1)], running_of(heavy(), is_heavy=False))


def test_a_batch_of_many_tasks_that_were_given_as_little_is_not_preempted() -> None:
    batch = [waiting_row(f"task-{number}", number) for number in range(8)]
    running = replace(running_of(batch), heavy_flows=frozenset(map(flow_of, batch)))

    assert not preemption([waiting_row("light", 100)], running)


@pytest.mark.parametrize("size", [1, 2])
def test_the_heavy_flow_must_have_been_given_more(size: int) -> None:
    assert bool(preemption([waiting_row("light", 100)], running_of(heavy(size)))) is (size == 2)


@pytest.mark.parametrize("num_waiting", [7, 8])
def test_a_flow_of_which_as_many_rows_come_as_run_is_a_heavy_flow(num_waiting: int) -> None:
    came = [waiting_row("heavy", 2000 + number) for number in range(num_waiting)]
    light, running = waiting_row("light", 1), running_of(heavy(8), is_heavy=False)

    running = running.with_arrivals(Queues([*came, light]))

    assert bool(preemption([*came, light], running)) is (num_waiting == 8)


def test_a_batch_with_others_than_a_heavy_flow_is_not_preempted() -> None:
    batch = [*heavy(20), waiting_row("other", 1)]

    assert not preemption([waiting_row("light", 100)], running_of(batch))


@pytest.mark.parametrize("where", ["runs", "waits"])
def test_rows_of_one_caller_task_and_priority_keep_their_order(where: str) -> None:
    older, younger = waiting_row("light", 1), waiting_row("light", 2)
    batch = [*heavy(), older] if where == "runs" else heavy()

    waiting = [older] if where == "waits" else []
    assert not preemption([younger], running_of(batch), waiting=waiting)


def test_who_was_given_more_than_the_heavy_flow_does_not_go() -> None:
    row = waiting_row("light", 1)

    assert not preemption([row], running_of(heavy()), given={flow_of(row): 100.0})


def test_who_was_given_half_of_what_the_heavy_flow_was_goes() -> None:
    row, batch = waiting_row("light", 1), heavy(2)
    given = {flow_of(row): 100.0, flow_of(batch[0]): 200.0}

    assert preemption([row], running_of(batch), given=given) == (row,)


@pytest.mark.parametrize("num_lesser", [5, 6])
def test_a_row_must_be_light_beside_each_heaviest_heavy_flow_of_a_batch(num_lesser: int) -> None:
    row, lesser = waiting_row("light", 1), [waiting_row("lesser", n) for n in range(num_lesser)]
    heavy_flows = [*heavy(8), *lesser]
    running = replace(running_of(heavy_flows), heavy_flows=frozenset(map(flow_of, heavy_flows)))

    goes = preemption([row], running, given={flow_of(row): 4 * work_of(row)})

    # The lesser flow is among the heaviest if it has more than two thirds of the other's usage.
    assert bool(goes) is (num_lesser == 5)


@pytest.mark.parametrize("size", [2, 8])
def test_a_burst_of_one_flow_preempts_with_no_more_than_one_by_one(size: int) -> None:
    burst = [waiting_row("light", number) for number in range(20)]

    assert len(preemption(burst, running_of(heavy(size)))) == 2 * size // 3


@pytest.mark.parametrize("at_once", [1, 3, 60])
def test_a_batch_is_preempted_by_four_times_its_work_at_most_at_once_or_not(at_once: int) -> None:
    running, went = running_of(heavy(8)), 0
    order = order_with(running.batch)

    for first in range(0, 60, at_once):
        arrived = [waiting_row(f"light-{first + n}", first + n) for n in range(at_once)]
        plan = preemption_plan(arrived, running, order=order)
        if plan is not None:
            running, order, went = running.after(plan), plan.order, went + len(plan.batch)

    assert went == 4 * 8


def test_a_flow_preempts_with_two_thirds_of_the_work_and_no_other_goes_less_for_it() -> None:
    running, number = running_of(heavy(8)), 0
    order = order_with(running.batch)

    while plan := preemption_plan([waiting_row("light", number)], running, order=order):
        running, order, number = running.after(plan), plan.order, number + 1

    assert number == 5
    assert preemption_plan([waiting_row("other", 100)], running, order=order)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 5), (2.0, 10)])
def test_a_caller_preempts_a_batch_of_another_with_two_thirds_of_its_work_by_weight(
    weight: float, expected: int
) -> None:
    rules: TurnRules[WaitingRow] = TurnRules(weights={"y": weight})
    running, number = running_of(heavy(8, caller="x")), 0
    order = order_with(running.batch)

    while plan := preemption_plan(
        [waiting_row(f"task-{number}", number, caller="y")], running, order=order, rules=rules
    ):
        running, order, number = running.after(plan), plan.order, number + 1

    assert number == expected


def test_a_high_priority_goes_before_a_lower_one_of_its_caller_and_no_other() -> None:
    urgent = waiting_row("heavy", 1, priority=Priority.HIGH)
    batch = heavy(2)

    assert preemption([urgent], running_of(batch)) == (urgent,)
    assert not preemption([replace(urgent, caller="else")], running_of(heavy(1)))
    # A row behind a heavy flow of its caller stays, even if another heavy flow is behind the row.
    lowest = [replace(row, task="heavy", priority=Priority.LOW) for row in heavy(8)]
    both = running_of([*lowest, *heavy(1)])
    assert not preemption([waiting_row("light", 3, priority=Priority.LOW)], both)
    assert preemption([waiting_row("light", 3)], running_of(lowest))
    high = [replace(row, priority=Priority.HIGH) for row in heavy(1)]
    assert not preemption([waiting_row("light", 3)], running_of([*lowest, *high]))
    low = waiting_row("light", 2, priority=Priority.LOW)
    assert not preemption([low], running_of(heavy(8)))


def test_a_weight_is_counted() -> None:
    row = waiting_row("light", 1, caller="modest")
    running = running_of(heavy(8, caller="gold"))

    assert preemption([row], running)
    assert not preemption([row], running, rules=TurnRules(weights={"gold": 8.0}))


def test_rows_of_one_text_go_together_or_not_at_all() -> None:
    text = [waiting_row(task, 1) for task in ("one", "two", "three")]
    running = running_of(heavy(8))

    assert preemption(text, running) == tuple(text)
    assert not preemption(text, running, waiting=[waiting_row("two", 0)])


def test_a_text_that_a_heavy_flow_is_asked_about_too_never_preempts() -> None:
    text, light = [waiting_row(task, 1) for task in ("light", "heavy")], waiting_row("light", 2)
    running, queues = running_of(heavy(8)), Queues([*text, light])

    later = may_preempt_later([*text, light], running=running, queues=queues)

    assert not preemption([*text, light], running)
    assert later == [light]
    # The rest of the text waits, and the light row stays behind it.
    assert not preemption(later, running, waiting=text)


@pytest.mark.parametrize("is_held", [False, True])
def test_what_preempts_is_charged_what_it_costs(*, is_held: bool) -> None:
    """A trunk row that is shared is counted once, and one that is held is not."""
    text = [replace(waiting_row(task, 1), branch_tokens=0) for task in ("a", "b", "c")]
    text = [replace(row, trunk_share=1.0, trunk_tokens=10, caller="y") for row in text]
    rules: TurnRules[WaitingRow] = TurnRules(is_trunk_held=lambda row: is_held and row in text)

    # 12 tokens, of which two rows cost the least that one does, or three such rows.
    for size in range(1, 10):
        goes = preemption(text, running_of(heavy(size, caller="x")), rules=rules)
        assert bool(goes) is ((3 if is_held else 12) <= 4 * size * 2 / 3)

"""Laws of overtaking: who goes before a batch that runs, and who does not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from doubles.waiting import WaitingRow, flood, waiting_row, work_of
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
    may_overtake_later,
    plan_overtaking,
)
from nunatak_server.scheduler.rows import Priority

LIMITS = BatchLimits(max_tokens=4096, max_rows=64)
RULES: TurnRules[WaitingRow] = TurnRules()


def running_of(batch: Sequence[WaitingRow], *, is_flood: bool = True) -> Running[WaitingRow]:
    flows = frozenset(flow_of(row) for row in batch if row.task == "flood")
    return Running(
        batch=batch,
        charged=sum(map(work_of, batch)),
        floods=flows if is_flood else frozenset(),
    )


def overtaking(
    arrived: Sequence[WaitingRow],
    running: Running[WaitingRow],
    *,
    waiting: Sequence[WaitingRow] = (),
    given: Mapping[Flow, float] | None = None,
    rules: TurnRules[WaitingRow] = RULES,
) -> tuple[WaitingRow, ...]:
    """Return who overtakes a batch that began when flows had been `given` so much."""
    order = order_with(running.batch, TurnOrder(usage=Usage().plus(given or {})))
    plan = overtaking_plan(arrived, running, waiting=waiting, order=order, rules=rules)
    return () if plan is None else plan.batch


def overtaking_plan(
    arrived: Sequence[WaitingRow],
    running: Running[WaitingRow],
    *,
    order: TurnOrder,
    waiting: Sequence[WaitingRow] = (),
    rules: TurnRules[WaitingRow] = RULES,
) -> BatchPlan[WaitingRow] | None:
    return plan_overtaking(
        arrived, running=running, queues=Queues([*waiting, *arrived]),
        limits=LIMITS, order=order, rules=rules,
    )  # fmt: skip


def order_with(batch: Sequence[WaitingRow], order: TurnOrder | None = None) -> TurnOrder:
    """Return the order as a batch leaves it."""
    return plan_batch(Queues(batch), limits=LIMITS, order=order).order


def test_a_row_goes_before_a_flood() -> None:
    quiet = waiting_row("quiet", 1)

    assert overtaking([quiet], running_of(flood())) == (quiet,)


def test_a_batch_that_took_all_there_was_is_no_flood() -> None:
    assert not overtaking([waiting_row("quiet", 1)], running_of(flood(), is_flood=False))


def test_a_batch_of_many_tasks_that_were_given_as_little_is_not_overtaken() -> None:
    batch = [waiting_row(f"task-{number}", number) for number in range(8)]
    running = replace(running_of(batch), floods=frozenset(map(flow_of, batch)))

    assert not overtaking([waiting_row("quiet", 100)], running)


@pytest.mark.parametrize("size", [1, 2])
def test_the_flood_must_have_been_given_more(size: int) -> None:
    assert bool(overtaking([waiting_row("quiet", 100)], running_of(flood(size)))) is (size == 2)


@pytest.mark.parametrize("num_waiting", [7, 8])
def test_a_flow_of_which_as_many_rows_come_as_run_is_a_flood(num_waiting: int) -> None:
    came = [waiting_row("flood", 2000 + number) for number in range(num_waiting)]
    quiet, running = waiting_row("quiet", 1), running_of(flood(8), is_flood=False)

    running = running.beside(Queues([*came, quiet]))

    assert bool(overtaking([*came, quiet], running)) is (num_waiting == 8)


def test_a_batch_with_others_than_a_flood_is_not_overtaken() -> None:
    batch = [*flood(20), waiting_row("other", 1)]

    assert not overtaking([waiting_row("quiet", 100)], running_of(batch))


@pytest.mark.parametrize("where", ["runs", "waits"])
def test_rows_of_one_caller_task_and_priority_keep_their_order(where: str) -> None:
    older, younger = waiting_row("quiet", 1), waiting_row("quiet", 2)
    batch = [*flood(), older] if where == "runs" else flood()

    waiting = [older] if where == "waits" else []
    assert not overtaking([younger], running_of(batch), waiting=waiting)


def test_who_was_given_more_than_the_flood_does_not_go() -> None:
    row = waiting_row("quiet", 1)

    assert not overtaking([row], running_of(flood()), given={flow_of(row): 100.0})


def test_who_was_given_half_of_what_the_flood_was_goes() -> None:
    row, batch = waiting_row("quiet", 1), flood(2)
    given = {flow_of(row): 100.0, flow_of(batch[0]): 200.0}

    assert overtaking([row], running_of(batch), given=given) == (row,)


@pytest.mark.parametrize("num_lesser", [5, 6])
def test_a_row_must_be_quiet_beside_each_loud_flood_of_a_batch(num_lesser: int) -> None:
    row, lesser = waiting_row("quiet", 1), [waiting_row("lesser", n) for n in range(num_lesser)]
    floods = [*flood(8), *lesser]
    running = replace(running_of(floods), floods=frozenset(map(flow_of, floods)))

    goes = overtaking([row], running, given={flow_of(row): 4 * work_of(row)})

    # The lesser one, too, is loud if it is more than two thirds of the other.
    assert bool(goes) is (num_lesser == 5)


@pytest.mark.parametrize("size", [2, 8])
def test_a_burst_of_one_flow_overtakes_with_no_more_than_one_by_one(size: int) -> None:
    burst = [waiting_row("quiet", number) for number in range(20)]

    assert len(overtaking(burst, running_of(flood(size)))) == 2 * size // 3


@pytest.mark.parametrize("at_once", [1, 3, 60])
def test_a_batch_is_overtaken_by_four_times_its_work_at_most_at_once_or_not(at_once: int) -> None:
    running, went = running_of(flood(8)), 0
    order = order_with(running.batch)

    for first in range(0, 60, at_once):
        arrived = [waiting_row(f"quiet-{first + n}", first + n) for n in range(at_once)]
        plan = overtaking_plan(arrived, running, order=order)
        if plan is not None:
            running, order, went = running.after(plan), plan.order, went + len(plan.batch)

    assert went == 4 * 8


def test_a_flow_overtakes_with_two_thirds_of_the_work_and_no_other_goes_less_for_it() -> None:
    running, number = running_of(flood(8)), 0
    order = order_with(running.batch)

    while plan := overtaking_plan([waiting_row("quiet", number)], running, order=order):
        running, order, number = running.after(plan), plan.order, number + 1

    assert number == 5
    assert overtaking_plan([waiting_row("other", 100)], running, order=order)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 5), (2.0, 10)])
def test_a_caller_overtakes_a_batch_of_another_with_two_thirds_of_its_work_by_weight(
    weight: float, expected: int
) -> None:
    rules: TurnRules[WaitingRow] = TurnRules(weights={"y": weight})
    running, number = running_of(flood(8, caller="x")), 0
    order = order_with(running.batch)

    while plan := overtaking_plan(
        [waiting_row(f"task-{number}", number, caller="y")], running, order=order, rules=rules
    ):
        running, order, number = running.after(plan), plan.order, number + 1

    assert number == expected


def test_a_high_priority_goes_before_a_lower_one_of_its_caller_and_no_other() -> None:
    urgent = waiting_row("flood", 1, priority=Priority.HIGH)
    batch = flood(2)

    assert overtaking([urgent], running_of(batch)) == (urgent,)
    assert not overtaking([replace(urgent, caller="else")], running_of(flood(1)))
    # Nor does one that is behind a flood of its caller go because another flood is behind it.
    lowest = [replace(row, task="flood", priority=Priority.LOW) for row in flood(8)]
    both = running_of([*lowest, *flood(1)])
    assert not overtaking([waiting_row("quiet", 3, priority=Priority.LOW)], both)
    assert overtaking([waiting_row("quiet", 3)], running_of(lowest))
    high = [replace(row, priority=Priority.HIGH) for row in flood(1)]
    assert not overtaking([waiting_row("quiet", 3)], running_of([*lowest, *high]))
    low = waiting_row("quiet", 2, priority=Priority.LOW)
    assert not overtaking([low], running_of(flood(8)))


def test_a_weight_is_counted() -> None:
    row = waiting_row("quiet", 1, caller="modest")
    running = running_of(flood(8, caller="gold"))

    assert overtaking([row], running)
    assert not overtaking([row], running, rules=TurnRules(weights={"gold": 8.0}))


def test_rows_of_one_text_go_together_or_not_at_all() -> None:
    text = [waiting_row(task, 1) for task in ("one", "two", "three")]
    running = running_of(flood(8))

    assert overtaking(text, running) == tuple(text)
    assert not overtaking(text, running, waiting=[waiting_row("two", 0)])


def test_a_text_that_a_flood_is_asked_about_too_never_overtakes() -> None:
    text, quiet = [waiting_row(task, 1) for task in ("quiet", "flood")], waiting_row("quiet", 2)
    running, queues = running_of(flood(8)), Queues([*text, quiet])

    later = may_overtake_later([*text, quiet], running=running, queues=queues)

    assert not overtaking([*text, quiet], running)
    assert later == [quiet]
    # What is left of the text waits, and this one keeps its order behind it.
    assert not overtaking(later, running, waiting=text)


@pytest.mark.parametrize("is_held", [False, True])
def test_what_overtakes_is_charged_what_it_costs(*, is_held: bool) -> None:
    """A trunk row that is shared is counted once, and one that is held is not."""
    text = [replace(waiting_row(task, 1), branch_tokens=0) for task in ("a", "b", "c")]
    text = [replace(row, trunk_share=1.0, trunk_tokens=10, caller="y") for row in text]
    rules: TurnRules[WaitingRow] = TurnRules(is_trunk_held=lambda row: is_held and row in text)

    # 12 tokens, of which two rows cost the least that one does, or three such rows.
    for size in range(1, 10):
        goes = overtaking(text, running_of(flood(size, caller="x")), rules=rules)
        assert bool(goes) is ((3 if is_held else 12) <= 4 * size * 2 / 3)

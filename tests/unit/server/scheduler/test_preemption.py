"""Laws of light rows: which ones go before heavy rows, in an own batch or between layers."""

from collections.abc import Sequence

import pytest

from doubles.waiting import changed, heavy, waiting_row
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import (
    MAX_PREEMPTION,
    OLDEST_EVERY,
    BatchPlan,
    TurnOrder,
    TurnRules,
    plan_batch,
    plan_next,
    plan_preemption,
)
from nunatak_server.scheduler.rows import PendingRow, Priority, Queues, VirtualTimes, flow_of

ROW_WORK = 4.0
BATCH_ROWS = 8
LIMITS = BatchLimits(max_tokens=4096, max_rows=64, max_work=BATCH_ROWS * ROW_WORK)
RULES = TurnRules()


class Bench:
    """A heavy batch that runs, and the rows that wait."""

    def __init__(
        self,
        waiting: Sequence[PendingRow],
        *,
        order: TurnOrder | None = None,
        rules: TurnRules = RULES,
    ) -> None:
        self.rules = rules
        self.queues = Queues(waiting)
        self.running = plan_batch(self.queues, limits=LIMITS, order=order, rules=rules)
        self.queues.take(self.running.batch)
        self.order = self.running.order
        self.preempted_by = 0.0

    def arrive(self, *rows: PendingRow) -> tuple[PendingRow, ...]:
        """Return the arrived rows that preempt the batch."""
        self.queues.add(rows)
        plan = plan_preemption(
            rows,
            running=self.running,
            preempted_by=self.preempted_by,
            queues=self.queues,
            limits=LIMITS,
            order=self.order,
            rules=self.rules,
        )
        if plan is None:
            return ()
        self.order = plan.order
        self.preempted_by += plan.charged
        self.queues.take(plan.batch)
        return plan.batch


def next_of(rows: Sequence[PendingRow], order: TurnOrder | None = None) -> BatchPlan:
    return plan_next(Queues(rows), limits=LIMITS, order=order)


def test_a_light_row_goes_before_a_heavy_flow_in_a_batch_of_its_own() -> None:
    light = waiting_row("light", 1)

    plan = next_of([*heavy(100), light])

    assert plan.batch == (light,)
    assert plan.backlog == {("anonymous", Priority.NORMAL, "heavy")}


@pytest.mark.parametrize("left", [BATCH_ROWS - 1, BATCH_ROWS])
def test_a_flow_is_heavy_once_as_many_rows_stay_behind_as_the_batch_holds(left: int) -> None:
    light = waiting_row("light", 5000)

    plan = next_of([*heavy(BATCH_ROWS - 1 + left), light])

    assert (len(plan.batch) < BATCH_ROWS) is (left == BATCH_ROWS)
    assert light in plan.batch


def test_the_rest_of_a_flow_that_a_batch_has_cut_off_is_not_light() -> None:
    queues = Queues([*heavy(100), *(waiting_row("burst", number) for number in range(6))])
    first = plan_next(queues, limits=LIMITS)
    queues.take(first.batch)

    second = plan_next(queues, limits=LIMITS, order=first.order)

    assert {row.task for row in second.batch} == {"heavy", "burst"}


def test_the_oldest_row_keeps_its_place_next_to_light_rows() -> None:
    rows, light = heavy(100), waiting_row("light", 1)
    order = TurnOrder(num_in_turn=OLDEST_EVERY - 1)

    plan = next_of([*rows, light], order)

    assert plan.batch == (rows[0], light)
    assert plan.order.num_in_turn == 0


def test_a_light_flow_does_not_get_ahead_by_more_than_a_batch() -> None:
    queues, order, taken = Queues(heavy(100)), TurnOrder(), list[str]()

    for number in range(40):
        queues.add([waiting_row("steady", number)])
        plan = plan_next(queues, limits=LIMITS, order=order)
        queues.take(plan.batch)
        order = plan.order
        taken += [row.task for row in plan.batch]
        ahead = taken.count("steady") - taken.count("heavy")
        assert ahead <= BATCH_ROWS + 1


def test_a_text_that_a_heavy_flow_reads_too_stays_with_the_heavy_flow() -> None:
    text = [waiting_row(task, 1) for task in ("light", "heavy")]

    assert len(next_of([*heavy(100), *text]).batch) > 1


@pytest.mark.parametrize("arriving", [BATCH_ROWS - 1, BATCH_ROWS])
def test_a_batch_becomes_heavy_once_as_many_rows_of_a_flow_have_arrived(arriving: int) -> None:
    bench = Bench(heavy(BATCH_ROWS))
    bench.arrive(*(waiting_row("heavy", 5000 + number) for number in range(arriving)))

    assert bool(bench.arrive(waiting_row("light", 1))) is (arriving == BATCH_ROWS)


@pytest.mark.parametrize("where", ["runs", "waits"])
def test_rows_of_one_flow_keep_their_order(where: str) -> None:
    older, younger = waiting_row("light", 1), waiting_row("light", 2)
    bench = Bench([older, *heavy(100)] if where == "runs" else heavy(100))
    if where == "waits":
        bench.queues.add([older])

    assert not bench.arrive(younger)


@pytest.mark.parametrize("at_once", [1, 3, 60])
def test_a_batch_is_preempted_by_at_most_four_times_its_work(at_once: int) -> None:
    bench, went = Bench(heavy(100)), 0.0

    for first in range(0, 60, at_once):
        rows = [waiting_row(f"light-{first + n}", first + n) for n in range(at_once)]
        bench.arrive(*rows)
        went = bench.preempted_by

    assert 0 < went <= MAX_PREEMPTION * bench.running.charged
    if at_once == 1:
        assert went == MAX_PREEMPTION * bench.running.charged


def test_a_flow_preempts_until_it_is_a_batch_ahead_and_no_other_goes_less_for_it() -> None:
    bench, number = Bench(heavy(100)), 0

    while bench.arrive(waiting_row("light", number)):
        number += 1

    assert number == BATCH_ROWS
    assert bench.arrive(waiting_row("other", 1000))


@pytest.mark.parametrize(("weights", "expected"), [({}, 8), ({"y": 2.0}, 16), ({"x": 2.0}, 4)])
def test_a_caller_preempts_another_until_it_is_a_batch_ahead_by_weight(
    weights: dict[str, float], expected: int
) -> None:
    rules = TurnRules(weights=weights)
    bench, number = Bench(heavy(100, caller="x"), rules=rules), 0

    while bench.arrive(waiting_row(f"task-{number}", number, caller="y")):
        number += 1

    assert number == expected


def test_a_flow_that_owes_a_batch_does_not_preempt() -> None:
    row = waiting_row("light", 1)
    owed = 2 * BATCH_ROWS * ROW_WORK + ROW_WORK
    order = TurnOrder(virtual_times=VirtualTimes(flows={flow_of(row): owed}))

    assert not Bench(heavy(100), order=order).arrive(row)


def test_a_row_never_preempts_a_higher_priority_of_its_caller() -> None:
    high = [changed(row, priority=Priority.HIGH) for row in heavy(100)]

    assert not Bench(high).arrive(waiting_row("light", 1))
    assert Bench(high).arrive(waiting_row("light", 1, caller="other"))
    assert Bench(heavy(100)).arrive(waiting_row("light", 1, priority=Priority.HIGH))


def test_rows_of_one_text_go_together_or_not_at_all() -> None:
    text = [waiting_row(task, 1) for task in ("one", "two", "three")]

    assert Bench(heavy(100)).arrive(*text) == tuple(text)

    bench = Bench(heavy(100))
    bench.queues.add([waiting_row("two", 0)])
    assert not bench.arrive(*text)


def test_a_batch_that_also_holds_rows_of_no_heavy_flow_is_not_preempted() -> None:
    bench = Bench([*heavy(100), waiting_row("other", 1)])

    assert not bench.arrive(waiting_row("light", 2))


def test_a_text_that_a_running_flow_reads_too_never_preempts() -> None:
    text, light = [waiting_row(task, 1) for task in ("light", "heavy")], waiting_row("light", 2)

    assert not Bench(heavy(100)).arrive(*text, light)


def test_a_preempting_batch_leaves_the_turn_of_the_oldest_row_as_it_is() -> None:
    bench = Bench(heavy(100), order=TurnOrder(num_in_turn=4))

    bench.arrive(waiting_row("light", 1))

    assert bench.order.num_in_turn == 5

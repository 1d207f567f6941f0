"""Laws of turns of more than one row: their length, and the flows that they do not delay."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, waiting_row
from nunatak_server.scheduler.fairness import (
    MANY_ROWS,
    ROWS_OF_WHOLE_TURN,
    FairQueue,
    Flow,
    Queues,
    VirtualTimes,
    flow_of,
)
from nunatak_server.scheduler.planner import (
    TURN_SHARE,
    BatchLimits,
    TurnOrder,
    TurnRules,
    plan_batch,
)
from nunatak_server.scheduler.preemption import plan_light_first
from nunatak_server.scheduler.rows import Priority

TOKENS = 16
BATCH_ROWS = 16
WORK = BATCH_ROWS * TOKENS
LIMITS = BatchLimits(max_tokens=4096, max_rows=64, max_work=WORK)
TURNS_OF_BATCH = round(1 / TURN_SHARE)
TURN = TURN_SHARE * WORK
LONGEST = 50.0


def heavy_flows(num_tasks: int, *, rows: int = 200, caller: str = "any") -> list[WaitingRow]:
    return [
        waiting_row(
            f"task-{task}",
            number * num_tasks + task,
            tokens=TOKENS,
            caller=caller.format(task),
        )
        for number in range(rows)
        for task in range(num_tasks)
    ]


@given(st.integers(1, 150), st.integers(1, 100), st.integers(1, 20))
@settings(derandomize=True)
def test_a_turn_is_as_long_as_its_flow_and_the_longest_one_let_it_be(
    num_rows: int, longest: int, cost: int
) -> None:
    rows = [waiting_row(task, n) for n in range(num_rows) for task in ("first", "second")]
    turns = FairQueue(Queues(rows), virtual_times=VirtualTimes(), weights={}, longest_turn=longest)

    length = 0
    while (row := turns.next_row(())) is not None and row.task == "first":
        turns.charge(row, cost)
        length += 1

    part = min(1.0, num_rows / ROWS_OF_WHOLE_TURN) if num_rows >= MANY_ROWS else 0.0
    assert length == min(num_rows, max(1, math.ceil(part * longest / cost)))


some_flows = st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.sampled_from("tu"))
lengths = st.one_of(st.integers(1, 3), st.integers(MANY_ROWS, 2 * ROWS_OF_WHOLE_TURN))


@given(
    st.dictionaries(some_flows, lengths, min_size=1, max_size=8),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 3.0])),
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=60, max_size=60),
)
@settings(derandomize=True, deadline=None)
def test_turns_begin_with_who_owes_least_with_the_long_turn_it_would_have(
    counts: dict[Flow, int], shares: dict[str, float], steps: list[tuple[int, bool]]
) -> None:
    """A search for the least at each turn gives the same order."""
    rows = [
        waiting_row(task, number, caller=caller, priority=priority)
        for number, (caller, priority, task) in enumerate(
            flow for flow, length in counts.items() for _ in range(length)
        )
    ]
    turns = FairQueue(
        Queues(rows), virtual_times=VirtualTimes(), weights=shares, longest_turn=LONGEST
    )
    flows, virtual_times = list(counts), defaultdict[object, float](float)
    callers = list(dict.fromkeys(flow[0] for flow in flows))
    left, going_on, work_left = dict(counts), None, 0.0

    def turn_of(flow: Flow) -> float:
        length = counts[flow]
        return LONGEST * min(1.0, length / ROWS_OF_WHOLE_TURN) if length >= MANY_ROWS else 0.0

    def best_of(caller: str) -> Flow:
        live = [flow for flow in flows if flow[0] == caller and left[flow]]
        return min(
            live, key=lambda it: (it[1].rank, virtual_times[it] + turn_of(it), flows.index(it))
        )

    def due(caller: str) -> tuple[float, int]:
        owed = virtual_times[caller] + turn_of(best_of(caller)) / shares.get(caller, 1.0)
        return owed, callers.index(caller)

    for cost, has_room in steps:
        waiting = [caller for caller in callers if any(left[it] for it in flows if it[0] == caller)]
        found = turns.next_row(())
        if not waiting:
            assert found is None
            break
        flow = going_on
        if flow is None or not left[flow] or work_left <= 0:
            flow = best_of(min(waiting, key=due))
            going_on, work_left = flow, turn_of(flow)
        assert found is not None
        assert flow_of(found) == flow
        left[flow] = left[flow] - 1 if has_room else 0
        if has_room:
            turns.charge(found, cost)
            virtual_times[flow] += cost
            work_left -= cost
            virtual_times[flow[0]] += cost / shares.get(flow[0], 1.0)
        else:
            turns.end_turns(found)


@pytest.mark.parametrize("caller", ["any", "caller-{}"])
@pytest.mark.parametrize("num_tasks", [TURNS_OF_BATCH + 1, 20])
def test_a_batch_of_many_heavy_flows_is_of_few_tasks(num_tasks: int, caller: str) -> None:
    batch = plan_batch(Queues(heavy_flows(num_tasks, caller=caller)), limits=LIMITS).batch

    assert len(batch) == BATCH_ROWS
    assert len({row.task for row in batch}) == TURNS_OF_BATCH


def test_a_turn_is_a_quarter_of_a_batch_that_tokens_bound() -> None:
    limits = BatchLimits(max_tokens=2 * WORK, max_rows=64)

    batch = plan_batch(Queues(heavy_flows(20)), limits=limits).batch

    taken = Counter(row.task for row in batch)
    assert max(taken.values()) == BATCH_ROWS / TURNS_OF_BATCH


@pytest.mark.parametrize(
    "rows",
    [
        heavy_flows(TURNS_OF_BATCH),
        heavy_flows(20, rows=MANY_ROWS - 1),
        [
            waiting_row("task", number, caller=f"caller-{number % 20}", tokens=TOKENS)
            for number in range(1000)
        ],
    ],
    ids=["few-tasks", "few-rows", "one-task"],
)
def test_turns_are_of_one_row_where_longer_ones_would_save_little(rows: list[WaitingRow]) -> None:
    batch = plan_batch(Queues(rows), limits=BatchLimits(max_tokens=4096, max_rows=66)).batch

    taken = Counter(map(flow_of, batch))
    assert max(taken.values()) - min(taken.values()) <= 1
    assert set(taken) == set(map(flow_of, rows))


@pytest.mark.parametrize(("noisy", "caller"), [("any", "any"), ("caller-{}", "light")])
def test_who_has_few_rows_does_not_wait_for_long_turns(noisy: str, caller: str) -> None:
    rows = heavy_flows(20, caller=noisy)
    if noisy != caller:
        # The noisy callers also have rows of low priority, whose turns are not next.
        low = Priority.LOW
        rows += [
            waiting_row("rare", 10**5 + n, caller=noisy.format(n), priority=low) for n in range(20)
        ]
    light = waiting_row("light", 10**6, tokens=TOKENS, caller=caller)

    batch = plan_batch(Queues([*rows, light]), limits=LIMITS).batch

    assert light in batch


def run_batches(
    rows: Sequence[WaitingRow],
    *,
    rules: TurnRules[WaitingRow] | None = None,
    length_of: Callable[[int], int] = lambda _: TOKENS,
) -> dict[str, list[WaitingRow]]:
    """Return the rows of each task in the order in which a hundred batches hold them.

    Each computed row is replaced by another row of its flow.
    """
    queues, order, served = Queues(rows), TurnOrder(), defaultdict[str, list[WaitingRow]](list)
    numbers = count(10**6)
    for _ in range(100):
        plan = plan_batch(queues, limits=LIMITS, order=order, rules=rules)
        order = plan.order
        queues.remove(plan.batch)
        for row, number in zip(plan.batch, numbers, strict=False):
            served[row.task].append(row)
            queues.add([waiting_row(row.task, number, tokens=length_of(number), caller=row.caller)])
    return served


@pytest.mark.parametrize("caller", ["any", "caller-{}"])
@pytest.mark.parametrize("num_tasks", [5, 9, 20])
def test_heavy_flows_with_long_turns_get_as_much_as_each_other(num_tasks: int, caller: str) -> None:
    served = run_batches(
        heavy_flows(num_tasks, caller=caller), length_of=lambda number: TOKENS * (1 + number % 3)
    )

    work = [sum(row.branch_tokens for row in rows) for rows in served.values()]
    longest = 3 * TOKENS
    # A task may exceed a turn by its last row, and by a row that begins a batch as the oldest.
    assert len(work) == num_tasks
    assert max(work) - min(work) <= TURN + 2 * longest


def test_callers_with_long_turns_are_served_by_weight() -> None:
    rules: TurnRules[WaitingRow] = TurnRules(weights={"caller-0": 3.0})

    served = run_batches(heavy_flows(9, caller="caller-{}"), rules=rules)

    work = {task: sum(row.branch_tokens for row in rows) for task, rows in served.items()}
    heavy = work.pop("task-0")
    assert heavy == pytest.approx(3 * sum(work.values()) / 8, abs=3 * (TURN + TOKENS))


def test_rows_of_a_flow_keep_their_order_from_turn_to_turn() -> None:
    served = run_batches(heavy_flows(9))

    groups = [[row.group for row in rows] for rows in served.values()]
    assert all(found == sorted(found) for found in groups)
    assert all(len(found) > ROWS_OF_WHOLE_TURN for found in groups)


@pytest.mark.parametrize("num_tasks", [9, 40])
def test_heavy_flows_are_planned_once_though_the_last_turn_of_a_batch_is_cut_off(
    num_tasks: int,
) -> None:
    """Its flow was given less than others of the batch, and has more rows than can go first."""
    num_looks, num_taken = 0, 0

    def look(_: WaitingRow) -> bool:
        nonlocal num_looks
        num_looks += 1
        return False

    queues, order = Queues(heavy_flows(num_tasks)), TurnOrder()
    limits = BatchLimits(max_tokens=4096, max_rows=64, max_work=WORK + TOKENS / 4)
    for number in range(50):
        plan = plan_light_first(
            queues,
            limits=limits,
            order=order.at(0.08 * number),
            rules=TurnRules(is_trunk_held=look),
        )
        order = plan.order
        queues.remove(plan.batch)
        num_taken += len(plan.batch)

    # The planner looks at a row if it takes the row, or if the row has no room. A row without room
    # ends the turns of its flow.
    assert num_looks == num_taken + 50 * num_tasks

"""Laws of turns of more than one row: how long they are, and whom they cost nothing."""

import math
from collections import Counter, defaultdict
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, waiting_row
from nunatak_server.batching.planner import (
    MANY_ROWS,
    TURN_SHARE,
    BatchLimits,
    TurnOrder,
    plan_batch,
)
from nunatak_server.batching.queues import Queues
from nunatak_server.batching.turns import ROWS_OF_WHOLE_TURN, Debts, Quantum, Turns

TOKENS = 16
LIMITS = BatchLimits(max_tokens=4096, max_rows=64, max_work=14 * TOKENS)
TURNS_OF_BATCH = round(1 / TURN_SHARE)


def floods(num_tasks: int, *, rows: int = 200, caller: str = "any") -> list[WaitingRow]:
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


@given(st.integers(1, 150), st.integers(1, 20), st.integers(1, 100), st.integers(1, 20))
@settings(derandomize=True)
def test_a_turn_is_as_long_as_its_flow_and_the_quantum_let_it_be(
    num_rows: int, max_rows: int, max_work: int, cost: int
) -> None:
    rows = [waiting_row(task, n) for n in range(num_rows) for task in ("first", "second")]
    quantum = Quantum(max_rows=max_rows, max_work=max_work)
    turns = Turns(Queues(rows), debts=Debts(), weights={}, quantum=quantum)

    length = 0
    while (row := turns.next_row(())) is not None and row.task == "first":
        turns.charge(row, cost)
        length += 1

    part = min(1.0, num_rows / ROWS_OF_WHOLE_TURN)
    expected = min(math.floor(part * max_rows), math.ceil(part * max_work / cost))
    assert length == max(1, expected)


@pytest.mark.parametrize("caller", ["any", "caller-{}"])
@pytest.mark.parametrize("num_tasks", [TURNS_OF_BATCH + 1, 20])
def test_a_batch_of_many_floods_is_of_few_tasks(num_tasks: int, caller: str) -> None:
    batch = plan_batch(Queues(floods(num_tasks, caller=caller)), limits=LIMITS).batch

    assert len(batch) >= LIMITS.max_work / TOKENS
    assert len({row.task for row in batch}) <= TURNS_OF_BATCH


@pytest.mark.parametrize(
    "rows", [floods(TURNS_OF_BATCH), floods(20, rows=MANY_ROWS - 1)], ids=["few", "short"]
)
def test_turns_are_of_one_row_where_longer_ones_would_change_little(rows: list[WaitingRow]) -> None:
    taken = Counter(row.task for row in plan_batch(Queues(rows), limits=LIMITS).batch)

    assert max(taken.values()) - min(taken.values()) <= 1
    assert len(taken) >= TURNS_OF_BATCH


@pytest.mark.parametrize("caller", ["any", "other"])
def test_who_has_few_rows_does_not_wait_for_long_turns(caller: str) -> None:
    quiet = waiting_row("quiet", 10**6, tokens=TOKENS, caller=caller)

    batch = plan_batch(Queues([*floods(20), quiet]), limits=LIMITS).batch

    assert quiet in batch


@pytest.mark.parametrize("caller", ["any", "caller-{}"])
@pytest.mark.parametrize("num_tasks", [5, 9, 20])
def test_floods_with_long_turns_get_as_much_as_each_other(num_tasks: int, caller: str) -> None:
    queues, order, served = Queues(floods(num_tasks, caller=caller)), TurnOrder(), Counter[str]()
    numbers, turn = count(10**6), TURN_SHARE * LIMITS.max_work + TOKENS

    for _ in range(100):
        plan = plan_batch(queues, limits=LIMITS, order=order)
        order = plan.order
        queues.remove(plan.batch)
        for row in plan.batch:
            served[row.task] += TOKENS
            queues.add([waiting_row(row.task, next(numbers), tokens=TOKENS, caller=row.caller)])
        given = [served[f"task-{task}"] for task in range(num_tasks)]
        # Beyond a turn: the one row that begins a batch because it is the oldest.
        assert max(given) - min(given) <= turn + TOKENS


@pytest.mark.parametrize("num_tasks", [9, 20])
def test_rows_of_a_flow_keep_their_order(num_tasks: int) -> None:
    batch = plan_batch(Queues(floods(num_tasks)), limits=LIMITS).batch

    groups = defaultdict[str, list[int]](list)
    for row in batch:
        groups[row.task].append(row.group)
    assert all(found == sorted(found) for found in groups.values())

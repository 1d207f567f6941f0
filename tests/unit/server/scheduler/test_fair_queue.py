from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import left_by, waiting_row
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import TurnOrder, plan_batch
from nunatak_server.scheduler.rows import (
    FairQueue,
    PendingRow,
    Priority,
    Queues,
    VirtualTimes,
    flow_of,
)

MAX_TOKENS = 16
BATCH = BatchLimits(max_tokens=64, max_rows=6)

lengths = st.lists(st.integers(1, MAX_TOKENS), min_size=40, max_size=40)
weights = st.fixed_dictionaries({caller: st.sampled_from([0.5, 1.0, 4.0]) for caller in "abc"})


def turns_of(
    rows: list[PendingRow],
    *,
    shares: dict[str, float] | None = None,
    virtual_times: VirtualTimes | None = None,
) -> FairQueue:
    return FairQueue(
        Queues(rows), virtual_times=virtual_times or VirtualTimes(), weights=shares or {}
    )


@given(lengths, weights, st.integers(1, 60))
@settings(derandomize=True)
def test_callers_that_all_wait_are_served_by_weight(
    tokens: list[int], shares: dict[str, float], num_turns: int
) -> None:
    """Two callers that wait all the time differ by one row each, whatever the rows cost."""
    rows = [
        waiting_row(f"task-{number % 3}", number, caller=caller, tokens=cost)
        for number, cost in enumerate(tokens)
        for caller in "abc"
    ]
    turns, served = turns_of(rows, shares=shares), dict.fromkeys("abc", 0.0)
    waiting = Counter(row.spec.caller for row in rows)

    for _ in range(num_turns):
        row = turns.next_row(())
        if row is None or min(waiting.values()) == 1:
            break
        turns.charge(row, row.spec.branch_tokens)
        waiting[row.spec.caller] -= 1
        served[row.spec.caller] += row.spec.branch_tokens / shares[row.spec.caller]  # pyrefly: ignore[bad-index, unsupported-operation]

    for one in "abc":
        for other in "abc":
            bound = MAX_TOKENS / shares[one] + MAX_TOKENS / shares[other]
            assert served[one] - served[other] <= bound


some_rows = st.builds(
    waiting_row,
    st.sampled_from("tu"),
    st.integers(0, 99),
    caller=st.sampled_from("abc"),
    priority=st.sampled_from(list(Priority)),
)


@given(
    st.lists(some_rows, max_size=20),
    st.lists(st.integers(1, 9), min_size=20, max_size=20),
    st.sets(st.integers(0, 19)),
)
@settings(derandomize=True)
def test_turns_go_to_who_owes_least_and_then_to_the_oldest(
    rows: list[PendingRow], costs: list[int], without_room: set[int]
) -> None:
    """A search for the least at each turn gives the same order."""
    turns, virtual_times, left = turns_of(rows), Counter[object](), list(rows)

    def standing(row: PendingRow) -> tuple[float, ...]:
        caller, rank, flow = row.spec.caller, row.spec.priority.rank, flow_of(row)
        ages = [n for n, other in enumerate(rows) if other.spec.caller == caller]
        own_ages = [n for n, other in enumerate(rows) if flow_of(other) == flow]
        return virtual_times[caller], ages[0], rank, virtual_times[flow], own_ages[0]

    for turn, cost in enumerate(costs):
        expected = min(left, key=standing, default=None)
        found = turns.next_row(())
        assert found is expected
        if found is None:
            break
        left.remove(found)
        if turn in without_room:
            turns.end_flow(found)
            left = [row for row in left if flow_of(row) != flow_of(found)]
        else:
            turns.charge(found, cost)
            virtual_times.update({found.spec.caller: cost, flow_of(found): cost})


@given(lengths, st.integers(2, 6))
@settings(derandomize=True)
def test_what_was_served_is_remembered_from_batch_to_batch(
    tokens: list[int], max_rows: int
) -> None:
    pending = [
        waiting_row(f"{caller}{number % 2}", 5 * number + place, caller=caller, tokens=cost)
        for number, cost in enumerate(tokens)
        for place, caller in enumerate("abcde")
    ]
    order, served = TurnOrder(), dict.fromkeys("abcde", 0.0)
    limits = BatchLimits(max_tokens=1000, max_rows=max_rows)

    for _ in range(6):  # none of them begins with the oldest row
        plan = plan_batch(Queues(pending), limits=limits, order=order)
        pending, order = left_by(plan, pending), plan.order
        for row in plan.batch:
            served[row.spec.caller] += row.spec.branch_tokens  # pyrefly: ignore[bad-index, unsupported-operation]

    assert max(served.values()) - min(served.values()) <= 2 * MAX_TOKENS


def test_a_caller_that_pauses_saves_up_nothing() -> None:
    busy = [waiting_row("t", number, caller="busy") for number in range(60)]
    order = TurnOrder()
    for _ in range(5):
        plan = plan_batch(Queues(busy), limits=BATCH, order=order)
        busy, order = left_by(plan, busy), plan.order
    back = [waiting_row("t", 100 + number, caller="back") for number in range(60)]

    plan = plan_batch(Queues([*busy, *back]), limits=BATCH, order=order)

    assert Counter(row.spec.caller for row in plan.batch) == {"busy": 3, "back": 3}


def test_debts_of_those_who_left_are_kept_until_others_have_caught_up() -> None:
    rows = [waiting_row("t", 0, caller="gone"), waiting_row("t", 1, caller="here")]
    turns = turns_of(rows, virtual_times=VirtualTimes(callers={"gone": 50.0, "old": 3.0}))
    turns.charge(rows[1], 10)

    virtual_times = turns.carry_over({flow_of(rows[1])})

    assert virtual_times.callers == {"gone": 40.0}
    assert virtual_times.flows == {}
    assert turns.carry_over(()) == VirtualTimes(callers={}, flows={}), "nobody waits"

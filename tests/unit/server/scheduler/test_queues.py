"""Queues answer like a list of the rows, without a search, and give turns by weight and debt."""

import itertools
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import left_by, waiting_row
from doubles.watching import watched
from nunatak_server.scheduler.admission import Admission, tokens_ahead
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import TurnOrder, TurnRules, plan_batch, plan_next
from nunatak_server.scheduler.rows import (
    MAX_PAST_DEADLINES,
    FairQueue,
    Flow,
    PendingRow,
    Priority,
    Queues,
    VirtualTimes,
    flow_of,
)

rows = st.builds(
    waiting_row,
    st.sampled_from("ab"),
    st.integers(0, 4),
    caller=st.sampled_from("xy"),
    priority=st.sampled_from(list(Priority)),
)
ROW_WORK = 4.0
MAX_WORK = 16 * ROW_WORK
"""Most work of a batch."""
GROUPS = itertools.count()
flows = st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.sampled_from("uvwxyz"))
amounts = st.dictionaries(flows, st.integers(1, 100).map(float))
leads = st.integers(0, 50).map(float)
weights = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 2.0]))


@given(
    arriving=st.lists(st.lists(rows, max_size=6), max_size=6),
    leaving=st.lists(st.integers(0, 5), max_size=30),
)
@settings(derandomize=True)
def test_queues_hold_what_came_and_did_not_leave_in_its_order(
    arriving: list[list[PendingRow]], leaving: list[int]
) -> None:
    queues, kept = Queues(), list[PendingRow]()

    for number, batch in enumerate(arriving):
        queues.add(batch)
        kept += batch
        gone = [row for place, row in enumerate(kept) if place in leaving[5 * number :][:5]]
        queues.remove(gone)
        kept = [row for row in kept if row not in gone]

        assert (list(queues), len(queues)) == (kept, len(kept))
        assert all(row in queues for row in kept)
        assert not any(row in queues for row in gone)
        assert queues.flows == set(map(flow_of, kept))
        for row in kept:
            flow = [other for other in kept if flow_of(other) == flow_of(row)]
            assert list(queues.of_flow(flow_of(row))) == flow
            group = row.spec.group
            assert list(queues.of_text(group)) == [o for o in kept if o.spec.group == group]
        by_age = sorted(queues.flows, key=queues.age_rank)
        assert by_age == list(dict.fromkeys(map(flow_of, kept)))
        assert queues.flows_without(kept[:3]) == set(map(flow_of, kept[3:]))


@given(
    deadlines=st.lists(st.integers(0, 9).map(float), max_size=40),
    leaving=st.sets(st.integers(0, 39)),
    now=st.integers(0, 9).map(float),
)
@settings(derandomize=True)
def test_the_rows_whose_deadline_has_come_leave_and_no_others(
    deadlines: list[float], leaving: set[int], now: float
) -> None:
    came = [
        replace(waiting_row("a", number), deadline=deadline)
        for number, deadline in enumerate(deadlines)
    ]
    queues = Queues(came)
    queues.remove([row for row in came if row.spec.group in leaving])
    back = [row for row in came if row.spec.group in leaving and row.spec.group % 2]
    queues.add(back)
    waiting = list(queues)

    expired = queues.remove_expired(now=now)

    late = [row for row in waiting if row.deadline <= now]
    assert sorted(map(id, expired)) == sorted(map(id, late))
    assert [row.deadline for row in expired] == sorted(row.deadline for row in late)
    assert list(queues) == [row for row in waiting if row.deadline > now]
    assert queues.remove_expired(now=now) == []


class Deadline(float):
    """A deadline that a weak reference can follow."""

    __slots__ = ("__weakref__",)


def test_queues_remember_few_deadlines_of_rows_that_have_left() -> None:
    queues, seen = Queues(), list[weakref.ref[Deadline]]()
    queues.add([replace(waiting_row("a", 0), deadline=0.0)])

    for number in range(1, 1000):
        row = replace(waiting_row("a", number), deadline=Deadline(number))
        seen.append(weakref.ref(row.deadline))  # pyrefly: ignore[bad-argument-type] - a Deadline
        queues.add([row])
        queues.remove([row])

    assert sum(deadline() is not None for deadline in seen) <= 2 + MAX_PAST_DEADLINES


def test_a_look_for_late_rows_looks_at_no_other_row() -> None:
    looks = Counter[str]()
    queues = Queues(
        watched(replace(waiting_row("a", number), deadline=float(number % 50)), looks)
        for number in range(5000)
    )
    looks.clear()

    assert queues.remove_expired(now=-1.0) == []
    assert looks.total() == 0
    assert len(queues.remove_expired(now=0.0)) == 100
    assert 0 < looks.total() <= 100 * 10


def test_planning_looks_at_no_row_beyond_those_it_takes_and_the_next_of_each_flow() -> None:
    def looks_of_a_plan(num_waiting: int) -> int:
        looks = Counter[str]()
        queues = Queues(
            watched(waiting_row(f"task-{number % 9}", number), looks)
            for number in range(num_waiting)
        )
        looks.clear()
        plan_batch(queues, limits=BatchLimits(max_tokens=4096, max_rows=16))
        return looks.total()

    assert looks_of_a_plan(9000) == looks_of_a_plan(900) > 0


@given(amounts, flows, weights, leads)
@settings(derandomize=True)
def test_a_row_waits_for_its_flow_at_least_and_all_at_most_and_without_own_rows_for_nobody(
    queued: dict[Flow, float], flow: Flow, shares: dict[str, float], lead: float
) -> None:
    ahead = tokens_ahead(queued, flow, shares, lead=lead)
    of_others = {key: tokens for key, tokens in queued.items() if key[0] != flow[0]}

    assert queued.get(flow, 0.0) <= ahead <= sum(queued.values())
    assert tokens_ahead(of_others, flow, shares, lead=lead) == 0


@pytest.mark.parametrize("lead", [0.0, 4.0])
def test_others_get_as_much_as_the_flow_has_queued_less_a_lead(lead: float) -> None:
    normal = Priority.NORMAL
    queued: dict[Flow, float] = {
        ("me", normal, "mine"): 10.0,
        ("me", normal, "noisy"): 1000.0,
        ("me", Priority.HIGH, "urgent"): 7.0,
        ("me", Priority.LOW, "later"): 500.0,
        ("gold", normal, "any"): 900.0,
        ("small", normal, "any"): 3.0,
    }

    ahead = tokens_ahead(queued, ("me", normal, "mine"), {"gold": 2.0}, lead=lead)

    own = 10 + (10 - 2 * lead) + 7
    assert ahead == own + (2 * own - 3 * lead) + max(0, min(3, own - 2 * lead))


@given(
    st.dictionaries(flows, st.integers(1, 70), min_size=1, max_size=12),
    st.integers(0, 11),
    weights,
    st.sampled_from(
        [BatchLimits(max_tokens=128, max_rows=99), BatchLimits(max_tokens=999, max_rows=16)]
    ),
    st.integers(0, 20),
)
@settings(derandomize=True, deadline=None)
def test_no_row_is_computed_before_what_is_ahead_of_it(
    counts: dict[Flow, int],
    position: int,
    shares: dict[str, float],
    limits: BatchLimits,
    num_before: int,
) -> None:
    """The law also holds after earlier batches, while equal rows wait all the time."""
    rules = TurnRules(weights=shares)
    flow = list(counts)[position % len(counts)]
    queues = Queues(row_of(other) for other, count in counts.items() for _ in range(count))
    order, done, newest = TurnOrder(), 0.0, row_of(flow)
    for _ in range(num_before):
        plan = plan_next(queues, limits=limits, order=order, rules=rules)
        order = plan.order
        queues.take(plan.batch)
        queues.add(row_of(flow_of(row)) for row in plan.batch)
    queued = {other: ROW_WORK * len(queues.of_flow(other)) for other in counts}
    queues.add([newest])

    while newest in queues:
        plan = plan_next(queues, limits=limits, order=order, rules=rules)
        queues.take(plan.batch)
        order, done = plan.order, done + plan.work

    assert done >= tokens_ahead(queued, flow, shares, lead=MAX_WORK)


def row_of(flow: Flow) -> PendingRow:
    caller, priority, task = flow
    return waiting_row(task, next(GROUPS), caller=caller, priority=priority)


@given(st.lists(st.tuples(flows, st.integers(0, 9).map(lambda n: n / 7)), max_size=20))
@settings(derandomize=True)
def test_what_is_counted_and_taken_back_leaves_nothing(added: list[tuple[Flow, float]]) -> None:
    admission = Admission(max_requests=10**6, max_tokens=10**6, max_bytes=0)

    with ExitStack() as stack:
        for (caller, priority, task), tokens in added:
            permit = stack.enter_context(admission.admit(caller, priority, tasks=[task]))
            permit.take_tokens({task: tokens})
    assert admission.flows == {}
    for resource in (admission.requests, admission.tokens):
        assert (resource.total, resource.held) == (0, {})


MAX_TOKENS = 16
BATCH = BatchLimits(max_tokens=64, max_rows=6)

lengths = st.lists(st.integers(1, MAX_TOKENS), min_size=40, max_size=40)
all_weights = st.fixed_dictionaries({caller: st.sampled_from([0.5, 1.0, 4.0]) for caller in "abc"})


def turns_of(
    rows: list[PendingRow],
    *,
    shares: dict[str, float] | None = None,
    virtual_times: VirtualTimes | None = None,
) -> FairQueue:
    return FairQueue(
        Queues(rows), virtual_times=virtual_times or VirtualTimes(), weights=shares or {}
    )


@given(lengths, all_weights, st.integers(1, 60))
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

"""Queues answer like a list of the rows, without a search through that list."""

import weakref
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, text_of, waiting_row
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import plan_batch
from nunatak_server.scheduler.rows import MAX_PAST_DEADLINES, Priority, Queues, flow_of

rows = st.builds(
    waiting_row,
    st.sampled_from("ab"),
    st.integers(0, 4),
    caller=st.sampled_from("xy"),
    priority=st.sampled_from(list(Priority)),
)


@given(
    arriving=st.lists(st.lists(rows, max_size=6), max_size=6),
    leaving=st.lists(st.integers(0, 5), max_size=30),
)
@settings(derandomize=True)
def test_queues_hold_what_came_and_did_not_leave_in_its_order(
    arriving: list[list[WaitingRow]], leaving: list[int]
) -> None:
    queues, kept = Queues[WaitingRow](), list[WaitingRow]()

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
            assert list(queues.of_text(row.group)) == [o for o in kept if o.group == row.group]
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
    queues.remove([row for row in came if row.group in leaving])
    back = [row for row in came if row.group in leaving and row.group % 2]
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
    queues, seen = Queues[WaitingRow](), list[weakref.ref[Deadline]]()
    queues.add([replace(waiting_row("a", 0), deadline=0.0)])

    for number in range(1, 1000):
        row = replace(waiting_row("a", number), deadline=Deadline(number))
        seen.append(weakref.ref(row.deadline))  # pyright: ignore[reportArgumentType] - a Deadline
        queues.add([row])
        queues.remove([row])

    assert sum(deadline() is not None for deadline in seen) <= 2 + MAX_PAST_DEADLINES


def test_a_look_for_late_rows_looks_at_no_other_row() -> None:
    looks = 0

    class Watched(WaitingRow):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += 1
            return super().__getattribute__(name)

    rows = [
        Watched(task="a", group=number, encoding=text_of("x"), deadline=float(number % 50))
        for number in range(5000)
    ]
    queues = Queues(rows)
    looks = 0

    assert queues.remove_expired(now=-1.0) == []
    assert looks == 0
    assert len(queues.remove_expired(now=0.0)) == 100
    assert 0 < looks <= 100 * 10


def test_planning_looks_at_no_row_beyond_those_it_takes_and_the_next_of_each_flow() -> None:
    looks = 0

    class Watched(WaitingRow):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += 1
            return super().__getattribute__(name)

    def looks_of_a_plan(num_waiting: int) -> int:
        nonlocal looks
        queues = Queues(
            Watched(task=f"task-{number % 9}", group=number, encoding=text_of(number))
            for number in range(num_waiting)
        )
        looks = 0
        plan_batch(queues, limits=BatchLimits(max_tokens=4096, max_rows=16))
        return looks

    assert looks_of_a_plan(9000) == looks_of_a_plan(900) > 0

"""Laws of usage: the recent service of flows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.waiting import waiting_row
from nunatak_server.scheduler.fairness import (
    HALF_LIFE_S,
    MIN_COST,
    MIN_USAGE,
    Flow,
    Queues,
    Usage,
    flow_of,
)
from nunatak_server.scheduler.planner import BatchLimits, TurnRules, plan_batch, work_by_flow
from nunatak_server.scheduler.rows import Priority

A, B = (flow_of(waiting_row(task, 0)) for task in "ab")
OF_ELSE = flow_of(waiting_row("a", 0, caller="else"))

given_work = st.dictionaries(st.sampled_from([A, B, OF_ELSE]), st.floats(100, 1e6))


@given(given_work, st.lists(st.floats(0, HALF_LIFE_S), max_size=5))
def test_half_of_it_is_left_after_a_half_life_however_often_it_is_asked(
    work: dict[Flow, float], steps: list[float]
) -> None:
    usage, now = Usage(flows=work, as_of=3.0), 3.0
    for step in steps:
        now += step
        usage = usage.at(now)

    expected = {flow: one * 0.5 ** ((now - 3.0) / HALF_LIFE_S) for flow, one in work.items()}
    assert usage.flows == pytest.approx(expected)


def test_a_clock_that_stands_still_takes_nothing() -> None:
    usage = Usage(flows={A: 8.0}, as_of=3.0)

    assert usage.at(3.0) == usage.at(2.0) == usage


def test_flows_that_pause_are_forgotten() -> None:
    usage = Usage(flows={A: 1000.0, B: MIN_USAGE}, as_of=0.0)

    assert usage.at(HALF_LIFE_S).flows == {A: 500.0}
    assert not usage.at(100 * HALF_LIFE_S).flows


@given(given_work, given_work)
def test_what_batches_give_is_added_up(first: dict[Flow, float], second: dict[Flow, float]) -> None:
    usage = Usage().plus(first).plus(second)

    assert usage.flows == {
        flow: first.get(flow, 0.0) + second.get(flow, 0.0) for flow in {*first, *second}
    }


@given(given_work, given_work, st.floats(0, HALF_LIFE_S))
def test_a_caller_was_given_what_its_flows_were(
    first: dict[Flow, float], second: dict[Flow, float], pause: float
) -> None:
    usage = Usage().plus(first).at(pause).plus(second)

    callers = {flow[0] for flow in usage.flows}
    assert usage.callers == pytest.approx(
        {it: sum(work for flow, work in usage.flows.items() if flow[0] == it) for it in callers}
    )


@pytest.mark.parametrize("weight", [1.0, 4.0])
@pytest.mark.parametrize("times", [1.4, 1.6])
def test_who_was_given_two_thirds_of_another_is_light_beside_it(
    times: float, weight: float
) -> None:
    usage = Usage().plus({A: 100.0, B: 100.0 * times, OF_ELSE: weight * (100 + 100 * times) * 1.6})

    assert usage.is_light(A, compared_with=B, weights={}) is (times >= 1.5)
    assert not usage.is_light(B, compared_with=A, weights={})
    # Another caller is compared with the whole service of this caller.
    assert usage.is_light(B, compared_with=OF_ELSE, weights={"else": weight})


all_flows = st.sets(
    st.builds(
        flow_of,
        st.builds(
            waiting_row,
            st.sampled_from("ab"),
            st.just(0),
            caller=st.sampled_from("xyz"),
            priority=st.sampled_from(list(Priority)),
        ),
    ),
    min_size=1,
)


@given(all_flows, st.lists(st.floats(1, 20), min_size=18, max_size=18), st.floats(0.5, 4))
def test_who_is_heaviest_is_light_beside_none_and_there_is_always_one(
    flows: set[Flow], work: list[float], weight: float
) -> None:
    usage = Usage().plus(dict(zip(sorted(flows), work, strict=False)))
    weights = {"x": weight}

    heaviest = usage.heaviest(flows, weights=weights)

    assert heaviest
    assert heaviest == {
        flow
        for flow in flows
        if not any(
            usage.is_light(flow, compared_with=other, weights=weights) for other in flows - {flow}
        )
    }


def test_a_higher_priority_is_light_beside_a_lower_one_of_its_caller() -> None:
    high = flow_of(waiting_row("a", 0, priority=Priority.HIGH))
    usage = Usage().plus({high: 100.0, A: 1.0})

    assert usage.is_light(high, compared_with=A, weights={})
    assert not usage.is_light(A, compared_with=high, weights={})


@given(st.sets(st.sampled_from("abc"), min_size=1), st.integers(1, 9))
def test_a_batch_gives_what_it_computes_and_a_shared_trunk_once(
    tasks: set[str], tokens: int
) -> None:
    rows = [waiting_row(task, 1, tokens=tokens) for task in sorted(tasks)]

    plan = plan_batch(Queues(rows), limits=BatchLimits(max_tokens=1000, max_rows=9))

    given = plan.order.usage.flows
    assert given.keys() == set(map(flow_of, rows))
    assert given == work_by_flow(rows, rules=TurnRules())
    # Each row needs a place, also if the row costs less than a token.
    assert plan.work <= sum(given.values()) <= plan.work + len(rows) * MIN_COST

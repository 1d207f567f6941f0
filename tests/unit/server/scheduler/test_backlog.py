import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.waiting import WaitingRow, waiting_row
from nunatak_server.scheduler.admission import Backlog, holders, tokens_ahead
from nunatak_server.scheduler.batch_time import BatchLimits
from nunatak_server.scheduler.planner import TurnOrder, TurnRules, plan_next
from nunatak_server.scheduler.rows import Flow, Priority, Queues, flow_of

ROW_WORK = 4.0
MAX_WORK = 16 * ROW_WORK
"""Most work of a batch."""
GROUPS = itertools.count()

flows = st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.sampled_from("uvwxyz"))
amounts = st.dictionaries(flows, st.integers(1, 100).map(float))
leads = st.integers(0, 50).map(float)
weights = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 2.0]))


@given(amounts, flows, weights, leads)
@settings(derandomize=True)
def test_a_row_waits_for_its_flow_at_least_and_for_all_at_most(
    queued: dict[Flow, float], flow: Flow, shares: dict[str, float], lead: float
) -> None:
    ahead = tokens_ahead(queued, flow, shares, lead=lead)

    assert queued.get(flow, 0.0) <= ahead <= sum(queued.values())


@given(amounts, flows, weights, leads)
@settings(derandomize=True)
def test_a_caller_with_nothing_queued_waits_for_nobody(
    queued: dict[Flow, float], flow: Flow, shares: dict[str, float], lead: float
) -> None:
    of_others = {key: tokens for key, tokens in queued.items() if key[0] != flow[0]}

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
    rules: TurnRules[WaitingRow] = TurnRules(weights=shares)
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


def row_of(flow: Flow) -> WaitingRow:
    caller, priority, task = flow
    return waiting_row(task, next(GROUPS), caller=caller, priority=priority)


@given(st.lists(st.tuples(flows, st.integers(0, 9).map(lambda n: n / 7)), max_size=20))
@settings(derandomize=True)
def test_what_is_counted_and_taken_back_leaves_nothing(added: list[tuple[Flow, float]]) -> None:
    backlog = Backlog()

    for flow, tokens in added:
        backlog.add_request(flow[0], [flow[2]])
        backlog.add_tokens(flow, tokens)
    for flow, tokens in added:
        backlog.remove_tokens(flow, tokens)
        backlog.remove_request(flow[0], [flow[2]])

    assert (backlog.num_requests, backlog.num_tokens, backlog.flows) == (0, 0, {})
    for holder in holders("a", "xyz"):
        assert (backlog.tokens_of(holder), backlog.requests_of(holder)) == (0, 0)

from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_server.admission.backlog import Backlog, holders, tokens_ahead
from nunatak_server.batching.queues import Flow
from nunatak_server.batching.senders import Priority

flows = st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.sampled_from("xyz"))
amounts = st.dictionaries(flows, st.integers(1, 100).map(float))
weights = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 2.0]))


@given(amounts, flows, weights)
@settings(derandomize=True)
def test_a_row_waits_for_its_flow_at_least_and_for_all_at_most(
    queued: dict[Flow, float], flow: Flow, shares: dict[str, float]
) -> None:
    ahead = tokens_ahead(queued, flow, shares)

    assert queued.get(flow, 0.0) <= ahead <= sum(queued.values())


@given(amounts, flows, weights)
@settings(derandomize=True)
def test_a_caller_with_nothing_queued_waits_for_nobody(
    queued: dict[Flow, float], flow: Flow, shares: dict[str, float]
) -> None:
    of_others = {key: tokens for key, tokens in queued.items() if key[0] != flow[0]}

    assert tokens_ahead(of_others, flow, shares) == 0


def test_others_get_as_much_as_the_flow_has_queued() -> None:
    normal = Priority.NORMAL
    queued: dict[Flow, float] = {
        ("me", normal, "mine"): 10.0,
        ("me", normal, "noisy"): 1000.0,
        ("me", Priority.HIGH, "urgent"): 7.0,
        ("me", Priority.LOW, "later"): 500.0,
        ("gold", normal, "any"): 900.0,
        ("small", normal, "any"): 3.0,
    }

    ahead = tokens_ahead(queued, ("me", normal, "mine"), {"gold": 2.0})

    own = 10 + 10 + 7
    assert ahead == own + 2 * own + 3


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

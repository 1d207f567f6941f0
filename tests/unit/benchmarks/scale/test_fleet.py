"""Laws of the simulated fleet and of the simulated registry."""

from itertools import islice

import pytest

pytest.importorskip("simpy", reason="needs the package simpy")

from benchmarks.scale.checks import erlang_wait_s
from benchmarks.scale.fleet import Costs, Fleet, caller, open_load, popular
from benchmarks.scale.registry import POLL_S, RegistryCosts, wait_s

COSTS = Costs(compute_s=0.01, load_s=0.05)


def make_fleet(*, replicas: int = 4, room: int = 2, costs: Costs = COSTS) -> Fleet:
    return Fleet(replicas=replicas, room=room, costs=costs, seed=0)


def ask_all(fleet: Fleet, tasks: list[int]) -> None:
    fleet.clock.run(fleet.clock.process(caller(fleet, iter(tasks), fleet.by_task)))


def test_erlangs_formula_gives_the_wait_of_one_server() -> None:
    assert erlang_wait_s(servers=1, per_s=50, compute_s=0.01) == pytest.approx(0.01)


@pytest.mark.parametrize("replicas", [2, 3, 7])
@pytest.mark.parametrize("free", [1, 4, 20, 99])
def test_the_places_for_requests_are_divided_and_none_has_no_place(
    replicas: int, free: int
) -> None:
    fleet = make_fleet(replicas=replicas)

    places = [fleet.places_for_requests(number, free) for number in range(replicas)]

    assert sum(places) == max(free, replicas)
    assert min(places) >= 1
    assert max(places) - min(places) <= 1


def test_a_task_stays_with_one_replica_while_its_load_allows() -> None:
    fleet = make_fleet()

    ask_all(fleet, [5] * 10)

    assert len({it.replica for it in fleet.answers}) == 1
    assert [it.is_cold for it in fleet.answers] == [True] + [False] * 9
    assert fleet.answers[0].ended == pytest.approx(0.06)


def test_the_least_recently_used_task_leaves() -> None:
    fleet = make_fleet(replicas=1)

    ask_all(fleet, [1, 2, 1, 3, 1, 2])

    assert [it.is_cold for it in fleet.answers] == [True, True, False, True, False, True]


def test_requests_of_a_lost_replica_are_answered_elsewhere() -> None:
    fleet = make_fleet()
    ask_all(fleet, [5])
    (first,) = fleet.answers
    fleet.lose(range(first.replica, first.replica + 1))

    ask_all(fleet, [5, 5, 5])

    assert [it.num_tries for it in fleet.answers[1:]] == [2, 2, 1]
    assert fleet.num_lost == 0


def test_a_request_is_lost_when_all_its_tries_fail() -> None:
    fleet = make_fleet()
    fleet.lose(range(4))

    ask_all(fleet, [5])

    assert (fleet.num_lost, fleet.answers) == (1, [])


def test_a_promoted_task_is_loaded_once_its_replica_has_looked() -> None:
    fleet = make_fleet()
    ask_all(fleet, [5])
    fleet.promote(5)
    fleet.clock.run(fleet.clock.now + 0.1)

    ask_all(fleet, [5, 5])

    assert [(it.is_cold, it.is_old) for it in fleet.answers[1:]] == [(True, False), (False, False)]


def test_requests_that_come_at_random_wait_as_the_formula_says() -> None:
    costs = Costs(compute_s=0.01, load_s=0.0, servers=2, draws=True)
    fleet = make_fleet(replicas=1, costs=costs)
    fleet.fill(lambda _: [0])
    fleet.clock.process(open_load(fleet, iter(lambda: 0, 1), fleet.at_random, per_s=100))
    fleet.clock.run(100)

    waits = [it.ended - it.started - costs.compute_s for it in fleet.answers]
    expected = erlang_wait_s(servers=2, per_s=100, compute_s=0.01)
    assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.2)


def test_the_popularity_falls_with_the_rank() -> None:
    drawn = list(islice(popular(1000, seed=0), 20_000))

    assert drawn.count(0) / drawn.count(9) == pytest.approx(10, rel=0.3)


def test_a_warm_fleet_holds_no_more_than_its_room_and_no_request() -> None:
    fleet = make_fleet()

    fleet.warm(popular(100, seed=0), fleet.by_task, requests=500, in_progress=3)

    assert {len(it.held) for it in fleet.replicas} == {2}
    assert sum(it.num_served for it in fleet.replicas) == 0


@pytest.mark.parametrize(("look_s", "waits"), [(1e-6, False), (0.05, True)])
def test_a_promotion_waits_longer_where_looks_fill_the_database(
    look_s: float, *, waits: bool
) -> None:
    costs = RegistryCosts(look_s=look_s, beat_s=1e-6, beat_per_row_s=0.0)

    assert (wait_s(costs, replicas=20, cores=1, seed=0) > 2 * POLL_S) is waits

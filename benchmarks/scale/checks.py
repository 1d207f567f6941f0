"""Checks of the simulation against what is known: a formula, and real HAProxy."""

import math
from collections.abc import Iterator
from itertools import islice, repeat
from statistics import mean

from benchmarks.harness.recording import Figure
from benchmarks.scale.fleet import Costs, Fleet, Route, caller, open_load, place_of, popular

LOAD, NUM_SERVED = 0.8, 200_000
NUM_RUNS = 8
"""One run has a standard deviation of 5 % of the wait, because long queues last long."""
SERVERS = (1, 4)
CALLERS, WARM_UP, COUNTED = 16, 20_000, 30_000
STAND_IN_S = 0.0005
"""In the measurement the callers and the stand-ins share one interpreter, so nearly all requests
are in progress at a stand-in at all times. The time of each is then of no importance."""
REPLICAS, TASKS, ROOM = 4, 10_000, 3000
"""The sizes of `benchmarks.server.affinity`."""


def erlang_wait_s(*, servers: int, per_s: float, compute_s: float) -> float:
    """Return the mean wait in an M/M/c queue (Erlang's C formula)."""
    offered = per_s * compute_s
    share = offered / servers
    last = offered**servers / math.factorial(servers) / (1 - share)
    waits = last / (sum(offered**it / math.factorial(it) for it in range(servers)) + last)
    return waits * compute_s / (servers - offered)


def wait_error(servers: int) -> float:
    """Return how far the mean wait of one simulated replica is from the formula, as a share."""
    costs = Costs(compute_s=0.01, load_s=0.0, servers=servers, draws=True)
    per_s = LOAD * servers / costs.compute_s
    expected = erlang_wait_s(servers=servers, per_s=per_s, compute_s=costs.compute_s)
    found = mean(mean_wait_s(costs, per_s=per_s, seed=it) for it in range(NUM_RUNS))
    return abs(found - expected) / expected


def mean_wait_s(costs: Costs, *, per_s: float, seed: int) -> float:
    """Return the mean wait of one simulated replica with one task."""
    fleet = Fleet(replicas=1, room=1, costs=costs, seed=seed)
    fleet.fill(lambda _: [0])
    fleet.clock.process(open_load(fleet, repeat(0), fleet.at_random, per_s=per_s))
    fleet.clock.run(NUM_SERVED / per_s)
    return mean(it.ended - it.started for it in fleet.answers) - costs.compute_s


def cold_share(*, is_random: bool, seed: int) -> float:
    """Return the cold share of the sizes and the callers of the real measurement."""
    costs = Costs(
        compute_s=STAND_IN_S, load_s=0.005, load_threads=CALLERS, servers=CALLERS, draws=True
    )
    fleet = Fleet(replicas=REPLICAS, room=ROOM, costs=costs, seed=seed)
    route = fleet.at_random if is_random else fleet.by_task
    shuffled = sorted(range(TASKS), key=place_of)
    for tasks in (iter(shuffled), islice(popular(TASKS, seed), WARM_UP)):
        run_callers(fleet, tasks, route)
    num_before = len(fleet.answers)
    run_callers(fleet, islice(popular(TASKS, seed + 1000), COUNTED), route)
    counted = fleet.answers[num_before:]
    return sum(it.is_cold for it in counted) / len(counted)


def run_callers(fleet: Fleet, tasks: Iterator[int], route: Route) -> None:
    """Let the callers of the measurement ask until the tasks end."""
    running = [fleet.clock.process(caller(fleet, tasks, route)) for _ in range(CALLERS)]
    fleet.clock.run(fleet.clock.all_of(running))


def measured(figures: dict[str, Figure], name: str) -> float:
    """Return the value of a measured figure.

    Raises:
        SystemExit: The figure is not measured yet.
    """
    if name not in figures:
        raise SystemExit(f"docs/results/figures.jsonl has no figure {name}; measure it first")
    return figures[name].value

"""Past these machines: a simulated fleet of 1,000 replicas and 1,000,000 tasks, with its checks.

The times of a replica are figures that other benchmarks have measured; the costs of PostgreSQL are
measured here. docs/scale.md has the assumptions. Nothing here has run on 1,000 machines.

    PYTHONPATH=tests python -m benchmarks.scale.run
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.open_loop import percentile
from benchmarks.harness.recording import Figure, Sheet, figures_parser, latest, open_sheet
from benchmarks.scale.checks import SERVERS, cold_share, measured, wait_error
from benchmarks.scale.fleet import Answer, Costs, Fleet, Step, open_load, popular
from benchmarks.scale.registry import RegistryCosts, measure, wait_s
from doubles.postgres import find_binaries, private_postgres

COMPUTE: Final = "report.throughput.single.nunatak_per_s"
LOAD: Final = "server.load.top3.first_ms"
TASK_MB: Final = "report.memory.bert_base.nunatak_mb_per_task"
FETCH_S: Final = 0.02
"""Time to read a task from an object store. An assumption: no object store was measured."""
MEMORY_MB: Final = 8192
"""Memory for tasks of one replica. An assumption."""
HALF: Final = 0.5
LOADS: Final = (0.3, HALF, 0.7)
WARM_UP: Final = 3
"""Requests before the clock starts, as a multiple of the tasks in all memories."""
SETTLE_S: Final = 3.0
"""Time before anything is counted, in which queues reach their usual length."""
LOST_SHARE: Final = 0.05
PROMOTED: Final = 1000
FLEETS: Final = (10, 30, 100, 300, 1000, 3000)
DATABASE_CORES: Final = 8
ROUTES: Final = ("affinity", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The arguments of every part."""

    sheet: Sheet
    figures: dict[str, Figure]
    replicas: int
    tasks: int
    seconds: float

    @property
    def per_replica(self) -> float:
        """Requests per second of a replica at full load."""
        return measured(self.figures, COMPUTE)

    def fleet(self, route: str, load: float) -> Fleet:
        """Return a fleet under load, whose memory holds what a long time of such traffic leaves."""
        load_s = measured(self.figures, LOAD) / 1000 + FETCH_S
        room = int(MEMORY_MB / measured(self.figures, TASK_MB))
        costs = Costs(compute_s=1 / self.per_replica, load_s=load_s)
        fleet = Fleet(replicas=self.replicas, room=room, costs=costs, seed=0)
        owned = fleet.owned(self.tasks) if route == "affinity" else None
        fleet.fill(lambda number: owned[number] if owned else list(range(room)))
        rate = load * self.replicas * self.per_replica
        way = fleet.by_task if route == "affinity" else fleet.at_random
        # A queue with constant times (Pollaczek and Khinchine), and a load for a tenth.
        stay_s = costs.compute_s * (1 + load / 2 / (1 - load)) + load_s / 10
        fleet.warm(
            popular(self.tasks, seed=2),
            way,
            requests=WARM_UP * room * self.replicas,
            in_progress=int(rate * stay_s),
        )
        fleet.clock.process(open_load(fleet, popular(self.tasks, seed=1), way, per_s=rate))
        fleet.clock.run(SETTLE_S)
        return fleet

    def record(self, name: str, value: float, unit: str, goal: str | None = None) -> None:
        """Record one number."""
        self.sheet.record(f"scale.{name}", [value], unit=unit, goal=goal)

    @property
    def size(self) -> str:
        """The fleet, in words."""
        return f"{self.replicas} replicas, {self.tasks} tasks"


def main() -> None:
    """Simulate and record the requested parts."""
    parser = figures_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=4, help="simulated, of each part")
    options, sheet = open_sheet(parser)
    study = Study(
        sheet=sheet,
        figures=latest(),
        replicas=options.replicas,
        tasks=options.tasks,
        seconds=options.seconds,
    )
    for part in options.parts:
        PARTS[part](study)


def checks(study: Study) -> None:
    """Compare the simulation with a formula and with a measurement."""
    for servers in SERVERS:
        unit = "difference of the mean wait from Erlang's formula, as a share of it"
        study.record(f"check.mm{servers}", wait_error(servers), unit, "<= 0.05")
    for route in ROUTES:
        found = sorted(cold_share(is_random=route == "random", seed=it) for it in range(3))[1]
        known = measured(study.figures, f"cluster.affinity.cold_share.{route}")
        unit = f"difference of the cold share from the measured {known:g}, as a share of it"
        study.record(f"check.cold.{route}", abs(found - known) / known, unit, "<= 0.15")


def loads(study: Study) -> None:
    """Hit rates and latency over the load, with routing by task and at random."""
    for route in ROUTES:
        for load in LOADS:
            fleet = study.fleet(route, load)
            fleet.clock.run(fleet.clock.now + study.seconds)
            found = since(fleet, SETTLE_S)
            name, unit = f"{route}.l{100 * load:.0f}", f"{study.size}, load {load:g}"
            study.record(f"load.{name}.hits", 1 - cold(found), f"of the requests; {unit}")
            study.record(f"load.{name}.p50_ms", late(found, 50), f"ms; {unit}")
            study.record(f"load.{name}.p99_ms", late(found, 99), f"ms; {unit}")


def loss(study: Study) -> None:
    """Lose a rack: one twentieth of the replicas at once."""
    fleet, lost = study.fleet("affinity", HALF), int(LOST_SHARE * study.replicas)
    fleet.clock.run(fleet.clock.now + study.seconds)
    lost_at = fleet.clock.now
    fleet.lose(range(lost))
    fleet.clock.run(lost_at + 2 * study.seconds)
    before, after = since(fleet, SETTLE_S, lost_at), since(fleet, lost_at)
    unit = f"{study.size}, {lost} of them lost at load {HALF:g}"
    study.record("loss.lost", fleet.num_lost, f"requests lost of {len(after)}; {unit}", "<= 0")
    first = since(fleet, lost_at, lost_at + 1)
    for name, part in (
        ("before", before),
        ("first_s", first),
        ("last_s", since(fleet, fleet.clock.now - 2)),
    ):
        study.record(f"loss.{name}.p99_ms", late(part, 99), f"ms; {unit}")
        study.record(f"loss.{name}.cold", cold(part), f"of the requests; {unit}")
    retried = sum(it.num_tries > 1 for it in after)
    study.record("loss.retried", retried, f"requests that were sent again; {unit}")


def promotions(study: Study) -> None:
    """Promote new versions of the most popular tasks, one after another."""
    fleet = study.fleet("affinity", HALF)
    begun = fleet.clock.now

    def rollout() -> Step:
        for task in range(PROMOTED):
            fleet.promote(task)
            yield fleet.clock.timeout(study.seconds / PROMOTED)

    fleet.clock.run(fleet.clock.process(rollout()))
    fleet.clock.run(fleet.clock.now + 1)
    during = since(fleet, begun)
    unit = f"{study.size}, {PROMOTED} most popular tasks promoted in {study.seconds:g} s"
    study.record("promote.p99_ms", late(during, 99), f"ms; {unit}")
    study.record("promote.cold", cold(during), f"of the requests; {unit}")
    old = sum(it.is_old for it in during) / len(during)
    study.record("promote.old", old, f"of the requests, answered by the version before; {unit}")


def registry(study: Study) -> None:
    """Measure what looks and beats cost PostgreSQL, and simulate the wait of a promotion."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed (apt-get install postgresql)")
    with tempfile.TemporaryDirectory() as folder, private_postgres(binaries) as postgres:
        costs = measure(postgres, folder, rows=1000, calls=300)
    unit = "ms of PostgreSQL's CPU time"
    study.record("registry.look_ms", 1000 * costs.look_s, f"{unit} for a look")
    study.record("registry.beat_ms", 1000 * costs.beat_s, f"{unit} for a beat among few rows")
    study.record(
        "registry.beat_of_1000_ms", 1000 * costs.of_beat(1000), f"{unit} for a beat, 1000 replicas"
    )
    for replicas in FLEETS:
        record_wait(study, costs, replicas)


def record_wait(study: Study, costs: RegistryCosts, replicas: int) -> None:
    """Record the load of the database and the wait of a promotion for one size of a fleet."""
    cores = costs.polling_cores(replicas)
    study.record(f"registry.polling_cores.n{replicas}", cores, "cores that looks keep busy")
    seconds = wait_s(costs, replicas=replicas, cores=DATABASE_CORES, seed=0)
    unit = f"s until all have confirmed, PostgreSQL on {DATABASE_CORES} cores"
    study.record(f"registry.wait_s.n{replicas}", seconds, unit)


def since(fleet: Fleet, begin: float, end: float = float("inf")) -> list[Answer]:
    """Return the requests that began in a span of time and have ended."""
    return [it for it in fleet.answers if begin <= it.started < end]


def cold(answers: Sequence[Answer]) -> float:
    """Return the share of requests that waited for a load."""
    return sum(it.is_cold for it in answers) / len(answers)


def late(answers: Iterable[Answer], rank: float) -> float:
    """Return a percentile of the latency, in milliseconds."""
    return 1000 * percentile(sorted(it.ended - it.started for it in answers), rank)


PARTS: dict[str, Callable[[Study], None]] = {
    "checks": checks,
    "load": loads,
    "loss": loss,
    "promote": promotions,
    "registry": registry,
}


if __name__ == "__main__":
    main()

"""The registry under many replicas: costs measured on a real PostgreSQL, and the simulated wait.

Each replica looks at the generation every 50 ms and writes a row, a beat, after each change that it
has applied. A promotion with `--wait` returns after the beats of all replicas.
"""

import random
import time
from dataclasses import dataclass
from statistics import mean

import simpy

from benchmarks.scale.fleet import Step
from benchmarks.server.replicas import database_seconds
from doubles.drafts import publish_one
from doubles.postgres import PostgresServer
from doubles.replicas import beat
from nunatak_registry import Registry

POLL_S = 0.05
FULL_S = 30.0
"""A wait that has not ended after this time has failed."""
NUM_WAITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCosts:
    """CPU time of PostgreSQL, in seconds."""

    look_s: float
    beat_s: float
    """A beat among few rows."""
    beat_per_row_s: float
    """What each further row adds, because a beat reads the rows of all replicas."""

    def of_beat(self, replicas: int) -> float:
        """Return the CPU time of one beat."""
        return self.beat_s + replicas * self.beat_per_row_s

    def polling_cores(self, replicas: int) -> float:
        """Return the cores that the looks of all replicas take."""
        return replicas * self.look_s / POLL_S


def measure(postgres: PostgresServer, folder: str, *, rows: int, calls: int) -> RegistryCosts:
    """Measure looks and beats of one process among few rows and among many."""
    location = f"{postgres.create_database()}&blobs={folder}"
    with Registry.open(location) as registry:
        publish_one(registry, "tone")
        look_s = cpu_seconds(postgres, lambda: registry.generation(), 10 * calls)
        few = cpu_seconds(postgres, lambda: beat(registry, "one"), calls)
        for number in range(rows):
            beat(registry, f"r{number}")
        many = cpu_seconds(postgres, lambda: beat(registry, "one"), calls)
    per_row = max(0.0, many - few) / rows
    return RegistryCosts(look_s=look_s, beat_s=few, beat_per_row_s=per_row)


def cpu_seconds(postgres: PostgresServer, call, count: int) -> float:
    """Return the CPU seconds of PostgreSQL for one call, in the mean."""
    before = database_seconds(postgres)
    for _ in range(count):
        call()
    # PostgreSQL's processes account for their time with a delay of some milliseconds.
    time.sleep(0.1)
    return (database_seconds(postgres) - before) / count


def wait_s(costs: RegistryCosts, *, replicas: int, cores: int, seed: int) -> float:
    """Return the mean time that a promotion waits for all replicas; `FULL_S` if it never ends."""
    clock, generator = simpy.Environment(), random.Random(seed)
    database = simpy.Resource(clock, cores)
    state = {"revision": 0, "missing": 0}
    done = list[simpy.Event]()

    def use(seconds: float) -> Step:
        with database.request() as turn:
            yield turn
            yield clock.timeout(seconds)

    def replica() -> Step:
        yield clock.timeout(generator.random() * POLL_S)
        seen = 0
        while True:
            revision = state["revision"]
            yield from use(costs.look_s)
            if revision != seen:
                yield from use(costs.of_beat(replicas))
                seen = revision
                state["missing"] -= 1
                if state["missing"] == 0:
                    done[-1].succeed()
            yield clock.timeout(POLL_S)

    for _ in range(replicas):
        clock.process(replica())
    waits = list[float]()
    for _ in range(NUM_WAITS):
        clock.run(clock.now + 1 + generator.random() * POLL_S)
        begun = clock.now
        done.append(clock.event())
        state.update(revision=state["revision"] + 1, missing=replicas)
        clock.run(done[-1] | clock.timeout(FULL_S))
        if not done[-1].processed:
            return FULL_S
        waits.append(clock.now - begun)
    return mean(waits)

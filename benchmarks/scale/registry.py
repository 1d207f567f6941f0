"""The registry under many replicas: costs measured on a real PostgreSQL, and the simulated wait.

Each replica looks at the generation every 50 ms and writes a row, a beat, after each change that it
has applied. A promotion with `--wait` returns after the beats of all replicas.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import simpy
from benchmarks.server.replicas import database_seconds

from benchmarks.scale.fleet import Step, use
from doubles.drafts import publish_one
from doubles.postgres import PostgresServer
from doubles.replicas import beat
from nunatak_registry import Registry

POLL_S = 0.05
FULL_S = 30.0
"""A wait that takes longer is not simulated to its end."""
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
        look_s = cpu_seconds(postgres, registry.generation, 10 * calls)
        few = cpu_seconds(postgres, lambda: beat(registry, "one"), calls)
        for number in range(rows):
            beat(registry, f"r{number}")
        many = cpu_seconds(postgres, lambda: beat(registry, "one"), calls)
    per_row = max(0.0, many - few) / rows
    return RegistryCosts(look_s=look_s, beat_s=few, beat_per_row_s=per_row)


def cpu_seconds(postgres: PostgresServer, call: Callable[[], object], count: int) -> float:
    """Return the CPU seconds of PostgreSQL for one call, in the mean."""
    before = database_seconds(postgres)
    for _ in range(count):
        call()
    # PostgreSQL's processes account for their time with a delay of some milliseconds.
    time.sleep(0.1)
    return (database_seconds(postgres) - before) / count


class Looking:
    """Replicas that look and beat at a database with some cores, on a simulated clock."""

    def __init__(self, costs: RegistryCosts, *, replicas: int, cores: int, seed: int) -> None:
        self._costs, self._replicas = costs, replicas
        self._clock, self._random = simpy.Environment(), random.Random(seed)
        self._database = simpy.Resource(self._clock, cores)
        self._revision, self._num_behind = 0, 0
        self._all_follow = self._clock.event()
        for _ in range(replicas):
            self._clock.process(self._replica())

    def promote(self) -> float:
        """Promote, and return the time until all have confirmed; `FULL_S` if it takes longer."""
        self._clock.run(self._clock.now + 1 + self._random.random() * POLL_S)
        begun = self._clock.now
        self._all_follow = self._clock.event()
        self._revision, self._num_behind = self._revision + 1, self._replicas
        self._clock.run(self._all_follow | self._clock.timeout(FULL_S))
        return self._clock.now - begun

    def _replica(self) -> Step:
        yield self._clock.timeout(self._random.random() * POLL_S)
        applied = 0
        while True:
            revision = self._revision
            yield from use(self._clock, self._database, self._costs.look_s)
            if revision != applied:
                yield from use(self._clock, self._database, self._costs.of_beat(self._replicas))
                applied = revision
                self._num_behind -= 1
                if self._num_behind == 0:
                    self._all_follow.succeed()
            yield self._clock.timeout(POLL_S)


def wait_s(costs: RegistryCosts, *, replicas: int, cores: int, seed: int) -> float:
    """Return the mean time that a promotion waits for all replicas."""
    looking = Looking(costs, replicas=replicas, cores=cores, seed=seed)
    return mean(looking.promote() for _ in range(NUM_WAITS))

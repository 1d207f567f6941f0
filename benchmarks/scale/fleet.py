"""A simulated fleet: replicas with queues and memory, routed as by the shipped HAProxy file.

Each replica has servers for computing, as `servers` requests at a time, and threads for loads. A
request for a task that the replica does not hold waits for a load, and requests for the same task
share the load. The least recently used task leaves. A request at a replica that is gone goes to the
next replica on the ring, as HAProxy retries it.
"""

import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import simpy
from numpy.typing import NDArray

Step = Generator[simpy.Event, Any, None]
Route = Callable[[int], Iterator[int]]
"""The replicas to try for a task, in order."""
PLACES: Final = 1600
"""Places of a replica on the ring: 16 per unit of weight."""
BALANCE: Final = 2
"""Places for requests over the requests in progress: `hash-balance-factor 200`."""
ERRORS: Final = 2
"""Errors until the balancer leaves a replica out: `error-limit 2`."""
TRIES: Final = 3
"""Tries of a request: `retries 2`."""
SPAN: Final = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times of one replica, in seconds."""

    compute_s: float
    load_s: float
    load_threads: int = 2
    servers: int = 1
    draws: bool = False
    """Whether the time of computing is exponential, as the formulas of queues have it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request."""

    started: float
    ended: float
    replica: int
    is_cold: bool
    is_old: bool
    num_tries: int


@dataclass(slots=True)
class Replica:
    """The queue and the memory of one process."""

    compute: simpy.Resource
    loads: simpy.Resource
    poll_at: float
    """Offset of the looks at the registry, in seconds."""
    held: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    """The versions in memory by task, the least recently used first."""
    loading: dict[int, simpy.Event] = field(default_factory=dict[int, simpy.Event])
    num_served: int = 0
    """Requests at this replica now, as a balancer counts them."""
    is_gone: bool = False
    num_errors: int = 0


class Fleet:
    """Replicas on a clock of their own. `answers` collects every request that ends."""

    def __init__(
        self, *, replicas: int, room: int, costs: Costs, seed: int, poll_s: float = 0.05
    ) -> None:
        """`room` is the number of tasks that fit into the memory of one replica."""
        self.clock = simpy.Environment()
        self.random = random.Random(seed)
        self.answers = list[Answer]()
        self.promoted = dict[int, tuple[float, int]]()
        """The time and the number of the newest version of a task, where there is more than one."""
        self._costs, self._room, self._poll_s = costs, room, poll_s
        self.replicas = [
            Replica(
                compute=simpy.Resource(self.clock, costs.servers),
                loads=simpy.Resource(self.clock, costs.load_threads),
                poll_at=self.random.random() * poll_s,
            )
            for _ in range(replicas)
        ]
        places = np.random.default_rng(seed).integers(SPAN, size=replicas * PLACES)
        order = np.argsort(places, kind="stable")
        self._places: list[int] = places[order].tolist()
        self._owners: list[int] = (order // PLACES).tolist()
        self._num_served = 0
        self.num_lost = 0

    def by_task(self, task: int) -> Iterator[int]:
        """Yield the replicas that may answer, as bounded-load hashing orders them."""
        start = bisect_right(self._places, place_of(task))
        free, passed = BALANCE * (self._num_served + 1), set[int]()
        for step in range(len(self._owners)):
            number = self._owners[(start + step) % len(self._owners)]
            if number not in passed and self.replicas[number].num_served < self.places_for_requests(
                number, free
            ):
                yield number
            passed.add(number)

    def places_for_requests(self, number: int, free: int) -> int:
        """Return the places for requests of one replica, as HAProxy divides `free` of them."""
        count = len(self.replicas)
        return max(1, (number + 1) * free // count - number * free // count)

    def at_random(self, task: int) -> Iterator[int]:
        """Yield replicas at random."""
        while True:
            yield self.random.randrange(len(self.replicas))

    def fill(self, tasks_of: Callable[[int], list[int]]) -> None:
        """Put tasks into the memory of each replica, the most popular last."""
        for number, replica in enumerate(self.replicas):
            replica.held = OrderedDict.fromkeys(reversed(tasks_of(number)[: self._room]), 0)

    def warm(self, tasks: Iterator[int], route: Route, *, requests: int, in_progress: int) -> None:
        """Send requests without a clock, so that memory holds what a long time of traffic leaves.

        A request is in progress until `in_progress` later ones have begun.
        """
        running = deque[Replica]()
        for task in islice(tasks, requests):
            replica = self.replicas[next(route(task))]
            replica.held[task] = 0
            replica.held.move_to_end(task)
            if len(replica.held) > self._room:
                replica.held.popitem(last=False)
            replica.num_served += 1
            running.append(replica)
            if len(running) > in_progress:
                running.popleft().num_served -= 1
            self._num_served = len(running)
        for replica in running:
            replica.num_served -= 1
        self._num_served = 0

    def owned(self, num_tasks: int) -> list[list[int]]:
        """Return the tasks whose first replica this is, by replica; a low number is popular."""
        places = np.array([place_of(it) for it in range(num_tasks)])
        starts = np.searchsorted(np.array(self._places), places, side="right")
        found = [list[int]() for _ in self.replicas]
        firsts: list[int] = (starts % len(self._owners)).tolist()
        for task, first in enumerate(firsts):
            found[self._owners[first]].append(task)
        return found

    def lose(self, numbers: range) -> None:
        """Kill replicas: what they were doing is asked again elsewhere."""
        for number in numbers:
            self.replicas[number].is_gone = True

    def promote(self, task: int) -> None:
        """Publish and promote another version of a task."""
        number = self.promoted.get(task, (0.0, 0))[1] + 1
        self.promoted[task] = self.clock.now, number

    def ask(self, task: int, route: Route) -> Step:
        """Send a request and wait for its answer; try the next replica while one is gone."""
        started, tries = self.clock.now, 0
        for number in route(task):
            replica = self.replicas[number]
            if replica.is_gone and replica.num_errors >= ERRORS:
                continue
            if tries == TRIES:
                break
            tries += 1
            is_cold, is_old = yield from self._serve(replica, task)
            if not replica.is_gone:
                answer = Answer(started, self.clock.now, number, is_cold, is_old, tries)
                self.answers.append(answer)
                return
            replica.num_errors += 1
        self.num_lost += 1

    def _serve(self, replica: Replica, task: int) -> Generator[simpy.Event, Any, tuple[bool, bool]]:
        """Load and compute at one replica; return whether the task was cold, and whether old."""
        if replica.is_gone:
            return False, False
        replica.num_served += 1
        self._num_served += 1
        version, is_old = self._version(replica, task)
        is_cold = replica.held.get(task) != version
        if is_cold:
            yield from self._load(replica, task, version)
        else:
            replica.held.move_to_end(task)
        yield from use(self.clock, replica.compute, self._compute_s())
        replica.num_served -= 1
        self._num_served -= 1
        return is_cold, is_old

    def _compute_s(self) -> float:
        mean = self._costs.compute_s
        return self.random.expovariate(1 / mean) if self._costs.draws else mean

    def _version(self, replica: Replica, task: int) -> tuple[int, bool]:
        """Return the version that a replica answers with, and whether a newer one is promoted."""
        if task not in self.promoted:
            return 0, False
        moved, number = self.promoted[task]
        looks = (self.clock.now - replica.poll_at) // self._poll_s
        has_seen = looks * self._poll_s + replica.poll_at >= moved
        return (number, False) if has_seen else (number - 1, True)

    def _load(self, replica: Replica, task: int, version: int) -> Step:
        if task in replica.loading:
            yield replica.loading[task]
            return
        done = replica.loading[task] = self.clock.event()
        yield from use(self.clock, replica.loads, self._costs.load_s)
        replica.held[task] = version
        replica.held.move_to_end(task)
        if len(replica.held) > self._room:
            replica.held.popitem(last=False)
        del replica.loading[task]
        done.succeed()


def use(clock: simpy.Environment, resource: simpy.Resource, seconds: float) -> Step:
    """Wait for a place of a resource, and hold the place for some seconds."""
    turn = resource.request()
    yield turn
    yield clock.timeout(seconds)
    resource.release(turn)


def place_of(task: int) -> int:
    """Return the place of a task on the ring: all bits mixed, as Murmur3 ends."""
    mixed = task & (SPAN - 1)
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) % SPAN
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) % SPAN
    return mixed ^ (mixed >> 16)


def popular(num_tasks: int, seed: int) -> Iterator[int]:
    """Yield tasks by Zipf's law with exponent 1; task 0 is asked the most."""
    heights: NDArray[np.float64] = np.cumsum(1 / np.arange(1, num_tasks + 1))
    generator = np.random.default_rng(seed)
    while True:
        heads: NDArray[np.float64] = generator.random(10_000) * heights[-1]
        found: NDArray[np.intp] = np.searchsorted(heights, heads)
        yield from map(int, found)


def open_load(fleet: Fleet, tasks: Iterator[int], route: Route, *, per_s: float) -> Step:
    """Send requests at random times with a mean rate, whatever the answers do."""
    while True:
        yield fleet.clock.timeout(fleet.random.expovariate(per_s))
        fleet.clock.process(fleet.ask(next(tasks), route))


def caller(fleet: Fleet, tasks: Iterator[int], route: Route) -> Step:
    """Send one request after another, until the tasks end."""
    for task in tasks:
        yield from fleet.ask(task, route)

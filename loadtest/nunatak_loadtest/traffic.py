"""The traffic of a scenario: requests and their times, drawn before the run from the seed alone."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nunatak_loadtest.scenario import (
    Closed,
    Gamma,
    Poisson,
    Popularity,
    Scenario,
    Uniform,
    Zipf,
)
from nunatak_loadtest.texts import TextSource, text_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A request to tasks about a text; `due_s` is the due time in seconds after the start."""

    due_s: float
    tasks: tuple[str, ...]
    text: str


class Requests:
    """An endless draw of requests: tasks by popularity, widths by weight, texts by length."""

    def __init__(self, scenario: Scenario, tasks: Sequence[str], *, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._tasks = tuple(tasks)
        self._cumulative = tuple(accumulate(task_weights(scenario.popularity, len(tasks))))
        self._widths = [width.tasks for width in scenario.widths]
        self._width_weights = [width.weight for width in scenario.widths]
        self._texts: TextSource = text_source(scenario, self._random)

    def draw(self) -> tuple[tuple[str, ...], str]:
        """The next request: distinct tasks, and a text."""
        (width,) = self._random.choices(self._widths, self._width_weights)
        wanted = min(width, len(self._tasks))
        if wanted == len(self._tasks):
            return self._tasks, self._texts.draw()
        chosen = dict[str, None]()
        while len(chosen) < wanted:
            (task,) = self._random.choices(self._tasks, cum_weights=self._cumulative)
            chosen[task] = None
        return tuple(chosen), self._texts.draw()


def plan(
    scenario: Scenario, tasks: Sequence[str], *, seed: int, seconds: float
) -> tuple[Planned, ...]:
    """All requests of an open-loop run; the same arguments give the same plan."""
    requests = Requests(scenario, tasks, seed=seed)
    due_times = arrival_times(scenario.arrivals, seconds=seconds, seed=seed)
    drawn = ((due_s, *requests.draw()) for due_s in due_times)
    return tuple(Planned(due_s=due_s, tasks=chosen, text=text) for due_s, chosen, text in drawn)


def arrival_times(
    arrivals: Closed | Poisson | Gamma, *, seconds: float, seed: int
) -> Iterator[float]:
    """The due times of requests. A closed loop has no due times."""
    match arrivals:
        case Closed():
            return
        case Poisson(rate_per_s=rate):
            shape = 1.0
        case Gamma(rate_per_s=rate, cv=cv):
            shape = 1 / cv**2
    chance = random.Random(seed)  # noqa: S311 - not a secret
    scale = 1 / (shape * rate)
    now = chance.gammavariate(shape, scale)
    while now < seconds and math.isfinite(now):
        yield now
        now += chance.gammavariate(shape, scale)


def task_weights(popularity: Popularity, num_tasks: int) -> tuple[float, ...]:
    """The share of requests of each task, the largest first; the shares add up to one."""
    match popularity:
        case Uniform():
            raw = [1.0] * num_tasks
        case Zipf(exponent=exponent):
            raw = [rank**-exponent for rank in range(1, num_tasks + 1)]
    total = math.fsum(raw)
    return tuple(weight / total for weight in raw)

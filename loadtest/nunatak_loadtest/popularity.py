"""How often each task is asked."""

import math
from collections.abc import Sequence

from nunatak_loadtest.scenario import Popularity, Uniform, Zipf


def task_weights(popularity: Popularity, num_tasks: int) -> tuple[float, ...]:
    """The share of requests of each task, the most asked first; they add up to one."""
    match popularity:
        case Uniform():
            raw = [1.0] * num_tasks
        case Zipf(exponent=exponent):
            raw = [rank**-exponent for rank in range(1, num_tasks + 1)]
    total = math.fsum(raw)
    return tuple(weight / total for weight in raw)


def top_shares(counts: Sequence[float]) -> tuple[float, float]:
    """The share of the most asked task, and of the most asked tenth of all tasks (at least one)."""
    ordered = sorted(counts, reverse=True)
    total = math.fsum(ordered)
    if total == 0:
        return 0.0, 0.0
    tenth = math.ceil(len(ordered) / 10)
    return ordered[0] / total, math.fsum(ordered[:tenth]) / total

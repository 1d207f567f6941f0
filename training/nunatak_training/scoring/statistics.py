"""Statistics: scores as functions of the weights of units.

A unit is a text, a sentence, a question, or a query with its documents. A resample draws whole
units. The score of the data itself counts each unit once. A bootstrap resample counts some units
twice and others not at all, and needs no new prediction. A thousand resamples must take no longer
than an epoch, so scikit-learn is too slow here; its functions are the oracle of the tests.

Axes: units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.evidence import CONFIDENCE, wilson_bounds
from nunatak_training.kinds import Metric

Weights = Float[np.ndarray, " units"]
NUM_RESAMPLES = 1000


class Statistic(Protocol):
    def __call__(self, weights: Weights) -> float:
        """Return the score with a weight for each unit; weight 2 counts a unit twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    num_units: int
    by_metric: Mapping[Metric, Statistic]
    proportions: frozenset[Metric] = frozenset()
    """The metrics that are a share of the units: each unit is right or wrong."""
    confusion: Mapping[tuple[str, str], int] | None = None
    """The number of units of each pair of true and predicted label, if a unit has one label."""

    def value(self, metric: Metric) -> float:
        return self.by_metric[metric](weights_of_all(self.num_units))


def weights_of_all(num_units: int) -> Weights:
    """The weights of the data itself: every unit once."""
    return np.ones(num_units)


def mean_of(values: Float[np.ndarray, " units"]) -> Statistic:
    return lambda weights: float(weights @ values / weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    low: float
    high: float
    method: IntervalMethod


def score_intervals(
    statistics: Statistics, metrics: Sequence[Metric], *, seed: int
) -> Mapping[Metric, Interval]:
    """Return the interval of each metric; the same seed gives the same intervals.

    A proportion has Wilson's interval, all others an interval by bootstrap. A metric has no
    interval if every resample scores the same: a bootstrap of examples that are all right would
    claim that there is no doubt.
    """
    resampled = [metric for metric in metrics if metric not in statistics.proportions]
    found = _bootstrap_intervals(statistics, resampled, seed=seed) if resampled else {}
    for metric in statistics.proportions.intersection(metrics):
        found[metric] = wilson_interval(statistics.value(metric), statistics.num_units)
    return {metric: found[metric] for metric in metrics if metric in found}


def wilson_interval(share: float, count: int) -> Interval:
    low, high = wilson_bounds(share, count)
    return Interval(low=low, high=high, method=IntervalMethod.WILSON)


def _bootstrap_intervals(
    statistics: Statistics, metrics: Sequence[Metric], *, seed: int
) -> dict[Metric, Interval]:
    generator = np.random.default_rng(seed)
    num_units = statistics.num_units
    scores = np.empty((NUM_RESAMPLES, len(metrics)))
    for row in scores:
        drawn = generator.integers(num_units, size=num_units)
        weights = np.bincount(drawn, minlength=num_units).astype(float)
        row[:] = [statistics.by_metric[metric](weights) for metric in metrics]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(scores, [tail, 1 - tail], axis=0)
    differs = scores.min(axis=0) < scores.max(axis=0)
    return {
        metric: Interval(
            low=float(low[column]), high=float(high[column]), method=IntervalMethod.BOOTSTRAP
        )
        for column, metric in enumerate(metrics)
        if differs[column]
    }

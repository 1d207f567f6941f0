"""Statistics: scores as functions of how often each unit counts.

A unit is drawn as a whole: a text, a sentence, a question, or a query with its documents. The score
of the data itself counts each unit once. A bootstrap resample counts some units twice and others
not at all, and needs no new prediction. A thousand resamples must take no longer than an epoch, so
scikit-learn is too slow here; its functions are the oracle of the tests.

Axes: units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

from nunatak_training.kinds import Metric

Weights = Float[np.ndarray, " units"]
Interval = tuple[float, float]
NUM_RESAMPLES = 1000
CONFIDENCE = 0.95


class Statistic(Protocol):
    """A score of weighted units."""

    def __call__(self, weights: Weights) -> float:
        """Return the score when each unit counts as often as its weight says."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The statistics by which a set of predictions can be scored."""

    num_units: int
    by_metric: Mapping[Metric, Statistic]
    confusion: Mapping[tuple[str, str], int] | None = None
    """How often each pair of true and predicted label occurred, where a unit has one label."""

    def value(self, metric: Metric) -> float:
        """Return the score of the data itself."""
        return self.by_metric[metric](weights_of_all(self.num_units))


def weights_of_all(num_units: int) -> Weights:
    """Every unit once."""
    return np.ones(num_units)


def mean_of(values: Float[np.ndarray, " units"]) -> Statistic:
    """The mean of a value that each unit has."""
    return lambda weights: float(weights @ values / weights.sum())


def bootstrap_intervals(
    statistics: Statistics, metrics: Sequence[Metric], *, seed: int
) -> Mapping[Metric, Interval]:
    """Return the interval of each metric; the same seed gives the same intervals."""
    generator = np.random.default_rng(seed)
    num_units = statistics.num_units
    scores = np.empty((NUM_RESAMPLES, len(metrics)))
    for row in scores:
        drawn = generator.integers(num_units, size=num_units)
        weights = np.bincount(drawn, minlength=num_units).astype(float)
        row[:] = [statistics.by_metric[metric](weights) for metric in metrics]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(scores, [tail, 1 - tail], axis=0)
    return {
        metric: (float(low[column]), float(high[column])) for column, metric in enumerate(metrics)
    }

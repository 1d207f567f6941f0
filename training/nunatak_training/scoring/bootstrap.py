"""Confidence intervals by the bootstrap.

Efron and Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13: the percentile interval over
resamples of the dev units, drawn with replacement. It tells what another dev set of this size
might have said of these weights; it does not tell what another seed would have trained.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nunatak_training.metrics import Metric
from nunatak_training.scoring.statistics import Statistics

Interval = tuple[float, float]

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95


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

"""Correlation of predicted with expected values."""

# scipy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import cast

import numpy as np
from jaxtyping import Float

from nunatak_training.scoring.statistics import Statistic, Weights

Values = Float[np.ndarray, " units"]


def pearson(expected: Values, predicted: Values) -> Statistic:
    """Pearson's r; 0 where all values of one side are equal."""
    return lambda weights: _correlation(*_repeated(expected, predicted, weights))


def spearman(expected: Values, predicted: Values) -> Statistic:
    """Spearman's rho: Pearson's r of the ranks, equal values sharing theirs."""

    def of(weights: Weights) -> float:
        right, found = _repeated(expected, predicted, weights)
        return _correlation(_ranks(right), _ranks(found))

    return of


def _repeated(expected: Values, predicted: Values, weights: Weights) -> tuple[Values, Values]:
    times = weights.astype(int)
    return np.repeat(expected, times), np.repeat(predicted, times)


def _correlation(first: Values, second: Values) -> float:
    first, second = first - first.mean(), second - second.mean()
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread > 0 else 0.0


def _ranks(values: Values) -> Values:
    from scipy.stats import rankdata  # noqa: PLC0415 - slow to import, and seldom needed

    return cast("Values", rankdata(values))

"""Scores of predicted values: correlation, and the order of documents."""

# scipy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import cast

import numpy as np
from jaxtyping import Float

from nunatak_training.scoring.statistics import Statistic, Weights

Values = Float[np.ndarray, " units"]


def pearson(expected: Values, predicted: Values) -> Statistic:
    """Pearson's r; 0 if all values of one side are equal."""
    return lambda weights: _correlation(*_repeated(expected, predicted, weights))


def spearman(expected: Values, predicted: Values) -> Statistic:
    """Spearman's rho: Pearson's r of the ranks; equal values have equal ranks."""

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
    from scipy.stats import rankdata  # noqa: PLC0415 - slow to import, and rarely needed

    return cast("Values", rankdata(values))


def ndcg(gains: Values, scores: Values) -> float:
    """Normalised discounted cumulative gain (Jarvelin and Kekalainen 2002, eq. 2 and sec. 2.3).

    Gains are linear and not negative, the largest above 0; documents of equal scores keep their
    order.
    """
    discounts = 1 / np.log2(np.arange(2, len(gains) + 2))
    return float(gains[_order(scores)] @ discounts) / float(np.sort(gains)[::-1] @ discounts)


def reciprocal_rank(gains: Values, scores: Values) -> float:
    """One divided by the place of the first document with a gain above 0."""
    return 1 / (1 + int((gains[_order(scores)] > 0).argmax()))


def _order(scores: Values) -> np.ndarray:
    return np.argsort(-scores, kind="stable")

"""Scores of predictions, and their confidence intervals."""

from nunatak_training.scoring.statistics import (
    Interval,
    Statistic,
    Statistics,
    mean_of,
    score_intervals,
    weights_of_all,
)

__all__ = [
    "Interval",
    "Statistic",
    "Statistics",
    "mean_of",
    "score_intervals",
    "weights_of_all",
]

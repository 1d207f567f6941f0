"""Scores of predictions, and their confidence intervals."""

from nunatak_training.scoring.statistics import (
    Interval,
    Statistic,
    Statistics,
    bootstrap_intervals,
    mean_of,
    weights_of_all,
)

__all__ = [
    "Interval",
    "Statistic",
    "Statistics",
    "bootstrap_intervals",
    "mean_of",
    "weights_of_all",
]

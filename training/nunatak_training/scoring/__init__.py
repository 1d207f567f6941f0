"""Scores of predictions, and how sure the examples make us of them."""

from nunatak_training.scoring.bootstrap import Interval, bootstrap_intervals
from nunatak_training.scoring.statistics import Statistic, Statistics, mean_of, weights_of_all

__all__ = [
    "Interval",
    "Statistic",
    "Statistics",
    "bootstrap_intervals",
    "mean_of",
    "weights_of_all",
]

"""Scores of predictions, and their confidence intervals."""

from nunatak_training.scoring.statistics import (
    Interval,
    Statistic,
    Statistics,
    mean_of,
    score_intervals,
)

__all__ = ["Interval", "Statistic", "Statistics", "mean_of", "score_intervals"]

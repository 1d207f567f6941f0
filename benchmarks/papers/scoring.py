"""The score of predicted labels, one per text or word, by the metrics of training."""

from collections.abc import Sequence

from nunatak_training.kinds import Metric
from nunatak_training.scoring.statistics import Statistics, count_items, placed


def score(
    metric: Metric,
    expected: Sequence[str],
    predicted: Sequence[str],
    *,
    positive_label: str | None = None,
) -> float:
    """Score predicted labels; `Metric.F1` is the F1 of `positive_label`."""
    names = sorted({*expected, *predicted, *(() if positive_label is None else (positive_label,))})
    right, found = (placed([it] for it in units) for units in (expected, predicted))
    counts = count_items(names, right, found, positive_label)
    statistics = Statistics(num_units=len(expected), by_metric=counts.statistics(metric))
    return statistics.value(metric)

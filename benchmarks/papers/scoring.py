"""The score of predicted labels, one per text or word, by the metrics of training."""

from collections.abc import Sequence

from nunatak_training.kinds import Metric
from nunatak_training.scoring.scores import count_pairs, label_statistics
from nunatak_training.scoring.statistics import Statistics


def score(
    metric: Metric,
    expected: Sequence[str],
    predicted: Sequence[str],
    *,
    positive_label: str | None = None,
) -> float:
    """Score predicted labels; `Metric.F1` is the F1 of `positive_label`."""
    names = {*expected, *predicted, *(() if positive_label is None else (positive_label,))}
    number_of = {name: number for number, name in enumerate(sorted(names))}
    counts = count_pairs(
        [[number_of[name]] for name in expected],
        [[number_of[name]] for name in predicted],
        num_labels=len(number_of),
    )
    positive = None if positive_label is None else number_of[positive_label]
    found = label_statistics(counts, positive)
    return Statistics(num_units=len(expected), by_metric=found).value(metric)

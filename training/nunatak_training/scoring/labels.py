"""Scores of texts that have one label each."""

from collections import Counter
from collections.abc import Mapping, Sequence

from nunatak_training.metrics import Metric
from nunatak_training.scoring.counts import (
    LabelCounts,
    accuracy,
    count_pairs,
    f1_macro,
    f1_micro,
    f1_of,
    matthews,
)
from nunatak_training.scoring.statistics import Statistic, Statistics

LABEL_METRICS = (
    Metric.ACCURACY,
    Metric.F1,
    Metric.F1_MACRO,
    Metric.F1_MICRO,
    Metric.MATTHEWS_CORRELATION,
)


def label_statistics(counts: LabelCounts, positive: int | None) -> Mapping[Metric, Statistic]:
    """Return all scores of labels; `Metric.F1` is that of the positive label, if there is one."""
    found: dict[Metric, Statistic] = {
        Metric.ACCURACY: accuracy(counts),
        Metric.F1_MACRO: f1_macro(counts),
        Metric.F1_MICRO: f1_micro(counts),
        Metric.MATTHEWS_CORRELATION: matthews(counts),
    }
    if positive is not None:
        found[Metric.F1] = f1_of(counts, positive)
    return found


def score(
    metric: Metric,
    expected: Sequence[str],
    predicted: Sequence[str],
    *,
    positive_label: str | None = None,
) -> float:
    """Score predicted labels, one a text.

    `positive_label` is the label whose F1 `Metric.F1` reports. The F1 of a label that is never
    predicted, or never expected, is 0.

    Raises:
        KeyError: the metric is not one of `LABEL_METRICS`, or needs a positive label.
    """
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


def confusion(expected: Sequence[str], predicted: Sequence[str]) -> Mapping[tuple[str, str], int]:
    """Count how often each pair of true and predicted label occurred."""
    return Counter(zip(expected, predicted, strict=True))

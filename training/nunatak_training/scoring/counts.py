"""Scores from counts of labels: accuracy, the F1 family, Matthews.

Each score needs three counts per label: expected, predicted, and both (hits). The counted units are
texts, labels of texts, tokens or entities.

Axes: events = one label of one unit (unit, label), labels.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from nunatak_training.kinds import Metric
from nunatak_training.scoring.statistics import Statistic, Weights

Events = Int[np.ndarray, "events 2"]
PerLabel = Float[np.ndarray, " labels"]
Tally = tuple[PerLabel, PerLabel, PerLabel]
"""The three counts: hits, expected, predicted."""
LABEL_METRICS = (
    Metric.ACCURACY,
    Metric.F1,
    Metric.F1_MACRO,
    Metric.F1_MICRO,
    Metric.MATTHEWS_CORRELATION,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelCounts:
    """The expected and the predicted labels of each unit."""

    num_labels: int
    hits: Events
    expected: Events
    predicted: Events

    def tally(self, weights: Weights) -> Tally:
        hits, expected, predicted = (
            np.bincount(events[:, 1], weights[events[:, 0]], minlength=self.num_labels)
            for events in (self.hits, self.expected, self.predicted)
        )
        return hits, expected, predicted


def count_pairs(
    expected: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], *, num_labels: int
) -> LabelCounts:
    """Count labels by place: a hit is the same label in the same place of a unit."""
    return LabelCounts(
        num_labels=num_labels,
        hits=_events(
            (unit, right)
            for unit, pair in enumerate(zip(expected, predicted, strict=True))
            for right, found in zip(*pair, strict=True)
            if right == found
        ),
        expected=_events((unit, label) for unit, row in enumerate(expected) for label in row),
        predicted=_events((unit, label) for unit, row in enumerate(predicted) for label in row),
    )


def count_sets(
    expected: Sequence[frozenset[tuple[int, ...]]],
    predicted: Sequence[frozenset[tuple[int, ...]]],
    *,
    num_labels: int,
) -> LabelCounts:
    """Count items of units, such as entities; the first number of an item is its label."""
    hits = [right & found for right, found in zip(expected, predicted, strict=True)]
    hit, right, found = (
        _events((unit, thing[0]) for unit, things in enumerate(units) for thing in sorted(things))
        for units in (hits, expected, predicted)
    )
    return LabelCounts(num_labels=num_labels, hits=hit, expected=right, predicted=found)


def accuracy(counts: LabelCounts) -> Statistic:
    """Share of the places with the right label."""

    def of(weights: Weights) -> float:
        hits, expected, _ = counts.tally(weights)
        return _ratio(hits.sum(), expected.sum())

    return of


def f1_micro(counts: LabelCounts) -> Statistic:
    def of(weights: Weights) -> float:
        hits, expected, predicted = counts.tally(weights)
        return _ratio(2 * hits.sum(), expected.sum() + predicted.sum())

    return of


def f1_macro(counts: LabelCounts) -> Statistic:
    """Mean of the F1 of all labels that were expected or predicted."""

    def of(weights: Weights) -> float:
        hits, expected, predicted = counts.tally(weights)
        total = expected + predicted
        occurs = total > 0
        return float((2 * hits[occurs] / total[occurs]).mean()) if occurs.any() else 0.0

    return of


def f1_of(counts: LabelCounts, label: int) -> Statistic:
    """F1 of one label; 0 if the label is never expected and never predicted."""

    def of(weights: Weights) -> float:
        hits, expected, predicted = counts.tally(weights)
        return _ratio(2 * hits[label], expected[label] + predicted[label])

    return of


def matthews(counts: LabelCounts) -> Statistic:
    """Matthews correlation of any number of labels (Gorodkin 2004, eq. 8); 0 where undefined."""

    def of(weights: Weights) -> float:
        hits, expected, predicted = counts.tally(weights)
        total = expected.sum()
        covariance = hits.sum() * total - expected @ predicted
        spread = (total**2 - expected @ expected) * (total**2 - predicted @ predicted)
        return _ratio(covariance, float(np.sqrt(spread)))

    return of


def _events(found: Iterable[tuple[int, int]]) -> Events:
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def label_statistics(counts: LabelCounts, positive: int | None) -> Mapping[Metric, Statistic]:
    """Return all scores of labels; `Metric.F1` is the F1 of the positive label, if there is one."""
    found: dict[Metric, Statistic] = {
        Metric.ACCURACY: accuracy(counts),
        Metric.F1_MACRO: f1_macro(counts),
        Metric.F1_MICRO: f1_micro(counts),
        Metric.MATTHEWS_CORRELATION: matthews(counts),
    }
    if positive is not None:
        found[Metric.F1] = f1_of(counts, positive)
    return found


def confusion(expected: Sequence[str], predicted: Sequence[str]) -> Mapping[tuple[str, str], int]:
    return Counter(zip(expected, predicted, strict=True))

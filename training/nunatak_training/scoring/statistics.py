"""Statistics: scores as functions of the weights of units.

A unit is a text, a sentence, a question, or a query with its documents. A resample draws whole
units. The score of the data itself counts each unit once. A bootstrap resample counts some units
twice and others not at all, and needs no new prediction. A thousand resamples must take no longer
than an epoch, so scikit-learn is too slow here; its functions are the oracle of the tests.

Label scores (accuracy, the F1 family, Matthews) need three counts per label: expected, predicted,
and both (hits). The counted units are texts, labels of texts, tokens or entities.

Entities: the schemes are BIO, as CoNLL-2003 and its `conlleval` read it, and BIOES or BILOU. `B-X`
begins an entity. `I-X` continues an entity of the same type, and begins one if there is none to
continue. `E-X` or `L-X` does the same and ends it. `S-X` or `U-X` is a whole entity.

Answers: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"
(arXiv:1606.05250), sec. 6.1: punctuation, case and articles are ignored, the best of the right
answers counts. For a question without an answer, only an empty answer is right (Rajpurkar et al.
2018).

Axes: events = one label of one unit (unit, label), labels, units.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.evidence import CONFIDENCE, wilson_bounds
from nunatak_training.kinds import Metric

Weights = Float[np.ndarray, " units"]
NUM_RESAMPLES = 1000
ROUNDING = 1e-12
"""Scores that differ by less are equal: the order of a sum moves its last bits."""


class Statistic(Protocol):
    def __call__(self, weights: Weights) -> float:
        """Return the score with a weight for each unit; weight 2 counts a unit twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    num_units: int
    by_metric: Mapping[Metric, Statistic]
    proportions: frozenset[Metric] = frozenset()
    """The metrics that are a share of the units: each unit is right or wrong."""
    confusion: Mapping[tuple[str, str], int] | None = None
    """The number of units of each pair of true and predicted label, if a unit has one label."""

    def value(self, metric: Metric) -> float:
        return self.by_metric[metric](weights_of_all(self.num_units))


def weights_of_all(num_units: int) -> Weights:
    """The weights of the data itself: every unit once."""
    return np.ones(num_units)


def mean_of(values: Float[np.ndarray, " units"]) -> Statistic:
    return lambda weights: float(weights @ values / weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    low: float
    high: float
    method: IntervalMethod


def score_intervals(
    statistics: Statistics, metrics: Sequence[Metric], *, seed: int
) -> Mapping[Metric, Interval]:
    """Return the interval of each metric; the same seed gives the same intervals.

    A proportion has Wilson's interval, all others an interval by bootstrap. A metric has no
    interval if every resample scores the same: a bootstrap of examples that are all right would
    claim that there is no doubt.
    """
    resampled = [metric for metric in metrics if metric not in statistics.proportions]
    found = _bootstrap_intervals(statistics, resampled, seed=seed) if resampled else {}
    for metric in statistics.proportions.intersection(metrics):
        found[metric] = wilson_interval(statistics.value(metric), statistics.num_units)
    return {metric: found[metric] for metric in metrics if metric in found}


def wilson_interval(share: float, count: int) -> Interval:
    low, high = wilson_bounds(share, count)
    return Interval(low=low, high=high, method=IntervalMethod.WILSON)


def _bootstrap_intervals(
    statistics: Statistics, metrics: Sequence[Metric], *, seed: int
) -> dict[Metric, Interval]:
    generator = np.random.default_rng(seed)
    num_units = statistics.num_units
    scores = np.empty((NUM_RESAMPLES, len(metrics)))
    for row in scores:
        drawn = generator.integers(num_units, size=num_units)
        weights = np.bincount(drawn, minlength=num_units).astype(float)
        row[:] = [statistics.by_metric[metric](weights) for metric in metrics]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(scores, [tail, 1 - tail], axis=0)
    differs = np.ptp(scores, axis=0) > ROUNDING
    return {
        metric: Interval(
            low=float(low[column]), high=float(high[column]), method=IntervalMethod.BOOTSTRAP
        )
        for column, metric in enumerate(metrics)
        if differs[column]
    }


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


Entity = tuple[str, int, int]
"""An entity: its type, its first word, and the position after its last word."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def uses_bio(tags: Sequence[str]) -> bool:
    """Whether a set of tags marks entities, and not single words."""
    return any(tag.startswith("B-") for tag in tags)


def entities_in(tags: Sequence[str]) -> list[Entity]:
    """Return the entities in the tags of a sentence, in order."""
    found, open_kind = list[Entity](), ""
    for position, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        kind *= mark in set("BIELSU")
        if kind:
            begin = found.pop()[1] if mark in "IEL" and kind == open_kind else position
            found.append((kind, begin, position + 1))
        open_kind = kind if mark in "BI" else ""
    return found


def exact_match(predicted: str, expected: Sequence[str]) -> float:
    words = _words(predicted)
    return float(any(words == _words(answer) for answer in expected or ("",)))


def overlap_f1(predicted: str, expected: Sequence[str]) -> float:
    """F1 of the words of the answer and of the best right answer."""
    return max(_f1(_words(predicted), _words(answer)) for answer in expected or ("",))


def _f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


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
    # The mean of equal values is rounded, so their differences to it need not be 0.
    if not (np.ptp(first) and np.ptp(second)):
        return 0.0
    first, second = first - first.mean(), second - second.mean()
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread > 0 else 0.0


def _ranks(values: Values) -> Values:
    """Return the place of each value; equal values share the mean of their places."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[at]
    return np.where(np.isnan(values), np.nan, ranks)


def ndcg(gains: Values, scores: Values) -> float:
    """Normalised discounted cumulative gain (Jarvelin and Kekalainen 2002, eq. 2 and sec. 2.3).

    Gains are linear and not negative, the largest above 0.
    """
    discounts = 1 / np.log2(np.arange(2, len(gains) + 2))
    ranked = gains[best_first(gains, scores)]
    return float(ranked @ discounts) / float(-np.sort(-gains) @ discounts)


def reciprocal_rank(gains: Values, scores: Values) -> float:
    """One divided by the place of the first document with a gain above 0."""
    return 1 / (1 + int((gains[best_first(gains, scores)] > 0).argmax()))


def best_first(gains: Values, scores: Values) -> np.ndarray:
    """Order by score, and equal scores by gain, least first.

    In the order of the data, a task that scores all documents alike would be right: data often has
    the relevant documents first.
    """
    return np.lexsort((gains, -scores))

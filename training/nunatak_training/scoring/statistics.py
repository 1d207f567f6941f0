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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.evidence import CONFIDENCE, MetricRecord, wilson_bounds
from nunatak_training.data.examples import ExampleSet
from nunatak_training.kinds import Metric

Weights = Float[np.ndarray, " units"]
NUM_RESAMPLES = 1000
ROUNDING = 1e-12
"""Scores that differ by less are equal: the order of a sum moves its last bits."""


Statistic = Callable[[Weights], float]
"""The score with a weight for each unit; weight 2 counts a unit twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    num_units: int
    by_metric: Mapping[Metric, Statistic]
    proportions: frozenset[Metric] = frozenset()
    """The metrics that are a share of the units: each unit is right or wrong."""
    confusion: Mapping[tuple[str, str], int] | None = None
    """The number of texts or words of each pair of true and predicted label, if these have one."""
    counts: "LabelCounts | None" = None
    """Of the labels that have scores of their own."""
    misses: Sequence[float] = ()
    """The error of each example: 0 for a right answer, else 1, or the absolute error of a value."""

    def value(self, metric: Metric) -> float:
        return self.by_metric[metric](weights_of_all(self.num_units))

    def scores(
        self, metrics: Iterable[Metric], examples: ExampleSet, *, seed: int
    ) -> dict[Metric, MetricRecord]:
        """Return the records of scores on examples; the same seed gives the same intervals.

        A proportion has Wilson's interval, all others an interval by bootstrap. A score has no
        interval if every resample scores the same: a bootstrap of examples that are all right would
        claim that there is no doubt.
        """
        values = {metric: self.value(metric) for metric in metrics}
        found = bootstrap_intervals(self, [it for it in values if it not in self.proportions], seed)
        methods = dict.fromkeys(found, IntervalMethod.BOOTSTRAP)
        for metric in self.proportions & values.keys():
            found[metric] = wilson_bounds(values[metric], self.num_units)
            methods[metric] = IntervalMethod.WILSON
        digest = examples.digest
        return {
            metric: MetricRecord(
                name=metric.value,
                value=value,
                interval=found.get(metric),
                interval_method=methods.get(metric),
                data_digest=digest,
                num_examples=len(examples),
            )
            for metric, value in values.items()
        }


def weights_of_all(num_units: int) -> Weights:
    """The weights of the data itself: every unit once."""
    return np.ones(num_units)


def mean_of(values: Float[np.ndarray, " units"]) -> Statistic:
    return lambda weights: float(weights @ values / weights.sum())


def bootstrap_intervals(
    statistics: Statistics, metrics: Sequence[Metric], seed: int
) -> dict[Metric, tuple[float, float]]:
    if not metrics:
        return {}
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
        metric: (float(low[column]), float(high[column]))
        for column, metric in enumerate(metrics)
        if differs[column]
    }


Events = Int[np.ndarray, "events 2"]
PerLabel = Float[np.ndarray, " labels"]
Item = tuple[str, *tuple[int, ...]]
"""A label that is counted, and what tells its places in a unit apart."""


LABEL_METRICS = (
    Metric.ACCURACY,
    Metric.F1,
    Metric.F1_MACRO,
    Metric.F1_MICRO,
    Metric.MATTHEWS_CORRELATION,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelCounts:
    labels: Sequence[str]
    positive: str | None
    """The label that `Metric.F1` is of."""
    hits: Events
    expected: Events
    predicted: Events

    def tally(self, weights: Weights) -> tuple[PerLabel, PerLabel, PerLabel]:
        """The three counts: hits, expected, predicted."""
        hits, expected, predicted = (
            np.bincount(events[:, 1], weights[events[:, 0]], minlength=len(self.labels))
            for events in (self.hits, self.expected, self.predicted)
        )
        return hits, expected, predicted

    def statistics(self, *metrics: Metric) -> dict[Metric, Statistic]:
        """The scores of labels; the F1 of the positive label only if there is one."""
        known = (it for it in metrics if it is not Metric.F1 or self.positive is not None)
        return {metric: partial(self._score, metric) for metric in known}

    def _score(self, metric: Metric, weights: Weights) -> float:
        hits, expected, predicted = self.tally(weights)
        both = expected + predicted
        match metric:
            case Metric.ACCURACY:
                return _ratio(hits.sum(), expected.sum())
            case Metric.F1_MICRO:
                return _ratio(2 * hits.sum(), both.sum())
            case Metric.F1_MACRO:
                # Of the labels that were expected or predicted.
                occurs = both > 0
                return float((2 * hits[occurs] / both[occurs]).mean()) if occurs.any() else 0.0
            case Metric.F1 if self.positive is not None:
                label = self.labels.index(self.positive)
                return _ratio(2 * hits[label], both[label])
            case Metric.MATTHEWS_CORRELATION:
                # Of any number of labels (Gorodkin 2004, eq. 8); 0 where undefined.
                total = expected.sum()
                covariance = hits.sum() * total - expected @ predicted
                spread = (total**2 - expected @ expected) * (total**2 - predicted @ predicted)
                return _ratio(covariance, float(np.sqrt(spread)))
            case _:
                raise ValueError(f"{metric} is no score of labels")


def count_items(
    labels: Sequence[str],
    expected: Iterable[Iterable[Item]],
    predicted: Iterable[Iterable[Item]],
    positive: str | None = None,
) -> LabelCounts:
    """Count the items of units, such as labels or entities; a hit is an item of both."""
    number_of = {label: number for number, label in enumerate(labels)}
    right, found = ([frozenset(it) for it in units] for units in (expected, predicted))
    both = [own & other for own, other in zip(right, found, strict=True)]
    hits, right, found = (
        np.array(
            [(unit, number_of[it[0]]) for unit, items in enumerate(units) for it in items],
            dtype=np.int64,
        ).reshape(-1, 2)
        for units in (both, right, found)
    )
    return LabelCounts(labels=labels, positive=positive, hits=hits, expected=right, predicted=found)


def placed(rows: Iterable[Iterable[str]]) -> list[list[Item]]:
    """The items of labels that only count in their place."""
    return [[(name, place) for place, name in enumerate(row)] for row in rows]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


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
    return lambda weights: _correlation(expected, predicted, weights)


def spearman(expected: Values, predicted: Values) -> Statistic:
    """Spearman's rho: Pearson's r of the ranks; equal values have equal ranks."""
    right, found = _ranks(expected), _ranks(predicted)
    return lambda weights: _correlation(right(weights), found(weights), weights)


def _ranks(values: Values) -> Callable[[Weights], Values]:
    """The ranks of values of which each occurs as often as its weight says."""
    _, place = np.unique(values, return_inverse=True)

    def of(weights: Weights) -> Values:
        times = np.bincount(place, weights)
        ranks = np.cumsum(times) - (times - 1) / 2
        return np.where(np.isnan(values), np.nan, ranks[place])

    return of


def _correlation(first: Values, second: Values, weights: Weights) -> float:
    drawn = weights > 0
    first, second, weights = first[drawn], second[drawn], weights[drawn]
    # The mean of equal values is rounded, so their differences to it need not be 0.
    if not (np.ptp(first) and np.ptp(second)):
        return 0.0
    total = weights.sum()
    first, second = first - weights @ first / total, second - weights @ second / total
    spread = float(np.sqrt((weights @ first**2) * (weights @ second**2)))
    return float(weights @ (first * second)) / spread if spread > 0 else 0.0


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

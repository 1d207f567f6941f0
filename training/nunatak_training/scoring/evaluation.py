"""Evaluation: all scores of a task, from the answers of the task to labelled examples.

The scores are the scores of training, computed from answers and not from logits. So the same scores
hold for a version in this process and for a version on a server.

Axes: units.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypedDict, cast

import numpy as np

from nunatak_training.data.examples import Answers, ExampleSet, LabelSet, Relevance, TaggedWords
from nunatak_training.data.splits import majority
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.scoring.calibration import calibration_error
from nunatak_training.scoring.statistics import (
    Interval,
    LabelCounts,
    Statistic,
    Statistics,
    Values,
    accuracy,
    best_first,
    confusion,
    count_pairs,
    count_sets,
    entities_in,
    exact_match,
    f1_macro,
    f1_micro,
    f1_of,
    label_statistics,
    mean_of,
    ndcg,
    overlap_f1,
    pearson,
    reciprocal_rank,
    score_intervals,
    spearman,
    uses_bio,
    weights_of_all,
    wilson_interval,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleAnswer:
    value: str | float | tuple[str, ...]
    """By the kind of task: a label, an answer, a value, the score of a document, all labels that
    apply, or the tag of each word."""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """The probability of each label, of tasks that classify whole texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReport:
    label: str
    precision: float
    recall: float
    f1: float
    num_expected: int
    num_predicted: int
    precision_interval: Interval | None
    """At 95 %; None if the label was never predicted."""
    recall_interval: Interval | None
    """At 95 %; None if the label was never expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    metrics: Mapping[Metric, float]
    intervals: Mapping[Metric, Interval]
    """At 95 %; a score may have none (see `score_intervals`)."""
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """The mean absolute error and the root of the mean squared error of a regression."""
    majority: tuple[str, float] | None = None
    """The most frequent label and its share, which a constant answer would score."""
    labels: tuple[LabelReport, ...] = ()
    confusion: Mapping[tuple[str, str], int] | None = None
    """The number of units of each pair of true and predicted label, if a unit has one label."""
    calibration_error: float | None = None
    """The expected calibration error, of tasks that classify whole texts."""
    misses: tuple[float, ...]
    """The error of each example: 0 for a right answer, else 1, or the absolute error of a value."""


def evaluation_of(
    kind: TaskKind, labels: Sequence[str], examples: ExampleSet, said: Sequence[ExampleAnswer]
) -> Evaluation:
    """Score the answers of a task with these labels to examples, one answer for each example.

    Raises:
        KeyError: an example has a label that the task does not know.
        TypeError: the examples are of another kind of task.
    """
    match kind:
        case TaskKind.SINGLE_LABEL:
            return _single_label(labels, examples.labels(str), said)
        case TaskKind.MULTI_LABEL:
            return _multi_label(labels, examples.labels(LabelSet), said)
        case TaskKind.REGRESSION:
            return _regression(examples.labels(float), said)
        case TaskKind.TOKEN_CLASSIFICATION:
            return _tags(labels, examples.labels(TaggedWords), said)
        case TaskKind.QUESTION_ANSWERING:
            return _answers(examples.labels(Answers), said)
        case TaskKind.RANKING:
            return _ranking(examples.labels(Relevance), said)


def _single_label(
    labels: Sequence[str], expected: Sequence[str], said: Sequence[ExampleAnswer]
) -> Evaluation:
    predicted = [cast("str", it.value) for it in said]
    statistics, counts = label_pair_statistics(labels, expected, predicted)
    is_right = np.array(expected) == np.array(predicted)
    confidences = [it.scores[label] for it, label in zip(said, predicted, strict=True)]
    return Evaluation(
        **_scores(statistics),
        majority=majority(expected),
        labels=_reports(labels, counts, len(said)),
        confusion=statistics.confusion,
        calibration_error=calibration_error(np.array(confidences), is_right.astype(float)),
        misses=tuple(map(float, ~is_right)),
    )


def _multi_label(
    labels: Sequence[str], expected: Sequence[LabelSet], said: Sequence[ExampleAnswer]
) -> Evaluation:
    statistics, counts, misses = label_set_statistics(
        labels, [it.names for it in expected], [cast("tuple[str, ...]", it.value) for it in said]
    )
    pairs = [
        (it.scores[label], label in own.names)
        for it, own in zip(said, expected, strict=True)
        for label in labels
    ]
    confidences, outcomes = np.array(pairs, dtype=float).T
    return Evaluation(
        **_scores(statistics),
        labels=_reports(labels, counts, len(said)),
        calibration_error=calibration_error(confidences, outcomes),
        misses=tuple(misses),
    )


def _regression(expected: Sequence[float], said: Sequence[ExampleAnswer]) -> Evaluation:
    right, found = np.array(expected, dtype=float), _numbers(said)
    errors = np.abs(right - found)
    return Evaluation(
        **_scores(value_statistics(right, found)),
        errors={
            "mean_absolute_error": float(errors.mean()),
            "root_mean_squared_error": float(np.sqrt((errors**2).mean())),
        },
        misses=tuple(map(float, errors)),
    )


def _tags(
    labels: Sequence[str], expected: Sequence[TaggedWords], said: Sequence[ExampleAnswer]
) -> Evaluation:
    right = [[word.tag for word in it.words] for it in expected]
    found = [list(cast("tuple[str, ...]", it.value)) for it in said]
    statistics, kinds, counts = tag_statistics(labels, right, found)
    return Evaluation(
        **_scores(statistics),
        labels=_reports(kinds, counts, len(said)),
        confusion=confusion(list(chain.from_iterable(right)), list(chain.from_iterable(found))),
        misses=tuple(float(own != other) for own, other in zip(right, found, strict=True)),
    )


def _answers(expected: Sequence[Answers], said: Sequence[ExampleAnswer]) -> Evaluation:
    pairs = [
        (cast("str", it.value), [span.text for span in own.spans])
        for it, own in zip(said, expected, strict=True)
    ]
    return Evaluation(
        **_scores(answer_statistics(pairs)), misses=tuple(1 - exact_match(*it) for it in pairs)
    )


def _ranking(expected: Sequence[Relevance], said: Sequence[ExampleAnswer]) -> Evaluation:
    scores = _numbers(said)
    statistics, gains, groups = ranking_statistics(expected, scores)
    misses = np.zeros(len(said))
    for group in groups:
        first = group[int(best_first(gains[group], scores[group])[0])]
        misses[first] = float(gains[first] <= 0)
    return Evaluation(**_scores(statistics), misses=tuple(map(float, misses)))


def _numbers(said: Sequence[ExampleAnswer]) -> Values:
    return np.array([cast("float", it.value) for it in said], dtype=float)


def label_pair_statistics(
    labels: Sequence[str],
    expected: Sequence[str],
    predicted: Sequence[str],
    positive: int | None = None,
) -> tuple[Statistics, LabelCounts]:
    """Return the scores of labels, one for each text, and what is counted."""
    counts = _pairs(labels, [[it] for it in expected], [[it] for it in predicted])
    statistics = Statistics(
        num_units=len(expected),
        by_metric=label_statistics(counts, positive),
        # With one label per text, micro F1 equals the accuracy.
        proportions=frozenset({Metric.ACCURACY, Metric.F1_MICRO}),
        confusion=confusion(expected, predicted),
    )
    return statistics, counts


def label_set_statistics(
    labels: Sequence[str],
    expected: Sequence[Collection[str]],
    predicted: Sequence[Collection[str]],
    positive: int | None = None,
) -> tuple[Statistics, LabelCounts, list[float]]:
    """Return the scores of sets of labels, what is counted, and the misses.

    A text whose labels are not all right is a miss.
    """
    number_of = {label: number for number, label in enumerate(labels)}
    right, said = (
        [frozenset((number_of[name],) for name in names) for names in units]
        for units in (expected, predicted)
    )
    counts = count_sets(right, said, num_labels=len(labels))
    misses = [float(own != other) for own, other in zip(right, said, strict=True)]
    found: dict[Metric, Statistic] = {
        Metric.F1_MICRO: f1_micro(counts),
        Metric.F1_MACRO: f1_macro(counts),
        Metric.ACCURACY: mean_of(1 - np.array(misses)),
    }
    if positive is not None:
        found[Metric.F1] = f1_of(counts, positive)
    statistics = Statistics(
        num_units=len(misses), by_metric=found, proportions=frozenset({Metric.ACCURACY})
    )
    return statistics, counts, misses


def value_statistics(expected: Values, predicted: Values) -> Statistics:
    """Return the scores of values: correlations, which scale and mean do not change."""
    return Statistics(
        num_units=len(expected),
        by_metric={
            Metric.SPEARMAN: spearman(expected, predicted),
            Metric.PEARSON: pearson(expected, predicted),
        },
    )


def tag_statistics(
    tags: Sequence[str], expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[Statistics, Sequence[str], LabelCounts]:
    """Return the scores of the tags of sentences, and what is counted: entities, if tags mark them.

    Besides the scores: the types of entities and their counts, or the tags and theirs.
    """
    labels, counts = tags, _pairs(tags, expected, predicted)
    found: dict[Metric, Statistic] = {
        Metric.ACCURACY: accuracy(counts),
        Metric.F1_MACRO: f1_macro(counts),
        Metric.F1_MICRO: f1_micro(counts),
    }
    if uses_bio(tags):
        labels = sorted({tag.partition("-")[2] for tag in tags} - {""})
        counts = _entities(labels, expected, predicted)
        found = {Metric.ENTITY_F1: f1_micro(counts), **found}
    return Statistics(num_units=len(expected), by_metric=found), labels, counts


def answer_statistics(pairs: Sequence[tuple[str, Sequence[str]]]) -> Statistics:
    return Statistics(
        num_units=len(pairs),
        by_metric={
            Metric.SPAN_F1: mean_of(np.array([overlap_f1(*pair) for pair in pairs])),
            Metric.EXACT_MATCH: mean_of(np.array([exact_match(*pair) for pair in pairs])),
        },
        proportions=frozenset({Metric.EXACT_MATCH}),
    )


def ranking_statistics(
    labels: Sequence[Relevance], scores: Values
) -> tuple[Statistics, Values, Sequence[list[int]]]:
    """Return the scores of the order of each group, the gains, and the groups that count.

    Groups without a grade above 0 do not count.
    """
    gains = np.maximum([it.grade for it in labels], 0.0)
    members = defaultdict[str, list[int]](list)
    for position, label in enumerate(labels):
        members[label.group].append(position)
    groups = [group for group in members.values() if gains[group].any()]
    statistics = Statistics(
        num_units=len(groups),
        by_metric={
            Metric.NDCG: mean_of(np.array([ndcg(gains[it], scores[it]) for it in groups])),
            Metric.MRR: mean_of(
                np.array([reciprocal_rank(gains[it], scores[it]) for it in groups])
            ),
        },
    )
    return statistics, gains, groups


def _pairs(
    labels: Sequence[str], expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> LabelCounts:
    number_of = {label: number for number, label in enumerate(labels)}
    right, found = (
        [[number_of[name] for name in unit] for unit in units] for units in (expected, predicted)
    )
    return count_pairs(right, found, num_labels=len(labels))


def _entities(
    kinds: Sequence[str], expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> LabelCounts:
    number_of = {kind: number for number, kind in enumerate(kinds)}
    right, found = (
        [
            frozenset((number_of[kind], begin, end) for kind, begin, end in entities_in(tags))
            for tags in units
        ]
        for units in (expected, predicted)
    )
    return count_sets(right, found, num_labels=len(kinds))


def _reports(labels: Sequence[str], counts: LabelCounts, num_units: int) -> tuple[LabelReport, ...]:
    tally = counts.tally(weights_of_all(num_units))
    return tuple(
        _report(label, int(hits), int(expected), int(predicted))
        for label, hits, expected, predicted in zip(labels, *tally, strict=True)
    )


def _report(label: str, hits: int, expected: int, predicted: int) -> LabelReport:
    return LabelReport(
        label=label,
        precision=hits / predicted if predicted else 0.0,
        recall=hits / expected if expected else 0.0,
        f1=2 * hits / (expected + predicted) if expected + predicted else 0.0,
        num_expected=expected,
        num_predicted=predicted,
        precision_interval=wilson_interval(hits / predicted, predicted) if predicted else None,
        recall_interval=wilson_interval(hits / expected, expected) if expected else None,
    )


class _Scores(TypedDict):
    metrics: Mapping[Metric, float]
    intervals: Mapping[Metric, Interval]


def _scores(statistics: Statistics) -> _Scores:
    metrics = tuple(statistics.by_metric)
    return {
        "metrics": {metric: statistics.value(metric) for metric in metrics},
        "intervals": score_intervals(statistics, metrics, seed=0),
    }

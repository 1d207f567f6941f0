"""Evaluation: all scores of a task, from the answers of the task to labelled examples.

The scores are the scores of training, computed from answers and not from logits. So the same scores
hold for a version in this process and for a version on a server.

Axes: units.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

import numpy as np

from nunatak_contract.evidence import MetricRecord, wilson_bounds
from nunatak_training.data.examples import Answers, ExampleSet, LabelSet, Relevance, TaggedWords
from nunatak_training.data.splits import majority
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.scoring.calibration import calibration_error
from nunatak_training.scoring.statistics import (
    LABEL_METRICS,
    Statistics,
    Values,
    best_first,
    count_items,
    entities_in,
    exact_match,
    mean_of,
    ndcg,
    overlap_f1,
    pearson,
    placed,
    reciprocal_rank,
    spearman,
    uses_bio,
    weights_of_all,
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
    precision_interval: tuple[float, float] | None
    """At 95 %; None if the label was never predicted."""
    recall_interval: tuple[float, float] | None
    """At 95 %; None if the label was never expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    scores: Mapping[Metric, MetricRecord]
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
            return _single_label(labels, examples, said)
        case TaskKind.MULTI_LABEL:
            return _multi_label(labels, examples, said)
        case TaskKind.REGRESSION:
            return _regression(examples, said)
        case TaskKind.TOKEN_CLASSIFICATION:
            return _tags(labels, examples, said)
        case TaskKind.QUESTION_ANSWERING:
            return _answers(examples, said)
        case TaskKind.RANKING:
            return _ranking(examples, said)


def _single_label(
    labels: Sequence[str], examples: ExampleSet, said: Sequence[ExampleAnswer]
) -> Evaluation:
    expected, predicted = examples.labels(str), [cast("str", it.value) for it in said]
    statistics = label_pair_statistics(labels, expected, predicted)
    is_right = np.array(expected) == np.array(predicted)
    confidences = [it.scores[label] for it, label in zip(said, predicted, strict=True)]
    return replace(
        _scored(statistics, examples, ~is_right),
        majority=majority(expected),
        calibration_error=calibration_error(np.array(confidences), is_right.astype(float)),
    )


def _multi_label(
    labels: Sequence[str], examples: ExampleSet, said: Sequence[ExampleAnswer]
) -> Evaluation:
    expected = [it.names for it in examples.labels(LabelSet)]
    predicted = [cast("tuple[str, ...]", it.value) for it in said]
    pairs = [
        (it.scores[label], label in own)
        for it, own in zip(said, expected, strict=True)
        for label in labels
    ]
    confidences, outcomes = np.array(pairs, dtype=float).T
    statistics = label_set_statistics(labels, expected, predicted)
    return replace(
        _scored(statistics, examples, _set_misses(expected, predicted)),
        calibration_error=calibration_error(confidences, outcomes),
    )


def _regression(examples: ExampleSet, said: Sequence[ExampleAnswer]) -> Evaluation:
    right, found = np.array(examples.labels(float), dtype=float), _numbers(said)
    errors = np.abs(right - found)
    return replace(
        _scored(value_statistics(right, found), examples, errors),
        errors={
            "mean_absolute_error": float(errors.mean()),
            "root_mean_squared_error": float(np.sqrt((errors**2).mean())),
        },
    )


def _tags(labels: Sequence[str], examples: ExampleSet, said: Sequence[ExampleAnswer]) -> Evaluation:
    right = [[word.tag for word in it.words] for it in examples.labels(TaggedWords)]
    found = [list(cast("tuple[str, ...]", it.value)) for it in said]
    misses = (own != other for own, other in zip(right, found, strict=True))
    return replace(
        _scored(tag_statistics(labels, right, found), examples, misses),
        confusion=Counter(zip(chain.from_iterable(right), chain.from_iterable(found), strict=True)),
    )


def _answers(examples: ExampleSet, said: Sequence[ExampleAnswer]) -> Evaluation:
    pairs = [
        (cast("str", it.value), [span.text for span in own.spans])
        for it, own in zip(said, examples.labels(Answers), strict=True)
    ]
    return _scored(answer_statistics(pairs), examples, (1 - exact_match(*it) for it in pairs))


def _ranking(examples: ExampleSet, said: Sequence[ExampleAnswer]) -> Evaluation:
    labels, scores = examples.labels(Relevance), _numbers(said)
    gains, groups = _graded(labels)
    misses = np.zeros(len(said))
    for group in groups:
        first = group[int(best_first(gains[group], scores[group])[0])]
        misses[first] = float(gains[first] <= 0)
    return _scored(ranking_statistics(labels, scores), examples, misses)


def _numbers(said: Sequence[ExampleAnswer]) -> Values:
    return np.array([cast("float", it.value) for it in said], dtype=float)


def label_pair_statistics(
    labels: Sequence[str],
    expected: Sequence[str],
    predicted: Sequence[str],
    positive: str | None = None,
) -> Statistics:
    """Return the scores of labels, one for each text."""
    right, found = (placed([it] for it in units) for units in (expected, predicted))
    counts = count_items(labels, right, found, positive)
    return Statistics(
        num_units=len(expected),
        by_metric=counts.statistics(*LABEL_METRICS),
        # With one label per text, micro F1 equals the accuracy.
        proportions=frozenset({Metric.ACCURACY, Metric.F1_MICRO}),
        confusion=Counter(zip(expected, predicted, strict=True)),
        counts=counts,
    )


def label_set_statistics(
    labels: Sequence[str],
    expected: Sequence[Collection[str]],
    predicted: Sequence[Collection[str]],
    positive: str | None = None,
) -> Statistics:
    """Return the scores of sets of labels; the accuracy needs all labels of a text right."""
    right, found = ([[(name,) for name in names] for names in it] for it in (expected, predicted))
    counts = count_items(labels, right, found, positive)
    return Statistics(
        num_units=len(expected),
        by_metric={
            **counts.statistics(Metric.F1_MICRO, Metric.F1_MACRO),
            Metric.ACCURACY: mean_of(1 - np.array(_set_misses(expected, predicted))),
            **counts.statistics(Metric.F1),
        },
        proportions=frozenset({Metric.ACCURACY}),
        counts=counts,
    )


def _set_misses(
    expected: Sequence[Collection[str]], predicted: Sequence[Collection[str]]
) -> list[float]:
    return [float({*own} != {*other}) for own, other in zip(expected, predicted, strict=True)]


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
) -> Statistics:
    """Return the scores of the tags of sentences; the counts are of entities, if tags mark them."""
    counts = count_items(tags, placed(expected), placed(predicted))
    found = counts.statistics(Metric.ACCURACY, Metric.F1_MACRO, Metric.F1_MICRO)
    if uses_bio(tags):
        kinds = sorted({tag.partition("-")[2] for tag in tags} - {""})
        counts = count_items(kinds, map(entities_in, expected), map(entities_in, predicted))
        found = {Metric.ENTITY_F1: counts.statistics(Metric.F1_MICRO)[Metric.F1_MICRO], **found}
    return Statistics(num_units=len(expected), by_metric=found, counts=counts)


def answer_statistics(pairs: Sequence[tuple[str, Sequence[str]]]) -> Statistics:
    return Statistics(
        num_units=len(pairs),
        by_metric={
            Metric.SPAN_F1: mean_of(np.array([overlap_f1(*pair) for pair in pairs])),
            Metric.EXACT_MATCH: mean_of(np.array([exact_match(*pair) for pair in pairs])),
        },
        proportions=frozenset({Metric.EXACT_MATCH}),
    )


def ranking_statistics(labels: Sequence[Relevance], scores: Values) -> Statistics:
    """Return the scores of the order of each group that has a grade above 0."""
    gains, groups = _graded(labels)
    return Statistics(
        num_units=len(groups),
        by_metric={
            Metric.NDCG: mean_of(np.array([ndcg(gains[it], scores[it]) for it in groups])),
            Metric.MRR: mean_of(
                np.array([reciprocal_rank(gains[it], scores[it]) for it in groups])
            ),
        },
    )


def _graded(labels: Sequence[Relevance]) -> tuple[Values, list[list[int]]]:
    """The gains, and the groups that have one above 0."""
    gains = np.maximum([it.grade for it in labels], 0.0)
    members = defaultdict[str, list[int]](list)
    for position, label in enumerate(labels):
        members[label.group].append(position)
    return gains, [group for group in members.values() if gains[group].any()]


def _report(label: str, hits: int, expected: int, predicted: int) -> LabelReport:
    return LabelReport(
        label=label,
        precision=hits / predicted if predicted else 0.0,
        recall=hits / expected if expected else 0.0,
        f1=2 * hits / (expected + predicted) if expected + predicted else 0.0,
        num_expected=expected,
        num_predicted=predicted,
        precision_interval=wilson_bounds(hits / predicted, predicted) if predicted else None,
        recall_interval=wilson_bounds(hits / expected, expected) if expected else None,
    )


def _scored(statistics: Statistics, examples: ExampleSet, misses: Iterable[float]) -> Evaluation:
    counts = statistics.counts
    tally = () if counts is None else counts.tally(weights_of_all(statistics.num_units))
    return Evaluation(
        scores=statistics.scores(statistics.by_metric, examples, seed=0),
        labels=tuple(
            _report(label, int(hits), int(expected), int(predicted))
            for label, hits, expected, predicted in zip(
                () if counts is None else counts.labels, *tally, strict=True
            )
        ),
        confusion=statistics.confusion,
        misses=tuple(map(float, misses)),
    )

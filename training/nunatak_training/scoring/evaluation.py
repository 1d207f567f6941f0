"""Evaluation: all scores of a task, from the answers of the task to labelled examples.

The scores are the scores of training, computed from answers and not from logits. So the same scores
hold for a version in this process and for a version on a server.

The gate of a conversion tells whether a version answers labelled examples as its original does. A
score alone lets broken versions through: correlations ignore an offset, examples with one label
ignore everything, and one example proves nothing. So the examples must be able to show a loss, and
the values of a regression must stay where they were.

Axes: units.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import numpy as np

from nunatak_contract.evidence import MetricRecord, wilson_bounds
from nunatak_training.data.examples import (
    Answers,
    ExampleSet,
    Label,
    LabelSet,
    Relevance,
    TaggedWords,
)
from nunatak_training.data.splits import majority
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.scoring.calibration import MIN_EXAMPLES, calibration_error
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

Answer = str | float | tuple[str, ...]
"""By the kind of task: a label, an answer, a value, the score of a document, all labels that apply,
or the tag of each word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleAnswer:
    value: Answer
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
    """The number of texts or words of each pair of true and predicted label, if these have one."""
    calibration_error: float | None = None
    """The expected calibration error, of tasks that classify whole texts."""
    misses: tuple[float, ...]
    """The error of each example: 0 for a right answer, else 1, or the absolute error of a value."""


def evaluation_of(
    kind: TaskKind,
    labels: Sequence[str],
    examples: ExampleSet,
    said: Sequence[ExampleAnswer],
    positive: str | None = None,
) -> Evaluation:
    """Score the answers of a task with these labels to examples, one answer for each example.

    `Metric.F1` is that of the label `positive`.

    Raises:
        KeyError: an example has a label that the task does not know.
        TypeError: the examples are of another kind of task.
    """
    statistics = statistics_of(kind, labels, examples, [it.value for it in said], positive)
    counts, misses = statistics.counts, np.array(statistics.misses)
    tally = () if counts is None else counts.tally(weights_of_all(statistics.num_units))
    errors = {
        "mean_absolute_error": float(misses.mean()),
        "root_mean_squared_error": float(np.sqrt((misses**2).mean())),
    }
    return Evaluation(
        scores=statistics.scores(statistics.by_metric, examples, seed=0),
        errors=errors if kind is TaskKind.REGRESSION else {},
        majority=majority(it.label for it in examples.examples),
        labels=tuple(
            _report(label, int(hits), int(expected), int(predicted))
            for label, hits, expected, predicted in zip(
                () if counts is None else counts.labels, *tally, strict=True
            )
        ),
        confusion=statistics.confusion,
        calibration_error=_calibration_error(kind, labels, examples, said),
        misses=tuple(statistics.misses),
    )


def _calibration_error(
    kind: TaskKind, labels: Sequence[str], examples: ExampleSet, said: Sequence[ExampleAnswer]
) -> float | None:
    match kind:
        case TaskKind.SINGLE_LABEL:
            pairs = [
                (it.scores[str(it.value)], it.value == own)
                for it, own in zip(said, examples.labels(str), strict=True)
            ]
        case TaskKind.MULTI_LABEL:
            pairs = [
                (it.scores[label], label in own.names)
                for it, own in zip(said, examples.labels(LabelSet), strict=True)
                for label in labels
            ]
        case _:
            return None
    confidences, outcomes = np.array(pairs, dtype=float).T
    return calibration_error(confidences, outcomes)


def statistics_of(
    kind: TaskKind,
    labels: Sequence[str],
    examples: ExampleSet,
    answers: Sequence[Answer],
    positive: str | None = None,
) -> Statistics:
    """Return the scores of answers, one for each example; `Metric.F1` is that of `positive`."""
    match kind:
        case TaskKind.SINGLE_LABEL:
            predicted = cast("Sequence[str]", answers)
            return label_pair_statistics(labels, examples.labels(str), predicted, positive)
        case TaskKind.MULTI_LABEL:
            expected = [it.names for it in examples.labels(LabelSet)]
            sets = cast("Sequence[tuple[str, ...]]", answers)
            return label_set_statistics(labels, expected, sets, positive)
        case TaskKind.REGRESSION:
            return _value_statistics(examples.labels(float), cast("Sequence[float]", answers))
        case TaskKind.TOKEN_CLASSIFICATION:
            tags = [tuple(word.tag for word in it.words) for it in examples.labels(TaggedWords)]
            return _tag_statistics(labels, tags, cast("Sequence[tuple[str, ...]]", answers))
        case TaskKind.QUESTION_ANSWERING:
            right = [[span.text for span in it.spans] for it in examples.labels(Answers)]
            return _answer_statistics(right, cast("Sequence[str]", answers))
        case TaskKind.RANKING:
            scores = cast("Sequence[float]", answers)
            return _ranking_statistics(examples.labels(Relevance), np.array(scores, dtype=float))


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
        misses=[float(own != said) for own, said in zip(expected, predicted, strict=True)],
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
    misses = [float({*own} != {*said}) for own, said in zip(expected, predicted, strict=True)]
    return Statistics(
        num_units=len(expected),
        by_metric={
            **counts.statistics(Metric.F1_MICRO, Metric.F1_MACRO),
            Metric.ACCURACY: mean_of(1 - np.array(misses)),
            **counts.statistics(Metric.F1),
        },
        proportions=frozenset({Metric.ACCURACY}),
        counts=counts,
        misses=misses,
    )


def _value_statistics(right: Sequence[float], found: Sequence[float]) -> Statistics:
    """Correlations, which scale and mean do not change."""
    expected, predicted = np.array(right, dtype=float), np.array(found, dtype=float)
    return Statistics(
        num_units=len(expected),
        by_metric={
            Metric.SPEARMAN: spearman(expected, predicted),
            Metric.PEARSON: pearson(expected, predicted),
        },
        misses=np.abs(expected - predicted).tolist(),
    )


def _tag_statistics(
    tags: Sequence[str], expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> Statistics:
    """The units are sentences; the counts are of entities, if tags mark them."""
    counts = count_items(tags, placed(expected), placed(predicted))
    found = counts.statistics(Metric.ACCURACY, Metric.F1_MACRO, Metric.F1_MICRO)
    if uses_bio(tags):
        kinds = sorted({tag.partition("-")[2] for tag in tags} - {""})
        counts = count_items(kinds, map(entities_in, expected), map(entities_in, predicted))
        found = {Metric.ENTITY_F1: counts.statistics(Metric.F1_MICRO)[Metric.F1_MICRO], **found}
    words = (chain.from_iterable(it) for it in (expected, predicted))
    return Statistics(
        num_units=len(expected),
        by_metric=found,
        confusion=Counter(zip(*words, strict=True)),
        counts=counts,
        misses=[float(own != said) for own, said in zip(expected, predicted, strict=True)],
    )


def _answer_statistics(expected: Sequence[Sequence[str]], predicted: Sequence[str]) -> Statistics:
    exact = np.array(list(map(exact_match, predicted, expected)))
    return Statistics(
        num_units=len(expected),
        by_metric={
            Metric.SPAN_F1: mean_of(np.array(list(map(overlap_f1, predicted, expected)))),
            Metric.EXACT_MATCH: mean_of(exact),
        },
        proportions=frozenset({Metric.EXACT_MATCH}),
        misses=(1 - exact).tolist(),
    )


def _ranking_statistics(labels: Sequence[Relevance], scores: Values) -> Statistics:
    """The units are the groups that have a grade above 0."""
    gains = np.maximum([it.grade for it in labels], 0.0)
    members = defaultdict[str, list[int]](list)
    for position, label in enumerate(labels):
        members[label.group].append(position)
    groups = [group for group in members.values() if gains[group].any()]
    misses = np.zeros(len(labels))
    for group in groups:
        first = group[int(best_first(gains[group], scores[group])[0])]
        misses[first] = float(gains[first] <= 0)
    ranked = [(gains[it], scores[it]) for it in groups]
    return Statistics(
        num_units=len(groups),
        by_metric={
            Metric.NDCG: mean_of(np.array([ndcg(*it) for it in ranked])),
            Metric.MRR: mean_of(np.array([reciprocal_rank(*it) for it in ranked])),
        },
        misses=misses.tolist(),
    )


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


ROUNDING = 9
"""Decimals of a loss in points, so that a loss of exactly the tolerance is within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedScore:
    metric: Metric
    before: float
    after: float
    moved: float = 0.0
    """Mean squared move of a regression's values, in the variance of the labels."""

    def excess(self, tolerance: float) -> str | None:
        """What exceeds the tolerance, in points of 100; None if nothing does.

        A score that is no number exceeds every tolerance.
        """
        lost, moved = 100 * (self.before - self.after), 100 * self.moved
        if not round(lost, ROUNDING) <= tolerance:
            return f"{lost:.2f} points are lost"
        if not round(moved, ROUNDING) <= tolerance:
            return f"the values move by {moved:.2f} points of the labels' variance"
        return None


def compare(
    metric: Metric,
    examples: ExampleSet,
    before: tuple[Evaluation, Sequence[ExampleAnswer]],
    after: tuple[Evaluation, Sequence[ExampleAnswer]],
) -> ConvertedScore:
    """Compare the answers to the same examples."""
    return ConvertedScore(
        metric=metric,
        before=before[0].scores[metric].value,
        after=after[0].scores[metric].value,
        moved=_moved(examples, before[1], after[1]),
    )


def shows_nothing(examples: ExampleSet, said: Sequence[ExampleAnswer]) -> str | None:
    """Why the answers to these examples cannot show a loss; None if they can."""
    labels = [it.label for it in examples.examples]
    grades = defaultdict[str, set[float]](set)
    for label in labels:
        if isinstance(label, Relevance):
            grades[label.group].add(max(label.grade, 0.0))
    count = sum(len(it) > 1 for it in grades.values()) if grades else len(labels)
    if count < MIN_EXAMPLES:
        what = "queries with documents of different grades" if grades else "examples"
        return f"at least {MIN_EXAMPLES} {what} are needed to compare two versions, got {count}"
    if len({part for it in labels for part in _parts(it)}) < 2:
        return "all examples have the same label, so every score would stay; add other examples"
    # Equal answers to different questions are spans of different contexts.
    is_open = any(isinstance(it, Answers) for it in labels)
    has_tags = any(isinstance(it, TaggedWords) for it in labels)
    answers = {
        part
        for it in said
        for part in (it.value if has_tags and isinstance(it.value, tuple) else (it.value,))
    }
    if not is_open and len(answers) < 2:
        return "the original gives all examples the same answer, so its score means nothing"
    return None


def _parts(label: Label) -> Sequence[Label]:
    return [word.tag for word in label.words] if isinstance(label, TaggedWords) else [label]


def _moved(
    examples: ExampleSet, before: Sequence[ExampleAnswer], after: Sequence[ExampleAnswer]
) -> float:
    labels = [it.label for it in examples.examples]
    if not all(isinstance(it, float) for it in labels):
        return 0.0
    first, second = (np.array([it.value for it in said], dtype=float) for said in (before, after))
    return float(((second - first) ** 2).mean() / np.var(np.array(labels, dtype=float)))

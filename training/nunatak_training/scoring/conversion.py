"""The gate of a conversion: whether a version answers labelled examples as its original does.

A score alone lets broken versions through: correlations ignore an offset, examples with one label
ignore everything, and one example proves nothing. So the examples must be able to show a loss, and
the values of a regression must stay where they were.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nunatak_training.data.examples import Answers, ExampleSet, Label, Relevance, TaggedWords
from nunatak_training.kinds import Metric
from nunatak_training.scoring.calibration import MIN_EXAMPLES
from nunatak_training.scoring.evaluation import Evaluation, ExampleAnswer

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
    *,
    positive: str | None = None,
) -> ConvertedScore:
    """Compare the answers to the same examples; `Metric.F1` is that of the label `positive`."""
    return ConvertedScore(
        metric=metric,
        before=_score(before[0], metric, positive),
        after=_score(after[0], metric, positive),
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


def _score(found: Evaluation, metric: Metric, positive: str | None) -> float:
    if metric is Metric.F1:
        return next(it.f1 for it in found.labels if it.label == positive)
    return found.scores[metric].value


def _moved(
    examples: ExampleSet, before: Sequence[ExampleAnswer], after: Sequence[ExampleAnswer]
) -> float:
    labels = [it.label for it in examples.examples]
    if not all(isinstance(it, float) for it in labels):
        return 0.0
    first, second = (np.array([it.value for it in said], dtype=float) for said in (before, after))
    return float(((second - first) ** 2).mean() / np.var(np.array(labels, dtype=float)))

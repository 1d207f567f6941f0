"""Evaluation against scikit-learn, and against plain loops where scikit-learn has no function."""

# scikit-learn ships no types; the types inferred from its sources are wrong for `zero_division`.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    precision_recall_fscore_support,
    root_mean_squared_error,
)

from nunatak_training.data import (
    Answers,
    AnswerSpan,
    Example,
    ExampleSet,
    Label,
    LabelSet,
    Relevance,
    TaggedWords,
    Word,
)
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.scoring.calibration import calibration_error
from nunatak_training.scoring.evaluation import Evaluation, ExampleAnswer, evaluation_of

LABELS = ("a", "b", "c", "never")
NUM = 80


def examples_of(labels: Sequence[Label]) -> ExampleSet:
    return ExampleSet(examples=tuple(Example(text="x", label=label) for label in labels))


def single_label() -> tuple[list[str], list[str], Evaluation]:
    source = np.random.default_rng(1)
    scores = source.dirichlet(np.ones(3), size=NUM)
    predicted = [LABELS[number] for number in scores.argmax(axis=1)]
    expected = [str(source.choice(LABELS[:3])) if source.random() < 0.4 else it for it in predicted]
    said = [
        ExampleAnswer(value=label, scores=dict(zip(LABELS, [*map(float, row), 0.0], strict=True)))
        for label, row in zip(predicted, scores, strict=True)
    ]
    found = evaluation_of(TaskKind.SINGLE_LABEL, LABELS, examples_of(expected), said)
    return expected, predicted, found


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    expected, predicted, found = single_label()

    precision, recall, f1, support = precision_recall_fscore_support(
        expected, predicted, labels=LABELS, zero_division=0
    )
    assert [it.label for it in found.labels] == list(LABELS)
    assert [it.precision for it in found.labels] == pytest.approx(precision)
    assert [it.recall for it in found.labels] == pytest.approx(recall)
    assert [it.f1 for it in found.labels] == pytest.approx(f1)
    assert [it.num_expected for it in found.labels] == list(support)
    assert found.metrics[Metric.ACCURACY] == pytest.approx(accuracy_score(expected, predicted))
    assert found.confusion is not None
    matrix = confusion_matrix(expected, predicted, labels=LABELS)
    assert [[found.confusion.get((own, other), 0) for other in LABELS] for own in LABELS] == (
        matrix.tolist()
    )
    assert found.misses == tuple(
        float(own != other) for own, other in zip(expected, predicted, strict=True)
    )


def test_shares_have_the_interval_of_wilson() -> None:
    _, _, found = single_label()
    # 1927: the shares p for which (share - p)^2 = z^2 p (1 - p) / n.
    for share, interval, count in [
        (found.metrics[Metric.ACCURACY], found.intervals[Metric.ACCURACY], NUM),
        (found.labels[0].recall, found.labels[0].recall_interval, found.labels[0].num_expected),
        (
            found.labels[0].precision,
            found.labels[0].precision_interval,
            found.labels[0].num_predicted,
        ),
    ]:
        assert interval is not None
        for p in (interval.low, interval.high):
            assert (share - p) ** 2 == pytest.approx(1.959964**2 * p * (1 - p) / count)
    assert found.labels[3].recall_interval is found.labels[3].precision_interval is None


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    source = np.random.default_rng(2)
    confidences = np.append(source.random(200), [0.0, 1.0])
    outcomes = (source.random(202) < confidences**2).astype(float)

    gaps = list[float]()
    for number in range(15):
        inside = [
            place
            for place, it in enumerate(confidences)
            if number / 15 < it <= (number + 1) / 15 or (it == 0 and number == 0)
        ]
        if inside:
            gap = abs(outcomes[inside].mean() - confidences[inside].mean())
            gaps.append(len(inside) / 202 * gap)

    assert calibration_error(confidences, outcomes) == pytest.approx(sum(gaps))
    assert calibration_error(np.ones(5), np.ones(5)) == 0.0


def test_several_labels_are_right_if_all_of_them_are() -> None:
    source = np.random.default_rng(3)
    scores = source.random((NUM, 3))
    right = source.random((NUM, 3)) < scores
    names = [tuple(np.array(LABELS[:3])[row].tolist()) for row in right]
    said = [
        ExampleAnswer(
            value=tuple(label for label, score in zip(LABELS, row, strict=False) if score >= 0.5),
            scores=dict(zip(LABELS, map(float, row), strict=False)),
        )
        for row in scores
    ]
    expected = examples_of([LabelSet(names=it) for it in names])

    found = evaluation_of(TaskKind.MULTI_LABEL, LABELS[:3], expected, said)

    chosen = scores >= 0.5
    assert found.metrics == pytest.approx(
        {
            Metric.F1_MICRO: f1_score(right, chosen, average="micro"),
            Metric.F1_MACRO: f1_score(right, chosen, average="macro"),
            Metric.ACCURACY: accuracy_score(right, chosen),
        }
    )
    assert found.calibration_error == pytest.approx(
        calibration_error(scores.flatten(), right.flatten().astype(float))
    )
    assert sum(found.misses) == NUM - (right == chosen).all(axis=1).sum()


def test_a_value_misses_by_its_error() -> None:
    source = np.random.default_rng(4)
    right = source.normal(size=NUM)
    given = right + source.normal(size=NUM)

    found = evaluation_of(
        TaskKind.REGRESSION,
        ("stars",),
        examples_of(list(map(float, right))),
        [ExampleAnswer(value=float(it)) for it in given],
    )

    assert found.errors == pytest.approx(
        {
            "mean_absolute_error": mean_absolute_error(right, given),
            "root_mean_squared_error": root_mean_squared_error(right, given),
        }
    )
    assert found.misses == pytest.approx(np.abs(right - given))


def test_tags_of_entities_are_scored_by_entity() -> None:
    tags = ("B-X", "B-Y", "I-X", "O")
    rows = [("B-X", "I-X", "O"), ("B-Y", "O", "B-X"), ("O", "O", "O")]
    given = [("B-X", "I-X", "O"), ("B-Y", "O", "O"), ("B-Y", "O", "O")]
    expected = [
        TaggedWords(words=tuple(Word(begin=0, end=1, tag=tag) for tag in row)) for row in rows
    ]

    found = evaluation_of(
        TaskKind.TOKEN_CLASSIFICATION,
        tags,
        examples_of(expected),
        [ExampleAnswer(value=it) for it in given],
    )

    assert [(it.label, it.precision, it.recall) for it in found.labels] == [
        ("X", 1.0, 0.5),
        ("Y", 0.5, 1.0),
    ]
    assert found.metrics[Metric.ENTITY_F1] == pytest.approx(2 * 2 / (3 + 3))
    assert found.metrics[Metric.ACCURACY] == pytest.approx(7 / 9)
    assert found.misses == (0.0, 1.0, 1.0)


def test_an_answer_misses_unless_it_is_one_of_the_right_ones() -> None:
    expected = [
        Answers(spans=(AnswerSpan(text="Oslo", begin=0), AnswerSpan(text="in Oslo", begin=3))),
        Answers(spans=()),
        Answers(spans=()),
    ]
    said = [ExampleAnswer(value="in Oslo"), ExampleAnswer(value=""), ExampleAnswer(value="Oslo")]

    found = evaluation_of(TaskKind.QUESTION_ANSWERING, (), examples_of(expected), said)

    assert found.misses == (0.0, 0.0, 1.0)
    assert found.metrics[Metric.EXACT_MATCH] == pytest.approx(2 / 3)


def test_a_ranking_misses_at_a_first_document_without_a_grade() -> None:
    grades = [("q", 1.0), ("q", 0.0), ("r", 0.0), ("r", 2.0), ("none", 0.0)]
    expected = [Relevance(grade=grade, group=group) for group, grade in grades]
    said = [ExampleAnswer(value=score) for score in (0.9, 0.1, 0.8, 0.3, 0.5)]

    found = evaluation_of(TaskKind.RANKING, (), examples_of(expected), said)

    assert found.metrics[Metric.MRR] == pytest.approx((1 + 1 / 2) / 2)
    assert found.misses == (0.0, 0.0, 1.0, 0.0, 0.0)

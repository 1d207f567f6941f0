"""Evaluation against scikit-learn, and against plain loops where scikit-learn has no function."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    ndcg_score,
    precision_recall_fscore_support,
    root_mean_squared_error,
)

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.evidence import MetricRecord
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
from nunatak_training.scoring.evaluation import (
    Evaluation,
    ExampleAnswer,
    evaluation_of,
    label_pair_statistics,
    label_set_statistics,
)
from nunatak_training.scoring.statistics import (
    Item,
    Statistics,
    Values,
    entities_in,
    exact_match,
    mean_of,
    ndcg,
    overlap_f1,
    pearson,
    reciprocal_rank,
    spearman,
)

LABELS = ("a", "b", "c", "never")
NUM = 80
NUM_UNITS, NUM_LABELS = 60, 4
NUMBERS = tuple(map(str, range(9)))


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


def drawn(seed: int) -> tuple[list[int], list[int]]:
    source = np.random.default_rng(seed)
    expected = source.integers(NUM_LABELS, size=NUM_UNITS)
    guess = source.integers(NUM_LABELS, size=NUM_UNITS)
    return expected.tolist(), np.where(source.random(NUM_UNITS) < 0.6, expected, guess).tolist()


def weights(seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    resample = np.bincount(source.integers(NUM_UNITS, size=NUM_UNITS), minlength=NUM_UNITS)
    return resample.astype(float)


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    expected, predicted, found = single_label()

    precision, recall, f1, support = precision_recall_fscore_support(
        expected, predicted, labels=LABELS, zero_division=0
    )
    assert [it.label for it in found.labels] == list(LABELS)
    assert [it.precision for it in found.labels] == pytest.approx(precision)
    assert [it.recall for it in found.labels] == pytest.approx(recall)
    assert [it.f1 for it in found.labels] == pytest.approx(f1)
    assert [it.num_expected for it in found.labels] == list(support)  # pyrefly: ignore[bad-argument-type]
    assert found.scores[Metric.ACCURACY].value == pytest.approx(accuracy_score(expected, predicted))
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
    accuracy = found.scores[Metric.ACCURACY]
    # 1927: the shares p for which (share - p)^2 = z^2 p (1 - p) / n.
    for share, interval, count in [
        (accuracy.value, accuracy.interval, NUM),
        (found.labels[0].recall, found.labels[0].recall_interval, found.labels[0].num_expected),
        (
            found.labels[0].precision,
            found.labels[0].precision_interval,
            found.labels[0].num_predicted,
        ),
    ]:
        assert interval is not None
        for p in interval:
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
    assert {it: own.value for it, own in found.scores.items()} == pytest.approx(
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
    assert found.scores[Metric.ENTITY_F1].value == pytest.approx(2 * 2 / (3 + 3))
    assert found.scores[Metric.ACCURACY].value == pytest.approx(7 / 9)
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
    assert found.scores[Metric.EXACT_MATCH].value == pytest.approx(2 / 3)


def test_a_ranking_misses_at_a_first_document_without_a_grade() -> None:
    grades = [("q", 1.0), ("q", 0.0), ("r", 0.0), ("r", 2.0), ("none", 0.0)]
    expected = [Relevance(grade=grade, group=group) for group, grade in grades]
    said = [ExampleAnswer(value=score) for score in (0.9, 0.1, 0.8, 0.3, 0.5)]

    found = evaluation_of(TaskKind.RANKING, (), examples_of(expected), said)

    assert found.scores[Metric.MRR].value == pytest.approx((1 + 1 / 2) / 2)
    assert found.scores[Metric.NDCG].value == pytest.approx((1 + 1 / math.log2(3)) / 2)
    assert found.misses == (0.0, 0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        pytest.param("O O", [], id="none"),
        pytest.param("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)], id="two"),
        pytest.param("B-A B-A", [("A", 0, 1), ("A", 1, 2)], id="neighbours"),
        pytest.param("O I-A I-A", [("A", 1, 3)], id="begun-by-i"),
        pytest.param("B-A I-B", [("A", 0, 1), ("B", 1, 2)], id="another-type-begins"),
        pytest.param("I-A O I-A", [("A", 0, 1), ("A", 2, 3)], id="a-gap-ends"),
        pytest.param("B-A-x I-A-x", [("A-x", 0, 2)], id="type-with-a-dash"),
        pytest.param("B I NOUN", [], id="no-types"),
        pytest.param("B-A E-A E-A", [("A", 0, 2), ("A", 2, 3)], id="e-ends"),
        pytest.param("S-A S-A I-A", [("A", 0, 1), ("A", 1, 2), ("A", 2, 3)], id="s-is-whole"),
        pytest.param("B-A I-A L-A U-B", [("A", 0, 3), ("B", 3, 4)], id="bilou"),
        pytest.param("E-A O S-B", [("A", 0, 1), ("B", 2, 3)], id="begun-by-e"),
        pytest.param("X-A B-A", [("A", 1, 2)], id="another-mark"),
    ],
)
def test_entities_are_read_as_conlleval_reads_them(tags: str, entities: list[Item]) -> None:
    assert entities_in(tags.split()) == entities


@pytest.mark.parametrize(
    ("predicted", "expected", "exact", "f1"),
    [
        pytest.param("The Cat.", ["cat"], 1.0, 1.0, id="case-article-punctuation"),
        pytest.param("black cat", ["the cat"], 0.0, 2 / 3, id="half-right"),
        pytest.param("cat cat", ["cat"], 0.0, 2 / 3, id="repetition-counts-once"),
        pytest.param("dog", ["cat", "a dog"], 1.0, 1.0, id="best-of-several"),
        pytest.param("dog", ["cat"], 0.0, 0.0, id="wrong"),
        pytest.param("", [], 1.0, 1.0, id="rightly-none"),
        pytest.param("cat", [], 0.0, 0.0, id="none-was-right"),
        pytest.param("", ["cat"], 0.0, 0.0, id="none-was-wrong"),
    ],
)
def test_answers_are_compared_as_for_squad(
    predicted: str, expected: list[str], exact: float, f1: float
) -> None:
    assert exact_match(predicted, expected) == exact
    assert overlap_f1(predicted, expected) == pytest.approx(f1)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_match_scipy_for_any_weights(seed: int) -> None:
    source = np.random.default_rng(seed)
    expected = source.integers(6, size=50).astype(float)
    predicted = np.exp(expected + source.normal(size=50))
    weights = np.bincount(source.integers(50, size=50), minlength=50).astype(float)
    first, second = (np.repeat(it, weights.astype(int)) for it in (expected, predicted))

    assert pearson(expected, predicted)(weights) == pytest.approx(pearsonr(first, second)[0])
    assert spearman(expected, predicted)(weights) == pytest.approx(spearmanr(first, second)[0])


@pytest.mark.parametrize("statistic", [pearson, spearman])
def test_equal_predictions_correlate_with_nothing(statistic: type) -> None:
    assert statistic(np.arange(3.0), np.ones(3))(np.ones(3)) == 0.0
    assert statistic(np.full(7, 0.1), np.full(7, 0.7))(np.ones(7)) == 0.0
    always_one = label_pair_statistics("ab", "ab", "aa")
    assert always_one.value(Metric.MATTHEWS_CORRELATION) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_ndcg_matches_scikit_learn(seed: int) -> None:
    source = np.random.default_rng(seed)
    gains = source.integers(5, size=12).astype(float)
    scores = source.normal(size=12)

    assert ndcg(gains, scores) == pytest.approx(ndcg_score([gains], [scores]))
    many = np.abs(source.normal(size=59))
    assert ndcg(many, many) == 1.0


@pytest.mark.parametrize("score", [ndcg, reciprocal_rank])
@pytest.mark.parametrize("seed", range(5))
def test_equal_scores_earn_nothing_whatever_the_order_of_the_documents(
    seed: int, score: Callable[[Values, Values], float]
) -> None:
    source = np.random.default_rng(seed)
    gains, scores = source.permutation(8) / 4, source.integers(3, size=8).astype(float)
    order = source.permutation(8)

    assert score(gains[order], scores[order]) == score(gains, scores - gains / 100)


@pytest.mark.parametrize("seed", range(5))
def test_label_scores_match_scikit_learn_for_any_weights(seed: int) -> None:
    expected, predicted = drawn(seed)
    times = weights(seed)
    right, said = (list(map(str, it)) for it in (expected, predicted))

    statistics = label_pair_statistics(NUMBERS, right, said, "1")

    found = {name: it(times) for name, it in statistics.by_metric.items()}

    repeated = [np.repeat(it, times.astype(int)) for it in (expected, predicted)]
    assert found == pytest.approx(
        {
            Metric.ACCURACY: accuracy_score(*repeated),
            Metric.F1: f1_score(*repeated, labels=[1], average="macro", zero_division=0),
            Metric.F1_MACRO: f1_score(*repeated, average="macro", zero_division=0),
            Metric.F1_MICRO: f1_score(*repeated, average="micro"),
            Metric.MATTHEWS_CORRELATION: matthews_corrcoef(*repeated),
        }
    )


@pytest.mark.parametrize("metric", [Metric.F1_MICRO, Metric.F1_MACRO])
def test_nothing_expected_and_nothing_predicted_scores_zero(metric: Metric) -> None:
    assert label_set_statistics("ab", [[]], [[]]).value(metric) == 0.0


def share_of_ones(num_units: int, share: float, *, is_proportion: bool = False) -> Statistics:
    values = (np.arange(num_units) < share * num_units).astype(float)
    return Statistics(
        num_units=num_units,
        by_metric={Metric.ACCURACY: mean_of(values)},
        proportions=frozenset({Metric.ACCURACY} if is_proportion else ()),
    )


def score_of(statistics: Statistics, *, seed: int = 0) -> MetricRecord:
    examples = ExampleSet(examples=(Example(text="x", label="a"),) * statistics.num_units)
    return statistics.scores([Metric.ACCURACY], examples, seed=seed)[Metric.ACCURACY]


def test_a_perfect_proportion_of_few_examples_leaves_doubt() -> None:
    found = score_of(share_of_ones(31, 1.0, is_proportion=True))

    assert found.interval is not None
    assert found.interval[0] < 0.9
    assert found.interval[1] == 1.0
    assert found.interval_method is IntervalMethod.WILSON


@pytest.mark.parametrize("num_units", [100, 2500])
def test_interval_of_a_mean_by_bootstrap_is_that_of_theory(num_units: int) -> None:
    found = score_of(share_of_ones(num_units, 0.8))

    half = 1.96 * math.sqrt(0.8 * 0.2 / num_units)
    assert found.interval == pytest.approx((0.8 - half, 0.8 + half), abs=half / 5)
    assert found.interval_method is IntervalMethod.BOOTSTRAP


def test_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    first, again, other = (score_of(share_of_ones(50, 0.5), seed=it).interval for it in (1, 1, 2))

    assert first == again != other


@pytest.mark.parametrize("value", [1.0, pytest.param(1 / math.log2(3), id="rounded")])
def test_a_bootstrap_whose_resamples_all_agree_claims_no_interval(value: float) -> None:
    equal = mean_of(np.full(7, value))

    found = score_of(Statistics(num_units=7, by_metric={Metric.ACCURACY: equal}))

    assert found.interval is found.interval_method is None

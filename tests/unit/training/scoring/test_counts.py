"""Scores from counts against scikit-learn, on random data and on weighted units."""

# scikit-learn ships no types; the types inferred from its sources are wrong for `zero_division`.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from nunatak_training.kinds import Metric
from nunatak_training.scoring.evaluation import label_pair_statistics
from nunatak_training.scoring.statistics import (
    confusion,
    count_pairs,
    count_sets,
    f1_macro,
    f1_micro,
    f1_of,
    label_statistics,
    weights_of_all,
)

NUM_UNITS, NUM_LABELS = 60, 4


def drawn(seed: int) -> tuple[list[int], list[int]]:
    source = np.random.default_rng(seed)
    expected = source.integers(NUM_LABELS, size=NUM_UNITS)
    guess = source.integers(NUM_LABELS, size=NUM_UNITS)
    return expected.tolist(), np.where(source.random(NUM_UNITS) < 0.6, expected, guess).tolist()


def score(
    metric: Metric, expected: list[str], predicted: list[str], *, positive_label: str | None = None
) -> float:
    named = () if positive_label is None else (positive_label,)
    labels = sorted({*expected, *predicted, *named})
    positive = None if positive_label is None else labels.index(positive_label)
    return label_pair_statistics(labels, expected, predicted, positive)[0].value(metric)


def weights(seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    resample = np.bincount(source.integers(NUM_UNITS, size=NUM_UNITS), minlength=NUM_UNITS)
    return resample.astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_label_scores_match_scikit_learn_for_any_weights(seed: int) -> None:
    expected, predicted = drawn(seed)
    times = weights(seed)
    counts = count_pairs(
        [[it] for it in expected], [[it] for it in predicted], num_labels=NUM_LABELS
    )

    found = {name: it(times) for name, it in label_statistics(counts, 1).items()}

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


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_label_sets_match_scikit_learn(seed: int) -> None:
    source = np.random.default_rng(seed)
    expected, predicted = (source.random((2, NUM_UNITS, NUM_LABELS)) < 0.4).astype(int)
    counts = count_sets(
        *(
            [frozenset((int(it),) for it in row.nonzero()[0]) for row in side]
            for side in (expected, predicted)
        ),
        num_labels=NUM_LABELS,
    )

    once = weights_of_all(NUM_UNITS)

    assert f1_micro(counts)(once) == pytest.approx(f1_score(expected, predicted, average="micro"))
    assert f1_macro(counts)(once) == pytest.approx(f1_score(expected, predicted, average="macro"))
    assert f1_of(counts, 2)(once) == pytest.approx(f1_score(expected[:, 2], predicted[:, 2]))


def test_labels_that_never_occur_do_not_lower_the_mean() -> None:
    counts = count_pairs([[0], [1]], [[0], [1]], num_labels=9)

    assert f1_macro(counts)(weights_of_all(2)) == 1.0


def test_nothing_expected_and_nothing_predicted_scores_zero() -> None:
    counts = count_sets([frozenset()], [frozenset()], num_labels=2)

    assert f1_micro(counts)(weights_of_all(1)) == 0.0
    assert f1_macro(counts)(weights_of_all(1)) == 0.0


EXPECTED = ["a", "a", "a", "b", "b", "c"]
PREDICTED = ["a", "a", "b", "b", "b", "a"]


def test_f1_is_for_the_positive_label() -> None:
    assert score(Metric.F1, EXPECTED, PREDICTED, positive_label="b") == pytest.approx(4 / 5)
    assert score(Metric.F1, EXPECTED, PREDICTED, positive_label="c") == 0.0


def test_matthews_correlation_runs_from_minus_one_to_one() -> None:
    expected = ["a", "b", "a", "b"]

    assert score(Metric.MATTHEWS_CORRELATION, expected, expected) == pytest.approx(1)
    assert score(Metric.MATTHEWS_CORRELATION, expected, expected[::-1]) == pytest.approx(-1)
    assert score(Metric.MATTHEWS_CORRELATION, expected, ["a"] * 4) == 0.0


def test_confusion_counts_pairs_of_true_and_predicted_label() -> None:
    assert confusion(EXPECTED, PREDICTED) == {
        ("a", "a"): 2,
        ("a", "b"): 1,
        ("b", "b"): 2,
        ("c", "a"): 1,
    }

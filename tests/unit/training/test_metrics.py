import pytest

from nunatak_training import Metric, score
from nunatak_training.scoring.labels import LABEL_METRICS, confusion

EXPECTED = ["a", "a", "a", "b", "b", "c"]
PREDICTED = ["a", "a", "b", "b", "b", "a"]


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        pytest.param(Metric.ACCURACY, 4 / 6, id="accuracy"),
        pytest.param(Metric.F1_MICRO, 4 / 6, id="micro-is-accuracy-with-one-label-each"),
        # Per label: a 2/3 (precision 2/3, recall 2/3), b 4/5 (2/3, 1), c 0.
        pytest.param(Metric.F1_MACRO, (2 / 3 + 4 / 5 + 0) / 3, id="macro"),
    ],
)
def test_scores_follow_their_definition(metric: Metric, value: float) -> None:
    assert score(metric, EXPECTED, PREDICTED) == pytest.approx(value)


def test_f1_is_that_of_the_positive_label() -> None:
    assert score(Metric.F1, EXPECTED, PREDICTED, positive_label="b") == pytest.approx(4 / 5)
    assert score(Metric.F1, EXPECTED, PREDICTED, positive_label="c") == 0.0


def test_matthews_correlation_runs_from_minus_one_to_one() -> None:
    expected = ["a", "b", "a", "b"]

    assert score(Metric.MATTHEWS_CORRELATION, expected, expected) == pytest.approx(1)
    assert score(Metric.MATTHEWS_CORRELATION, expected, expected[::-1]) == pytest.approx(-1)
    assert score(Metric.MATTHEWS_CORRELATION, expected, ["a"] * 4) == 0.0


@pytest.mark.parametrize("metric", LABEL_METRICS)
def test_perfect_predictions_score_one(metric: Metric) -> None:
    assert score(metric, EXPECTED, EXPECTED, positive_label="a") == pytest.approx(1)


def test_confusion_counts_pairs_of_true_and_predicted_label() -> None:
    assert confusion(EXPECTED, PREDICTED) == {
        ("a", "a"): 2,
        ("a", "b"): 1,
        ("b", "b"): 2,
        ("c", "a"): 1,
    }

"""Laws of temperatures, of the calibration error, and of precision and recall over thresholds."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import f1_score, precision_score, recall_score
from torch.nn import functional

from nunatak_contract.evidence import ThresholdCurve
from nunatak_training.scoring.calibration import (
    MAX_POINTS,
    JudgedLogits,
    best_temperature,
    best_thresholds,
    calibrated,
    cross_fitted,
    rescaled,
    threshold_curves,
)

LABELS = ("a", "b", "c")
DIGEST = "d" * 64


def planted(temperature: float, *, is_single: bool, count: int = 20_000) -> JudgedLogits:
    """Examples whose labels are drawn by the probabilities of logits divided by a temperature."""
    source = np.random.default_rng(7)
    logits = source.normal(scale=2.0, size=(count, len(LABELS)))
    if is_single:
        noise = source.gumbel(size=logits.shape)
        truth = np.eye(len(LABELS), dtype=bool)[(logits / temperature + noise).argmax(axis=1)]
    else:
        truth = source.random(logits.shape) < 1 / (1 + np.exp(-logits / temperature))
    return JudgedLogits(logits=logits, truth=truth, is_single=is_single)


def losses_of(judged: JudgedLogits, temperature: float) -> float:
    """The oracle of the loss: torch's own."""
    logits = torch.from_numpy(judged.logits) / temperature
    if judged.is_single:
        return float(
            functional.cross_entropy(logits, torch.from_numpy(judged.truth).int().argmax(1))
        )
    truth = torch.from_numpy(judged.truth).double()
    return float(functional.binary_cross_entropy_with_logits(logits, truth))


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_no_other_temperature_has_a_smaller_loss(temperature: float, *, is_single: bool) -> None:
    judged = planted(temperature, is_single=is_single, count=300)

    def loss(log_temperature: float) -> float:
        return losses_of(judged, math.exp(log_temperature))

    oracle: Any = minimize_scalar(loss, bounds=(-3, 3), method="bounded")

    assert best_temperature(judged) == pytest.approx(math.exp(oracle.x), rel=1e-3)
    assert judged.loss(1.7) == pytest.approx(losses_of(judged, 1.7), rel=1e-12)


@pytest.mark.parametrize("is_single", [True, False])
def test_overconfident_scores_lose_most_of_their_error_and_good_scores_keep_theirs(
    *, is_single: bool
) -> None:
    bold, good = (
        calibrated(planted(it, is_single=is_single), LABELS, data_digest=DIGEST, seed=0).dev
        for it in (3.0, 1.0)
    )

    assert bold.error_before > 0.1
    assert bold.error_after < 0.2 * bold.error_before
    assert good.error_before < 0.03
    assert good.error_after < 0.03


def test_the_bins_hold_all_scores_and_give_the_error() -> None:
    found = calibrated(planted(3.0, is_single=True), LABELS, data_digest=DIGEST, seed=0).dev

    for bins, error in (
        (found.bins_before, found.error_before),
        (found.bins_after, found.error_after),
    ):
        assert sum(it.count for it in bins) == found.num_examples == 20_000
        gaps = sum(it.count * abs(it.score - it.share_right) for it in bins) / 20_000
        assert gaps == pytest.approx(error, abs=1e-4)


@pytest.mark.parametrize("kind", ["all right", "no better than chance", "few"])
def test_the_temperature_stays_unless_held_out_examples_gain(kind: str) -> None:
    judged = planted(1.0, is_single=True, count=60)
    match kind:
        case "all right":
            truth = judged.logits == judged.logits.max(axis=1, keepdims=True)
        case "no better than chance":
            truth = judged.logits == judged.logits.min(axis=1, keepdims=True)
        case _:
            truth = judged.logits == judged.logits.max(axis=1, keepdims=True)
            truth[0] = np.roll(truth[0], 1)
    judged = JudgedLogits(logits=judged.logits, truth=truth, is_single=True)

    found = calibrated(judged, LABELS, data_digest=DIGEST, seed=0)

    assert found.temperature == 1.0
    assert found.dev.error_after == found.dev.error_before
    assert found.dev.bins_after == found.dev.bins_before


def test_an_examples_own_label_never_decides_its_temperature() -> None:
    judged = planted(2.0, is_single=True, count=100)
    other = judged.truth.copy()
    other[17] = np.roll(other[17], 1)

    first = cross_fitted(judged, seed=3)
    second = cross_fitted(JudgedLogits(logits=judged.logits, truth=other, is_single=True), seed=3)

    assert first is not None
    assert second is not None
    assert first[17] == second[17]
    assert (first != second).any()


@pytest.mark.parametrize("is_single", [True, False])
def test_the_points_of_a_curve_are_what_their_thresholds_find(*, is_single: bool) -> None:
    judged = planted(1.0, is_single=is_single, count=700)
    scores = judged.probabilities(2.0)

    for number, curve in enumerate(threshold_curves(judged, LABELS, temperature=2.0)):
        truth = judged.truth[:, number]
        assert curve.num_expected == truth.sum()
        assert MAX_POINTS - 5 < len(curve.points) <= MAX_POINTS
        assert curve.operating_points[-1].recall == 1.0
        for point in curve.operating_points[::10]:
            found = scores[:, number] >= point.threshold
            assert point.num_found == found.sum()
            assert point.precision == pytest.approx(precision_score(truth, found))
            assert point.recall == pytest.approx(recall_score(truth, found))
            assert point.f1 == pytest.approx(f1_score(truth, found))


def test_no_threshold_reaches_a_precision_with_more_recall_than_the_chosen_one() -> None:
    judged = planted(1.0, is_single=False, count=40)
    (curve, *_) = threshold_curves(judged, LABELS, temperature=1.0)
    scores, truth = judged.probabilities(1.0)[:, 0], judged.truth[:, 0]

    chosen = curve.best(precision=0.8)

    assert chosen is not None
    assert chosen.precision >= 0.8
    for threshold in np.linspace(0, 1, 2001):
        found = scores >= threshold
        if found.any() and truth[found].mean() >= 0.8:
            assert truth[found].sum() <= chosen.num_right


def test_a_wish_that_no_threshold_meets_has_no_threshold() -> None:
    curve = ThresholdCurve(label="a", num_expected=4, points=((0.9, 2, 1), (0.2, 8, 4)))

    assert curve.best(precision=0.6) is None
    assert curve.best(precision=0.5, recall=0.5) == curve.operating_points[1]
    assert curve.best(recall=0.2) == curve.operating_points[0]
    assert ThresholdCurve(label="b", num_expected=0, points=()).best() is None


def test_a_rare_label_keeps_its_threshold() -> None:
    judged = planted(1.0, is_single=False, count=400)
    judged.truth[:, 1] = False
    judged.truth[:9, 1] = True

    found = best_thresholds(threshold_curves(judged, LABELS, temperature=1.0))

    assert list(found) == ["a", "c"]


def test_rescaled_thresholds_decide_as_before_the_temperature() -> None:
    thresholds = {"a": 0.2, "b": 0.5, "c": 0.93, "all": 0.0, "none": 1.0}
    logits = torch.linspace(-6, 6, 25, dtype=torch.float64) + 0.01

    found = rescaled(thresholds, 2.5)

    assert (found["b"], found["all"], found["none"]) == (0.5, 0.0, 1.0)
    for label, threshold in thresholds.items():
        after = (logits / 2.5).sigmoid() >= found[label]
        assert after.equal(logits.sigmoid() >= threshold)

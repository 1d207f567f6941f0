"""Calibration: one temperature that turns scores into probabilities, and the evidence for it.

Guo, Pleiss, Sun and Weinberger 2017, "On Calibration of Modern Neural Networks" (arXiv:1706.04599):
all logits are divided by one temperature, which minimises the loss of the dev examples (eq. 9). The
loss of one label is cross-entropy over softmax, as in the paper. The loss of several labels is the
mean binary cross-entropy over sigmoids. No division changes which logit is the largest, or which
logits are positive.

The loss is convex in the sharpness, which is the inverse of the temperature. So a finite best
temperature is the only root of the loss's slope. There is none if no dev example is wrong, because
a lower temperature then always fits better, or if the logits know nothing of the labels.

Axes: examples, labels, scores = the judged scores of all examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float

from nunatak_contract.evidence import (
    MAX_RELIABILITY_BINS,
    CalibrationRecord,
    ReliabilityBin,
    ReliabilityRecord,
    ThresholdCurve,
)

MIN_EXAMPLES = 50
"""Fewer dev examples than this say nothing about the error of a probability."""
MIN_EXPECTED = 10
"""Fewer dev examples with a label than this keep the label's threshold at 0.5."""
NUM_FOLDS = 5
MAX_SHARPNESS = 100.0
"""The inverse of the lowest temperature that is tried."""
MAX_POINTS = 50
"""Most points of one label's curve, so that neighbours differ by about 2 % in recall."""
MAX_POINTS_OF_ALL = 10_000
"""Most points of all labels together, so that the manifest of a task with many labels is small."""
DECIMALS = 4
"""Decimals of a recorded threshold."""

Matrix = Float[np.ndarray, "examples labels"]
Temperature = float | Float[np.ndarray, "examples 1"]
"""One temperature of all examples, or each example's own."""
Scores = Float[np.ndarray, " scores"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedLogits:
    """The logits of labelled examples, and the labels that are true of them."""

    logits: Matrix
    truth: Bool[np.ndarray, "examples labels"]
    is_single: bool
    """Whether each example has exactly one label."""

    def part(self, chosen: Bool[np.ndarray, " examples"]) -> "JudgedLogits":
        return JudgedLogits(
            logits=self.logits[chosen], truth=self.truth[chosen], is_single=self.is_single
        )

    def probabilities(self, temperature: Temperature) -> Matrix:
        return np.exp(self._log_probabilities(temperature))

    def loss(self, temperature: Temperature) -> float:
        logs = self._log_probabilities(temperature)
        if self.is_single:
            return float(-logs[self.truth].mean())
        # The logarithm of 1 - sigmoid(z) is the logarithm of sigmoid(-z).
        return float(
            np.logaddexp(0.0, np.where(self.truth, -1, 1) * self.logits / temperature).mean()
        )

    def slope(self, sharpness: float) -> float:
        """Return the derivative of the loss by the sharpness, up to a positive factor."""
        if sharpness > 0:
            found = self.probabilities(1 / sharpness)
        else:
            found = np.full(self.logits.shape, 1 / self.logits.shape[1] if self.is_single else 0.5)
        return float(((found - self.truth) * self.logits).sum())

    def judged(self, temperature: Temperature) -> tuple[Scores, Scores]:
        """Return the scores whose error counts, and 1 or 0 for each: right or not.

        Of one label, the score of the predicted label. Of several labels, the score of every label,
        which is right if the label applies. `nunatak evaluate` counts the same scores.
        """
        found = self.probabilities(temperature)
        if not self.is_single:
            return found.ravel(), self.truth.ravel().astype(float)
        rows, predicted = np.arange(len(found)), self.logits.argmax(axis=1)
        return found[rows, predicted], self.truth[rows, predicted].astype(float)

    def _log_probabilities(self, temperature: Temperature) -> Matrix:
        logits = self.logits / temperature
        if self.is_single:
            logits = logits - logits.max(axis=1, keepdims=True)
            return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return -np.logaddexp(0.0, -logits)


def best_temperature(judged: JudgedLogits) -> float | None:
    """Return the temperature with the least loss; None if there is none (see the module)."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import, and rarely needed

    if judged.slope(0.0) >= 0 or judged.slope(MAX_SHARPNESS) <= 0:
        return None
    return 1 / brentq(judged.slope, 0.0, MAX_SHARPNESS, xtol=1e-9)


def cross_fitted(judged: JudgedLogits, *, seed: int) -> Float[np.ndarray, "examples 1"] | None:
    """Return for each example the temperature of the other folds; None if a fold has none."""
    folds = np.random.default_rng(seed).permutation(len(judged.logits)) % NUM_FOLDS
    found = np.ones((len(folds), 1))
    for fold in range(NUM_FOLDS):
        temperature = best_temperature(judged.part(folds != fold))
        if temperature is None:
            return None
        found[folds == fold] = temperature
    return found


def calibrated(
    judged: JudgedLogits, labels: Sequence[str], *, data_digest: str, seed: int
) -> CalibrationRecord:
    """Fit a temperature to dev examples and describe the scores.

    The temperature stays 1 unless cross-fitting proves another: the loss of each example, with the
    temperature of other examples, must be smaller in the mean.
    """
    temperature, held_out = best_temperature(judged), cross_fitted(judged, seed=seed)
    if temperature is None or held_out is None or judged.loss(held_out) >= judged.loss(1.0):
        temperature, held_out = 1.0, np.ones((len(judged.logits), 1))
    return CalibrationRecord(
        temperature=temperature,
        dev=reliability(judged, before=1.0, after=held_out, data_digest=data_digest),
        curves=threshold_curves(judged, labels, temperature=temperature),
    )


def reliability(
    judged: JudgedLogits, *, before: Temperature, after: Temperature, data_digest: str
) -> ReliabilityRecord:
    earlier, later = judged.judged(before), judged.judged(after)
    return ReliabilityRecord(
        data_digest=data_digest,
        num_examples=len(judged.logits),
        error_before=calibration_error(*earlier),
        error_after=calibration_error(*later),
        bins_before=_bins(*earlier),
        bins_after=_bins(*later),
    )


def calibration_error(scores: Scores, outcomes: Scores) -> float:
    """Return the expected calibration error of probabilities (Guo et al. 2017, eq. 3).

    The mean over all scores of the difference between score and share of right outcomes in the
    score's bin. All bins are equally wide; an upper bound belongs to its bin.
    """
    gaps = np.bincount(_bin_of(scores), weights=scores - outcomes, minlength=MAX_RELIABILITY_BINS)
    return float(np.abs(gaps).sum() / len(scores))


def threshold_curves(
    judged: JudgedLogits, labels: Sequence[str], *, temperature: float
) -> tuple[ThresholdCurve, ...]:
    """Return precision and recall of each label over thresholds.

    The thresholds of a label are scores of examples that have the label, because every other
    threshold finds more wrong examples and not one more right example. If these are too many, the
    points lie at equal steps of recall.
    """
    found = judged.probabilities(temperature)
    most = max(1, min(MAX_POINTS, MAX_POINTS_OF_ALL // len(labels)))
    return tuple(
        ThresholdCurve(
            label=label,
            num_expected=int(judged.truth[:, number].sum()),
            points=_points(found[:, number], judged.truth[:, number], most=most),
        )
        for number, label in enumerate(labels)
    )


def best_thresholds(curves: Sequence[ThresholdCurve]) -> dict[str, float]:
    """Return the threshold with the largest F1 of each label that enough examples have."""
    enough = [curve for curve in curves if curve.num_expected >= MIN_EXPECTED]
    found = {curve.label: curve.best() for curve in enough}
    return {label: point.threshold for label, point in found.items() if point is not None}


def rescaled(thresholds: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Return the thresholds that decide alike on logits divided by a temperature."""
    logits = torch.tensor(list(thresholds.values()), dtype=torch.float64).logit()
    found = cast("list[float]", (logits / temperature).sigmoid().tolist())
    return dict(zip(thresholds, found, strict=True))


def _points(
    scores: Float[np.ndarray, " examples"], truth: Bool[np.ndarray, " examples"], *, most: int
) -> tuple[tuple[float, int, int], ...]:
    right = np.sort(scores[truth])[::-1]
    if not len(right):
        return ()
    ranks = np.unique(np.linspace(len(right), 1, min(most, len(right))).round().astype(int))
    # Rounded down, so that a threshold finds the example whose score it is. A number below 1 has a
    # logit, and float32 scores reach it.
    unit = 10**DECIMALS
    thresholds = np.unique(np.minimum(np.floor(right[ranks - 1] * unit), unit - 1) / unit)[::-1]
    return tuple(
        (float(it), int((scores >= it).sum()), int((right >= it).sum())) for it in thresholds
    )


def _bin_of(scores: Scores) -> np.ndarray:
    last = MAX_RELIABILITY_BINS - 1
    return np.clip(np.ceil(scores * MAX_RELIABILITY_BINS) - 1, 0, last).astype(int)


def _bins(scores: Scores, outcomes: Scores) -> tuple[ReliabilityBin, ...]:
    numbers = _bin_of(scores)
    counts, totals, right = (
        np.bincount(numbers, weights=it, minlength=MAX_RELIABILITY_BINS)
        for it in (None, scores, outcomes)
    )
    return tuple(
        ReliabilityBin(
            count=int(count),
            score=round(min(1.0, float(total / count)), DECIMALS),
            share_right=round(float(hits / count), DECIMALS),
        )
        for count, total, hits in zip(counts, totals, right, strict=True)
        if count
    )

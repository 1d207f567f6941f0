"""The origin and the evidence of a version: data, recipe, scores, calibration, a parity probe."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from pydantic import Field, FiniteFloat, JsonValue, model_validator

from nunatak_contract.enums import IntervalMethod
from nunatak_contract.heads import Label
from nunatak_contract.names import Digest
from nunatak_contract.record import Record, later

MAX_CONFUSION_CELLS = 100_000
MAX_RELIABILITY_BINS = 15
"""Bins of the expected calibration error, as in Guo et al. 2017."""
CONFIDENCE = 0.95
"""The confidence of all intervals."""
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

ProbeText = Annotated[str, Field(max_length=4096)]
ProbeInput = ProbeText | tuple[ProbeText, ProbeText]
ProbeLogits = tuple[FiniteFloat, ...] | tuple[tuple[FiniteFloat, ...], ...]


class DataRecord(Record, frozen=True):
    """The examples that trained a version and chose its best epoch."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    train_digest: Digest
    dev_digest: Digest
    num_train: Annotated[int, Field(ge=1)]
    num_dev: Annotated[int, Field(ge=1)]
    num_train_long: Annotated[int, Field(ge=0)] | None = later(
        None, "examples of more tokens than the task reads at once"
    )
    num_dev_long: Annotated[int, Field(ge=0)] | None = later(None)

    @property
    def long_share(self) -> float | None:
        """The share of train and dev examples that do not fit; None if not counted."""
        if self.num_train_long is None or self.num_dev_long is None:
            return None
        return (self.num_train_long + self.num_dev_long) / (self.num_train + self.num_dev)


class RecipeRecord(Record, frozen=True):
    """How a version was trained: the settings in full, and their digest."""

    settings: dict[str, JsonValue]
    digest: Digest


class MetricRecord(Record, frozen=True):
    """One score and the data it was measured on."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    value: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None = later(None, "at 95 %")
    interval_method: IntervalMethod | None = later(
        None, "how the interval was found; null: by bootstrap, if there is an interval"
    )
    data_digest: Digest
    num_examples: Annotated[int, Field(ge=1)]


class TeacherRecord(Record, frozen=True):
    """What a version was adopted from, and how well it agrees with that on held-out examples.

    Held-out examples are those of the test part, or the dev examples if there is no test part.
    """

    name: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="a task version, the address of a server, or the name of a file"
    )
    digest: Digest = Field(
        description="of the content of the version, of the question, or of the train examples"
    )
    num_texts: Annotated[int, Field(ge=1)] = Field(description="with probabilities of the teacher")
    seconds: Annotated[FiniteFloat, Field(ge=0)] = Field(description="of asking the teacher")
    agreement: MetricRecord = Field(
        description="accuracy: the share of examples with the teacher's label or labels; of "
        "values: the rank correlation with the teacher's"
    )
    score: MetricRecord | None = Field(
        default=None, description="the teacher's, on the held-out examples with an own label"
    )
    own_score: MetricRecord | None = Field(
        default=None, description="the version's, on the same examples"
    )


class ConfusionCell(Record, frozen=True):
    """The number of examples for a pair of true label and predicted label."""

    truth: Label
    predicted: Label
    count: Annotated[int, Field(ge=1)]


class ConfusionRecord(Record, frozen=True):
    """The confusion matrix of a data set; pairs of labels that never met are left out."""

    data_digest: Digest
    cells: Annotated[tuple[ConfusionCell, ...], Field(min_length=1, max_length=MAX_CONFUSION_CELLS)]

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Counts by true and predicted label."""
        return {(cell.truth, cell.predicted): cell.count for cell in self.cells}

    @model_validator(mode="after")
    def _no_pair_twice(self) -> "ConfusionRecord":
        if len(self.counts) != len(self.cells):
            raise ValueError("a confusion matrix must name each pair of labels once")
        return self


class ReliabilityBin(Record, frozen=True):
    """The scores of one range: their number, their mean, and the share of scores that were right.

    A score of a task with one label for each text is the score of the predicted label. Of several
    labels, each label of each text has a score, which is right if the label applies.
    """

    count: Annotated[int, Field(ge=1)]
    score: Annotated[FiniteFloat, Field(ge=0, le=1)]
    share_right: Annotated[FiniteFloat, Field(ge=0, le=1)]


ReliabilityBins = Annotated[
    tuple[ReliabilityBin, ...], Field(min_length=1, max_length=MAX_RELIABILITY_BINS)
]


class ReliabilityRecord(Record, frozen=True):
    """The expected calibration error of a data set, before and after calibration.

    Bins are in the order of their scores. Bins without scores are left out.
    """

    data_digest: Digest
    num_examples: Annotated[int, Field(ge=1)]
    error_before: Annotated[FiniteFloat, Field(ge=0, le=1)]
    error_after: Annotated[FiniteFloat, Field(ge=0, le=1)]
    bins_before: ReliabilityBins
    bins_after: ReliabilityBins


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """What a threshold on the score of one label finds."""

    threshold: float
    """The label is found from this score up."""
    num_found: int
    num_right: int
    """Examples that were found and have the label."""
    num_expected: int
    """Examples that have the label; at least 1."""

    @property
    def precision(self) -> float:
        """The share of right ones among the found examples."""
        return self.num_right / self.num_found

    @property
    def recall(self) -> float:
        """The share of found ones among the examples with the label."""
        return self.num_right / self.num_expected

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.num_right / (self.num_found + self.num_expected)

    @property
    def precision_interval(self) -> tuple[float, float]:
        """Wilson's interval of the precision."""
        return wilson_bounds(self.precision, self.num_found)

    @property
    def recall_interval(self) -> tuple[float, float]:
        """Wilson's interval of the recall."""
        return wilson_bounds(self.recall, self.num_expected)


Threshold = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class ThresholdCurve(Record, frozen=True):
    """Precision and recall of one label over thresholds, as counts of dev examples.

    A point is a threshold, the number of examples with at least this score, and the number of these
    that have the label. Points are in the order of falling thresholds.
    """

    label: Label
    num_expected: Annotated[int, Field(ge=0)]
    points: tuple[tuple[Threshold, Count, Count], ...]

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """The points by name; none if no example has the label."""
        return tuple(
            OperatingPoint(
                threshold=threshold,
                num_found=num_found,
                num_right=num_right,
                num_expected=self.num_expected,
            )
            for threshold, num_found, num_right in self.points
        )

    def at(self, threshold: float) -> OperatingPoint | None:
        """Return the lowest recorded point from a threshold up; None if there is none.

        The threshold itself finds at least as many examples.
        """
        return next((it for it in self.operating_points[::-1] if it.threshold >= threshold), None)

    def best(self, *, precision: float = 0.0, recall: float = 0.0) -> OperatingPoint | None:
        """Return the point with the largest F1 of those that reach a precision and a recall.

        With a wanted precision alone, it is the point with the largest recall, and with a wanted
        recall alone, the point with the largest precision. Among equal points, the largest
        threshold wins. None if no point reaches both.
        """
        reached = [
            point
            for point in self.operating_points
            if point.precision >= precision and point.recall >= recall
        ]
        if not reached:
            return None
        match precision > 0, recall > 0:
            case True, False:
                return max(reached, key=lambda point: point.recall)
            case False, True:
                return max(reached, key=lambda point: point.precision)
            case _:
                return max(reached, key=lambda point: point.f1)

    @model_validator(mode="after")
    def _points_count_examples(self) -> "ThresholdCurve":
        for threshold, num_found, num_right in self.points:
            if num_right > min(num_found, self.num_expected):
                raise ValueError(
                    f"threshold {threshold:g} of {self.label!r} finds {num_right} right examples "
                    f"of {num_found}, of {self.num_expected} with the label"
                )
        thresholds = [point[0] for point in self.points]
        if thresholds != sorted(set(thresholds), reverse=True):
            raise ValueError(f"the thresholds of {self.label!r} must fall")
        return self


class CalibrationRecord(Record, frozen=True):
    """How far the scores of a version can be trusted.

    The output layer of the version contains the temperature: its weights and its bias were divided
    by it.
    """

    temperature: Annotated[FiniteFloat, Field(gt=0)] = Field(
        description="1: no other temperature lowered the loss of held-out dev examples"
    )
    dev: ReliabilityRecord = Field(
        description="after: each example with the temperature of other examples"
    )
    test: ReliabilityRecord | None = None
    curves: tuple[ThresholdCurve, ...] = Field(
        description="of each label on the dev examples, with the scores of the version"
    )


class ProbeRecord(Record, frozen=True):
    """A few inputs with their expected logits. A server runs the probe before it serves a version.

    Some heads read pairs: a question with its context, or a query with a document.
    """

    inputs: Annotated[tuple[ProbeInput, ...], Field(min_length=1, max_length=32)]
    logits: tuple[ProbeLogits, ...] = Field(description="per token for heads that read tokens")
    tolerance: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1e-4

    @model_validator(mode="after")
    def _one_row_of_logits_per_input(self) -> "ProbeRecord":
        if len(self.logits) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} probe inputs, but {len(self.logits)} logit rows")
        return self

    @model_validator(mode="after")
    def _tokens_have_equally_many_logits(self) -> "ProbeRecord":
        for row in self.logits:
            if len({len(token) for token in row if isinstance(token, tuple)}) > 1:
                raise ValueError("the tokens of a probe input must have equally many logits")
        return self


def wilson_bounds(share: float, count: int) -> tuple[float, float]:
    """Return the interval of a share of `count` independent units, one or more.

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    square = NORMAL_QUANTILE**2 / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    # Rounding must not move the interval's end past the share.
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))

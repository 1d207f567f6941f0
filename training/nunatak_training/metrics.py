"""Scores of predicted against true labels, by scikit-learn."""

# scikit-learn ships no types; those inferred from its sources are wrong for `zero_division`.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportArgumentType=false

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


class Metric(StrEnum):
    """What a task version is chosen and reported by; larger is better for each."""

    ACCURACY = "accuracy"
    F1 = "f1"
    F1_MACRO = "f1_macro"
    F1_MICRO = "f1_micro"
    MATTHEWS_CORRELATION = "matthews_correlation"


def score(
    metric: Metric,
    expected: Sequence[str],
    predicted: Sequence[str],
    *,
    positive_label: str | None = None,
) -> float:
    """Score predictions; `positive_label` is the label whose F1 `Metric.F1` reports.

    Precision and recall of a label that is never predicted, or never expected, count as 0.
    """
    match metric:
        case Metric.ACCURACY:
            return float(accuracy_score(expected, predicted))
        case Metric.F1:
            # The mean over one label is that label's F1, however many labels there are.
            return float(
                f1_score(
                    expected,
                    predicted,
                    labels=[positive_label],
                    average="macro",
                    zero_division=0,
                )
            )
        case Metric.F1_MACRO:
            return float(f1_score(expected, predicted, average="macro", zero_division=0))
        case Metric.F1_MICRO:
            return float(f1_score(expected, predicted, average="micro", zero_division=0))
        case Metric.MATTHEWS_CORRELATION:
            return float(matthews_corrcoef(expected, predicted))


def confusion(expected: Sequence[str], predicted: Sequence[str]) -> Mapping[tuple[str, str], int]:
    """Count how often each pair of true and predicted label occurred."""
    return Counter(zip(expected, predicted, strict=True))

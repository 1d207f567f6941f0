"""Comparison of a shadow with the answering version, and its report."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, TypeVar

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.outputs import Output
from nunatak_server.telemetry.metrics import DRIFT_BOUNDS

FULL_OPTIONS: Final = Parameters(ignore_labels=[])
"""All that a head can output: a score for each label, a label for each token."""

Items = Sequence[Mapping[str, Any]]
Name = TypeVar("Name")
PLACE: Final = itemgetter("start", "end")
NAMES: Final = {
    HeadKind.SEQUENCE_CLASSIFICATION: itemgetter("label"),
    HeadKind.QUESTION_ANSWERING: PLACE,
    HeadKind.RANKING: itemgetter("index"),
}
"""What tells the items of an output apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    agreement: float
    """1 for equal answers, else 0; for token labels the share of tokens with equal labels."""
    drifts: tuple[float, ...]
    """Absolute differences of the scores."""

    @property
    def max_drift(self) -> float:
        return max(self.drifts, default=0.0)


def compare_outputs(
    head: HeadRecord, output: Output, shadow_head: HeadRecord, shadow: Output, *, tolerance: float
) -> Comparison:
    """Compare two outputs made with `FULL_OPTIONS` by heads of one kind and problem.

    Equal are the same label, labels, best span or first document, and values within `tolerance`. A
    label that one version lacks has the score 0 there.
    """
    if head.kind is HeadKind.TOKEN_CLASSIFICATION:
        return _compare_tokens(output, shadow)
    name = NAMES[head.kind]
    scores, others = ({name(it): it["score"] for it in items} for items in (output, shadow))
    match head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return _compare_labels((head, scores), (shadow_head, others), tolerance)
        case HeadKind.QUESTION_ANSWERING:
            best, other = _first(scores), _first(others)
            drifts = () if best is None or other is None else (abs(scores[best] - others[other]),)
            return Comparison(agreement=float(best == other), drifts=drifts)
        case _:
            is_equal = _first(scores) == _first(others)
            return Comparison(agreement=float(is_equal), drifts=_drifts(scores, others))


def _compare_labels(
    own: tuple[HeadRecord, Mapping[str, float]],
    other: tuple[HeadRecord, Mapping[str, float]],
    tolerance: float,
) -> Comparison:
    (head, scores), (_, shadow) = own, other
    match head.problem_type:
        case ProblemType.REGRESSION:
            # Each output has one value, and the names of the two values may differ.
            (value,), (shadow_value,) = scores.values(), shadow.values()
            drift = abs(value - shadow_value)
            return Comparison(agreement=float(drift <= tolerance), drifts=(drift,))
        case ProblemType.MULTI_LABEL:
            is_equal = _applying(*own) == _applying(*other)
        case ProblemType.SINGLE_LABEL | None:
            is_equal = _first(scores) == _first(shadow)
    return Comparison(agreement=float(is_equal), drifts=_drifts(scores, shadow))


def _compare_tokens(output: Items, shadow: Items) -> Comparison:
    own, other = ({PLACE(it): it for it in items} for items in (output, shadow))
    pairs = [(own[place], other[place]) for place in own.keys() & other.keys()]
    num_equal = sum(one["entity"] == two["entity"] for one, two in pairs)
    num_tokens = len(own.keys() | other.keys())
    return Comparison(
        agreement=num_equal / num_tokens if num_tokens else 1.0,
        drifts=tuple(abs(one["score"] - two["score"]) for one, two in pairs),
    )


def _first(scores: Mapping[Name, float]) -> Name | None:
    return next(iter(scores), None)


def _drifts(scores: Mapping[Name, float], shadow: Mapping[Name, float]) -> tuple[float, ...]:
    names = {**scores, **shadow}
    return tuple(abs(scores.get(name, 0.0) - shadow.get(name, 0.0)) for name in names)


def _applying(head: HeadRecord, scores: Mapping[str, float]) -> set[str]:
    return {label for label, score in scores.items() if score >= head.threshold(label)}


@dataclass(slots=True, kw_only=True)
class ShadowComparison:
    """The comparison of one shadow with one version so far. Counts are inputs."""

    compared: int = 0
    agreed: float = 0.0
    errors: int = 0
    dropped: int = 0
    num_scores: int = 0
    drift_sum: float = 0.0
    max_drift: float | None = None
    drift_counts: list[int] = field(default_factory=lambda: [0] * (len(DRIFT_BOUNDS) + 1))
    """Inputs by the largest drift of their scores: a count for each bound, and one above."""

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def mean_drift(self) -> float | None:
        return self.drift_sum / self.num_scores if self.num_scores else None

    def add(self, comparison: Comparison) -> None:
        self.compared += 1
        self.agreed += comparison.agreement
        self.num_scores += len(comparison.drifts)
        self.drift_sum += sum(comparison.drifts)
        if comparison.drifts:
            self.max_drift = max(self.max_drift or 0.0, comparison.max_drift)
        self.drift_counts[bisect_left(DRIFT_BOUNDS, comparison.max_drift)] += 1

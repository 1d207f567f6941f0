"""Comparison of a shadow with the answering version.

`compare_outputs` compares two outputs for one input. `Reports` adds the comparisons up for each
pair of versions, on this server since its start.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cachetools import LRUCache

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.entities import TokenEntity
from nunatak_server.outputs.outputs import Output
from nunatak_server.residency.resident_set import VersionKey, key_of

FULL_OPTIONS: Final = Parameters(ignore_labels=[])
"""All that a head can output: a score for each label, a label for each token."""

Name = TypeVar("Name", str, int, tuple[int, int])
Place = tuple[int, int]
"""Begin and end of a part of a text, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The agreement of two answers to one input."""

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

    Two answers are equal if they predict the same label, the same labels by the thresholds of each
    version (where several may apply), values at most `tolerance` apart (regression), the same best
    span, or the same first document. A label that one version lacks has the score 0 there.
    """
    match head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            own, other = (head, _labels(output)), (shadow_head, _labels(shadow))
            return _compare_labels(own, other, tolerance)
        case HeadKind.TOKEN_CLASSIFICATION:
            return _compare_tokens(_tokens(output), _tokens(shadow))
        case HeadKind.QUESTION_ANSWERING:
            return _compare_spans(_spans(output), _spans(shadow))
        case HeadKind.RANKING:
            return _compare_rankings(_documents(output), _documents(shadow))


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


def _compare_tokens(
    tokens: Mapping[Place, TokenEntity], shadow: Mapping[Place, TokenEntity]
) -> Comparison:
    """Compare tokens by place; the two versions may read different lengths of the text."""
    shared = tokens.keys() & shadow.keys()
    num_equal = sum(tokens[place]["entity"] == shadow[place]["entity"] for place in shared)
    num_tokens = len(tokens.keys() | shadow.keys())
    return Comparison(
        agreement=num_equal / num_tokens if num_tokens else 1.0,
        drifts=tuple(abs(tokens[place]["score"] - shadow[place]["score"]) for place in shared),
    )


def _compare_spans(spans: Mapping[Place, float], shadow: Mapping[Place, float]) -> Comparison:
    own, other = _first(spans), _first(shadow)
    drifts = () if own is None or other is None else (abs(spans[own] - shadow[other]),)
    return Comparison(agreement=float(own == other), drifts=drifts)


def _compare_rankings(scores: Mapping[int, float], shadow: Mapping[int, float]) -> Comparison:
    is_equal = _first(scores) == _first(shadow)
    return Comparison(agreement=float(is_equal), drifts=_drifts(scores, shadow))


def _labels(output: Output) -> dict[str, float]:
    return {item["label"]: item["score"] for item in output if "label" in item}


def _tokens(output: Output) -> dict[Place, TokenEntity]:
    return {(item["start"], item["end"]): item for item in output if "entity" in item}


def _spans(output: Output) -> dict[Place, float]:
    return {(item["start"], item["end"]): item["score"] for item in output if "answer" in item}


def _documents(output: Output) -> dict[int, float]:
    return {
        item["index"]: item["score"] for item in output if "index" in item and "entity" not in item
    }


def _first(scores: Mapping[Name, float]) -> Name | None:
    return next(iter(scores), None)


def _drifts(scores: Mapping[Name, float], shadow: Mapping[Name, float]) -> tuple[float, ...]:
    names = {**scores, **shadow}
    return tuple(abs(scores.get(name, 0.0) - shadow.get(name, 0.0)) for name in names)


def _applying(head: HeadRecord, scores: Mapping[str, float]) -> set[str]:
    return {label for label, score in scores.items() if score >= head.threshold(label)}


DRIFT_BOUNDS: Final = (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of the histogram of drifts; one more count holds the drifts above."""
MAX_PAIRS: Final = 1000
"""Reports in memory. The pair with the oldest entry is dropped first."""

Pair = tuple[VersionKey, VersionKey]
"""The version that answered, and the shadow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowComparison:
    """The comparison of one shadow with one version. Counts are inputs."""

    compared: int = 0
    agreement: float | None = None
    """The mean over the compared inputs."""
    errors: int = 0
    dropped: int = 0
    mean_drift: float | None = None
    """The mean over all scores of the compared inputs."""
    max_drift: float | None = None
    drift_counts: tuple[int, ...] = (0,) * (len(DRIFT_BOUNDS) + 1)
    """Number of inputs by the largest drift of their scores: one count for each bound, one
    above."""


@dataclass(slots=True, kw_only=True)
class _Tally:
    compared: int = 0
    agreed: float = 0.0
    errors: int = 0
    dropped: int = 0
    num_scores: int = 0
    drift_sum: float = 0.0
    max_drift: float = 0.0
    drift_counts: list[int] = field(default_factory=lambda: [0] * (len(DRIFT_BOUNDS) + 1))

    def report(self) -> ShadowComparison:
        return ShadowComparison(
            compared=self.compared,
            agreement=self.agreed / self.compared if self.compared else None,
            errors=self.errors,
            dropped=self.dropped,
            mean_drift=self.drift_sum / self.num_scores if self.num_scores else None,
            max_drift=self.max_drift if self.num_scores else None,
            drift_counts=tuple(self.drift_counts),
        )


def pair_of(answered: TaskManifest, shadow: TaskManifest) -> Pair:
    """Return the key of the report of two versions."""
    return key_of(answered), key_of(shadow)


class Reports:
    """Adds up comparisons by pair; only the event loop thread may use it."""

    def __init__(self) -> None:
        self._tallies = LRUCache[Pair, _Tally](MAX_PAIRS)

    def report(self, pair: Pair) -> ShadowComparison:
        """Return the report of a pair; an empty report before the first comparison."""
        tally = self._tallies.get(pair)
        return ShadowComparison() if tally is None else tally.report()

    def add_comparisons(self, pair: Pair, comparisons: Iterable[Comparison]) -> None:
        """Add comparisons of inputs that both versions answered."""
        tally = self._tally(pair)
        for comparison in comparisons:
            tally.compared += 1
            tally.agreed += comparison.agreement
            tally.num_scores += len(comparison.drifts)
            tally.drift_sum += sum(comparison.drifts)
            tally.max_drift = max(tally.max_drift, comparison.max_drift)
            tally.drift_counts[bisect_left(DRIFT_BOUNDS, comparison.max_drift)] += 1

    def add_errors(self, pair: Pair, num_inputs: int) -> None:
        self._tally(pair).errors += num_inputs

    def add_dropped(self, pair: Pair, num_inputs: int) -> None:
        self._tally(pair).dropped += num_inputs

    def _tally(self, pair: Pair) -> _Tally:
        return self._tallies.setdefault(pair, _Tally())

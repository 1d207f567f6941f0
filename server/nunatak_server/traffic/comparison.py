"""Comparison: what a shadow would have answered against what was answered, for one input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from nunatak_registry import HeadKind, HeadRecord, ProblemType
from nunatak_server.postprocess import EntityOptions, TokenEntity
from nunatak_server.postprocess.outputs import Output, PredictionOptions

FULL_OPTIONS: Final = PredictionOptions(entities=EntityOptions(ignored_labels=frozenset()))
"""Everything that a head says: of each label its score, of each token its label."""
CHOSEN_FROM: Final = 0.5
"""The score from which a label of several counts as chosen."""

Name = TypeVar("Name", str, int, tuple[int, int])
Place = tuple[int, int]
"""Where a part of a text begins and ends, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far two answers to one input agree."""

    agreement: float
    """From 0 to 1: 1 for equal answers; of token labels the share of tokens labelled alike."""
    drifts: tuple[float, ...]
    """Absolute differences of the scores that both give."""

    @property
    def max_drift(self) -> float:
        """The largest difference."""
        return max(self.drifts, default=0.0)


def compare_outputs(
    head: HeadRecord, output: Output, shadow: Output, *, tolerance: float
) -> Comparison:
    """Compare two outputs made with `FULL_OPTIONS` by heads of one kind and problem.

    Equal are answers with the same best label, the same chosen labels (several may be), values
    at most `tolerance` apart (regression), the same best span, or the same first document. A label
    that one of them does not know has the score 0 there.
    """
    match head.kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return _compare_labels(_labels(output), _labels(shadow), head.problem_type, tolerance)
        case HeadKind.TOKEN_CLASSIFICATION:
            return _compare_tokens(_tokens(output), _tokens(shadow))
        case HeadKind.QUESTION_ANSWERING:
            return _compare_spans(_spans(output), _spans(shadow))
        case HeadKind.RANKING:
            return _compare_rankings(_documents(output), _documents(shadow))


def _compare_labels(
    scores: Mapping[str, float],
    shadow: Mapping[str, float],
    problem: ProblemType | None,
    tolerance: float,
) -> Comparison:
    match problem:
        case ProblemType.REGRESSION:
            # Each has one value, whatever it is called.
            (value,), (other,) = scores.values(), shadow.values()
            drift = abs(value - other)
            return Comparison(agreement=float(drift <= tolerance), drifts=(drift,))
        case ProblemType.MULTI_LABEL:
            is_equal = _chosen(scores) == _chosen(shadow)
        case ProblemType.SINGLE_LABEL | None:
            is_equal = _first(scores) == _first(shadow)
    return Comparison(agreement=float(is_equal), drifts=_drifts(scores, shadow))


def _compare_tokens(
    tokens: Mapping[Place, TokenEntity], shadow: Mapping[Place, TokenEntity]
) -> Comparison:
    """Compare by place in the text; versions may read it to different lengths."""
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


def _chosen(scores: Mapping[str, float]) -> set[str]:
    return {label for label, score in scores.items() if score >= CHOSEN_FROM}

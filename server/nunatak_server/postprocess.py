"""From logits to labelled scores, best first, in the shape of Hugging Face pipelines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, assert_never

from nunatak_registry import ProblemType


class ScoreFunction(StrEnum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


class LabelScore(TypedDict):
    """One label and its score."""

    label: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """What the caller wants to see: None means the default of the task, and every label."""

    function: ScoreFunction | None = None
    top_k: int | None = None


def label_scores(
    logits: Sequence[float],
    *,
    labels: Sequence[str],
    problem_type: ProblemType,
    options: ScoreOptions,
) -> list[LabelScore]:
    """Name and order the scores of one row, best first; equal scores keep the label order."""
    scores = _scores(logits, options.function or default_function(problem_type))
    ranked = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
    return [LabelScore(label=label, score=score) for label, score in ranked[: options.top_k]]


def default_function(problem_type: ProblemType) -> ScoreFunction:
    """Return the function that fits how a task was trained."""
    match problem_type:
        case ProblemType.SINGLE_LABEL:
            return ScoreFunction.SOFTMAX


def _scores(logits: Sequence[float], function: ScoreFunction) -> list[float]:
    match function:
        case ScoreFunction.SOFTMAX:
            return _softmax(logits)
        case ScoreFunction.SIGMOID:
            return [_sigmoid(logit) for logit in logits]
        case ScoreFunction.NONE:
            return list(logits)
        case _:
            assert_never(function)


def _softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def _sigmoid(logit: float) -> float:
    # exp never overflows for a non-positive argument.
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    weight = math.exp(logit)
    return weight / (1 + weight)

"""Sequence classification and regression: labelled scores, best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from nunatak_registry import ProblemType
from nunatak_server.postprocess.scores import ScoreFunction, apply_function


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
    scores = apply_function(options.function or default_function(problem_type), logits)
    ranked = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
    return [LabelScore(label=label, score=score) for label, score in ranked[: options.top_k]]


def default_function(problem_type: ProblemType) -> ScoreFunction:
    """Return the function that fits how a task was trained."""
    match problem_type:
        case ProblemType.SINGLE_LABEL:
            return ScoreFunction.SOFTMAX
        case ProblemType.MULTI_LABEL:
            return ScoreFunction.SIGMOID
        case ProblemType.REGRESSION:
            return ScoreFunction.NONE

"""Scores: logits become labelled scores, values and ranked documents."""

import math
from collections.abc import Sequence
from typing import NotRequired, TypedDict, assert_never

from nunatak_contract.enums import FunctionToApply, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_contract.requests import Parameters
from nunatak_contract.wire import PredictedValue


def apply_function(function: FunctionToApply, logits: Sequence[float]) -> list[float]:
    """Turn logits that belong together into scores; softmax makes them a distribution."""
    match function:
        case FunctionToApply.SOFTMAX:
            return softmax(logits)
        case FunctionToApply.SIGMOID:
            return [_sigmoid(logit) for logit in logits]
        case FunctionToApply.NONE:
            return list(logits)
        case _:
            assert_never(function)


def softmax(logits: Sequence[float]) -> list[float]:
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


class LabelScore(TypedDict):
    label: str
    score: float


def label_scores(
    logits: Sequence[float], head: HeadRecord, options: Parameters
) -> tuple[list[LabelScore], PredictedValue]:
    """Return the labels by score, best first, and what is predicted, whatever the options."""
    default = default_function(head.problem_type)
    function = options.function_to_apply or default
    own = apply_function(default, logits)
    scores = own if function is default else apply_function(function, logits)
    ranked = sorted(zip(head.labels, scores, strict=True), key=lambda pair: -pair[1])
    shown = [LabelScore(label=label, score=score) for label, score in ranked[: options.top_k]]
    return shown, predicted_of(logits, own, head)


def default_function(problem_type: ProblemType | None) -> FunctionToApply:
    match problem_type:
        case ProblemType.SINGLE_LABEL | None:
            return FunctionToApply.SOFTMAX
        case ProblemType.MULTI_LABEL:
            return FunctionToApply.SIGMOID
        case ProblemType.REGRESSION:
            return FunctionToApply.NONE


def predicted_of(
    logits: Sequence[float], scores: Sequence[float], head: HeadRecord
) -> PredictedValue:
    """Return the best label, all labels that reach their thresholds, or the value.

    `scores` are those of the default function.
    """
    match head.problem_type:
        case ProblemType.REGRESSION:
            return logits[0]
        case ProblemType.MULTI_LABEL:
            scored = zip(head.labels, scores, strict=True)
            found = [it for it in scored if it[1] >= head.threshold(it[0])]
            return tuple(label for label, _ in sorted(found, key=lambda it: -it[1]))
        case ProblemType.SINGLE_LABEL | None:
            return head.labels[logits.index(max(logits))]


class DocumentScore(TypedDict):
    """One document by its position in the query, with its text only on request."""

    index: int
    score: float
    document: NotRequired[str]


def rank_documents(
    logits: Sequence[float],
    documents: Sequence[str],
    *,
    default: FunctionToApply = FunctionToApply.SIGMOID,
    options: Parameters,
) -> list[DocumentScore]:
    """Return the documents by logit, best first; ties keep the order of the query."""
    scores = apply_function(options.function_to_apply or default, logits)
    # Sorted by logits, because scores of large logits round to the same number.
    order = sorted(range(len(documents)), key=lambda index: -logits[index])
    ranked: list[DocumentScore] = []
    for index in order[: options.top_k]:
        found = DocumentScore(index=index, score=scores[index])
        if options.return_documents:
            found["document"] = documents[index]
        ranked.append(found)
    return ranked

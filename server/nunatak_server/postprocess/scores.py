"""Scores: what logits become before they are shown."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never


class ScoreFunction(StrEnum):
    """How logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


def apply_function(function: ScoreFunction, logits: Sequence[float]) -> list[float]:
    """Turn logits that belong together into scores; softmax makes them a distribution."""
    match function:
        case ScoreFunction.SOFTMAX:
            return softmax(logits)
        case ScoreFunction.SIGMOID:
            return [_sigmoid(logit) for logit in logits]
        case ScoreFunction.NONE:
            return list(logits)
        case _:
            assert_never(function)


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the distribution that at least one logit stands for."""
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

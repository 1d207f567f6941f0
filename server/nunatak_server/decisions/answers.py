"""Answers: the probabilities of a question's outcomes, and how sure they are.

Probabilities are those of the task, with its calibration: the outcome of a label has the score of
the label, and labels with one outcome are added up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import Outcome, QuestionCard, TypedQuestion
from nunatak_server.outputs.outputs import LabelScore
from nunatak_server.predict.types import StageTimes, TaskPrediction


class AnswerSource(StrEnum):
    """The kind of what answers a question."""

    TASK = "task"
    EMBEDDINGS = "embeddings"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    question: TypedQuestion
    title: str
    """What messages call the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """The answer to one question, with its source."""

    question: TypedQuestion
    probabilities: tuple[float, ...]
    """One for each outcome of the question, in order; they sum to 1."""
    by: AnswerSource
    about: Mapping[str, str | float]
    """Names of the task version and the card, of the backbone, or of the upstream's model."""

    @property
    def source(self) -> Mapping[str, str | float]:
        return {"kind": self.by.value, **self.about}

    @property
    def best(self) -> Outcome:
        """The most likely outcome; of equal ones the first."""
        return self.question.outcomes[self.best_place]

    @property
    def best_place(self) -> int:
        return self.probabilities.index(max(self.probabilities))

    @property
    def expectation(self) -> float:
        """The expected place of a level, from 0."""
        return math.fsum(place * share for place, share in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """How sure a choice or score is, from 0 (all outcomes alike) to 1.

        A choice: (p_max - 1/n) / (1 - 1/n). A score: 1 less the mean distance from the most likely
        level, in units of the mean distance of equal shares from the middle. Both are the formulas
        of System One (jevcompat 0.1, section 4.5).
        """
        shares, num = self.probabilities, len(self.probabilities)
        if self.question.type != "score":
            return max(0.0, (max(shares) - 1 / num) / (1 - 1 / num))
        mode = shares.index(max(shares))
        spread = math.fsum(share * abs(place - mode) for place, share in enumerate(shares))
        alike = math.fsum(abs(place - (num - 1) / 2) for place in range(num)) / num
        return max(0.0, 1 - spread / alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """An answer or a failure for each question of a request, in order."""

    answers: tuple[QuestionAnswer | NunatakError, ...] = ()
    num_tokens: int = 0
    is_cut: bool = False
    """Whether a task or the backbone has not read a part of the text."""
    timings: StageTimes = StageTimes()  # noqa: RUF009 - frozen


def probabilities_of(card: QuestionCard, prediction: TaskPrediction) -> tuple[float, ...]:
    """Return the probability of each outcome of a card's question, about one text.

    The task must fit the card.
    """
    (output,) = prediction.outputs
    scores = {it["label"]: it["score"] for it in cast("list[LabelScore]", output)}
    outcomes = card.question.outcomes
    if prediction.problem_type is ProblemType.REGRESSION:
        (value,) = scores.values()
        return _between_levels(value, bounds=card.bounds, num_levels=len(outcomes))
    if prediction.problem_type is ProblemType.MULTI_LABEL and card.question.type == "predicate":
        (label,) = card.meanings
        return (1 - scores[label], scores[label])
    shares = {(type(it), it): 0.0 for it in outcomes}
    for label, meant in card.meanings.items():
        shares[type(meant), meant] += scores[label]
    return as_shares(tuple(shares.values()))


def as_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return weights as shares of 1; without any weight, all shares are equal."""
    total = math.fsum(weights)
    if total <= 0:
        return (1 / len(weights),) * len(weights)
    return tuple(weight / total for weight in weights)


def _between_levels(
    value: float, *, bounds: tuple[float, float] | None, num_levels: int
) -> tuple[float, ...]:
    """Return shares of the two levels around a value, whose expectation is the value."""
    lowest, highest = bounds or (0.0, num_levels - 1.0)
    place = (value - lowest) / (highest - lowest) * (num_levels - 1)
    place = min(max(place, 0.0), num_levels - 1.0)
    below = min(int(place), num_levels - 2)
    shares = [0.0] * num_levels
    shares[below], shares[below + 1] = 1 - (place - below), place - below
    return tuple(shares)

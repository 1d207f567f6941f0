"""Answers: the probabilities of a question's outcomes, and how sure they are.

Probabilities are those of the task, with its calibration: the outcome of a label has the score of
the label, and labels with one outcome are added up.

Without a task, the backbone answers by the likeness of its embeddings of the text and of each
outcome. The vector of an outcome is remembered by the text of the outcome, so no order of options,
and no other question, changes which vector belongs to which outcome.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final, cast

import torch
from cachetools import LRUCache
from torch import Tensor

from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import Outcome, QuestionCard, TypedQuestion, text_of
from nunatak_model import Backbone
from nunatak_server.outputs.scores import LabelScore
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    EmbeddingRequest,
    Embeddings,
    Handling,
    StageTimes,
    TaskPrediction,
)
from nunatak_server.settings import ServerSettings
from nunatak_server.tokenization import check_texts


class AnswerSource(StrEnum):
    """The kind of what answers a question."""

    TASK = "task"
    EMBEDDINGS = "embeddings"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question of a request."""

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
        """Where the answer comes from, as protocols show it."""
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


MAX_VECTOR_BYTES: Final = 64 * 1024**2
"""Most memory of the vectors of outcomes."""


class Likeness:
    """Answers questions by likeness; only the event loop thread may use it."""

    def __init__(self, *, service: PredictionService, settings: ServerSettings) -> None:
        self._service = service
        self._settings = settings
        self._vectors: LRUCache[tuple[str, bytes], Tensor] = LRUCache(
            MAX_VECTOR_BYTES, getsizeof=lambda it: it.nbytes
        )
        """The vectors of texts of outcomes, by backbone and digest of the text."""

    async def answer(
        self,
        asked: Sequence[AskedQuestion],
        text: str,
        *,
        handling: Handling,
        backbone: Backbone,
    ) -> Decisions:
        """Answer each question by softmax(cosine / temperature) of the text and its outcomes.

        Raises:
            NunatakError: no question can be answered.
        """
        if not asked:
            return Decisions()
        limit = self._settings.max_text_chars
        texts = [_readable_texts(it, max_chars=limit) for it in asked]
        readable = [it for it in texts if not isinstance(it, NunatakError)]
        if not readable:
            return Decisions(answers=tuple(it for it in texts if isinstance(it, NunatakError)))
        known, times = await self._vectors_of(readable, handling, backbone)
        found = await self._embed((text,), handling, backbone)
        vector = torch.tensor(found.vectors[0], dtype=torch.float64)
        answers = [
            it
            if isinstance(it, NunatakError)
            else self._compare(each.question, [known[text] for text in it], vector, backbone)
            for each, it in zip(asked, texts, strict=True)
        ]
        return Decisions(
            answers=tuple(answers),
            num_tokens=found.num_tokens,
            is_cut=found.is_cut,
            timings=StageTimes.slowest((*times, found.timings)),
        )

    async def _vectors_of(
        self, texts: Sequence[Sequence[str]], handling: Handling, backbone: Backbone
    ) -> tuple[Mapping[str, Tensor], list[StageTimes]]:
        """Return the vector of each text, and the times of the embeddings."""
        # In one order, so that the order of questions and options changes no batch.
        wanted = sorted({it for each in texts for it in each})
        keys = {it: (backbone.digest, sha256(it.encode()).digest()) for it in wanted}
        found = {it: kept for it in wanted if (kept := self._vectors.get(keys[it])) is not None}
        missing, times = [it for it in wanted if it not in found], list[StageTimes]()
        # In parts, so that the texts of other callers get their turns.
        size = self._settings.max_inputs
        for part in (missing[at : at + size] for at in range(0, len(missing), size)):
            embedded = await self._embed(tuple(part), handling, backbone)
            times.append(embedded.timings)
            for it, vector in zip(part, embedded.vectors, strict=True):
                found[it] = torch.tensor(vector, dtype=torch.float64)
                self._vectors[keys[it]] = found[it]
            await asyncio.sleep(0)
        return found, times

    async def _embed(
        self, texts: tuple[str, ...], handling: Handling, backbone: Backbone
    ) -> Embeddings:
        request = EmbeddingRequest(
            inputs=texts,
            handling=handling,
            truncates=True,
            normalises=True,
            backbone=backbone.digest,
        )
        return await self._service.embed(request)

    def _compare(
        self, question: TypedQuestion, outcomes: list[Tensor], vector: Tensor, backbone: Backbone
    ) -> QuestionAnswer:
        # Row by row, because the sums of a matrix product depend on the place of a row.
        likeness = list(map(float, (torch.stack(outcomes) * vector).sum(dim=1)))
        temperature, largest = self._settings.decisions_temperature, max(likeness)
        return QuestionAnswer(
            question=question,
            probabilities=as_shares([math.exp((it - largest) / temperature) for it in likeness]),
            by=AnswerSource.EMBEDDINGS,
            about={"backbone": backbone.name},
        )


def _readable_texts(asked: AskedQuestion, *, max_chars: int) -> tuple[str, ...] | NunatakError:
    texts = outcome_texts(asked.question)
    for place, text in enumerate(texts):
        try:
            check_texts((text,), max_chars=max_chars)
        except NunatakError as error:
            reason = str(error).removeprefix("input 0 ")
            return NunatakError(
                "question_unreadable", question=asked.title, place=place + 1, reason=reason
            )
    return texts


def outcome_texts(question: TypedQuestion) -> tuple[str, ...]:
    """Return the text of each outcome that the backbone compares with a text."""
    asked = text_of(question.instructions or "")
    match question.type:
        case "predicate":
            yes = asked if question.yes is None else text_of(question.yes)
            return (f"Not: {yes}" if question.no is None else text_of(question.no), yes)
        case "choice":
            described = [(str(it.value), it.description) for it in question.options]
        case "score":
            described = [(text_of(it.label), it.description) for it in question.levels]
    return tuple(
        name if about is None else f"{name}: {text_of(about)}" for name, about in described
    )

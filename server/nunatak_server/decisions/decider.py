"""The decider: asks the tasks of all known questions at once, and the backbone about the others.

A question is known if a card of the registry equals it. The version that answers must fit the card:
an alias may have moved since the card was published.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import torch
from cachetools import LRUCache
from prometheus_client import Counter
from torch import Tensor

from nunatak_contract.enums import UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_contract.questions import AnsweringHead, Question, find_card_misfit, text_of
from nunatak_model import Backbone
from nunatak_registry import PublishedCard
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog.facts import KnownFacts
from nunatak_server.decisions.answers import QuestionAnswer, probabilities_of
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.outputs.scores import softmax
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    EmbeddingRequest,
    Embeddings,
    Handling,
    PredictionRequest,
    Predictions,
    StageTimes,
    TaskAnswer,
    TaskFailure,
)
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import LabelValues
from nunatak_server.verdicts.judge import JudgedText

First = TypeVar("First")
Second = TypeVar("Second")
MAX_OPTION_BYTES: Final = 64 * 1024**2
"""Most memory of the vectors of options and levels."""


OPTIONS: Final = JudgedText()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """An answer or a failure for each question of a request, in order."""

    answers: tuple[QuestionAnswer | NunatakError, ...]
    num_tokens: int
    is_cut: bool
    """Whether a task or the backbone has not read a part of the text."""
    timings: StageTimes


class DecisionMetrics:
    """Counts questions."""

    def __init__(self) -> None:
        self.counter = Counter(
            "nunatak_decisions",
            "Questions by card and by what answered: task, embeddings, or the code of a failure",
            ["card", "by"],
            registry=None,
        )
        self._cards = LabelValues()

    def observe(self, card: PublishedCard | None, answer: QuestionAnswer | NunatakError) -> None:
        """Count one question; without a card, the card is empty."""
        by = answer.code if isinstance(answer, NunatakError) else str(answer.source["kind"])
        name = "" if card is None else self._cards.of(card.document.name)
        self.counter.labels(name, by).inc()


class Decider:
    """Answers typed questions; only the event loop thread may use it."""

    def __init__(
        self, *, facts: KnownFacts, service: PredictionService, settings: ServerSettings
    ) -> None:
        self.metrics = DecisionMetrics()
        self._facts = facts
        self._service = service
        self._settings = settings
        self._vectors: LRUCache[tuple[str, str], Tensor] = LRUCache(
            MAX_OPTION_BYTES, getsizeof=lambda it: it.nbytes
        )
        """The vectors of the outcomes of unknown questions, by backbone and question."""

    async def decide(
        self,
        questions: Sequence[Question],
        text: str,
        *,
        handling: Handling,
        backbone: Backbone,
        is_whole: bool = False,
    ) -> Decisions:
        """Answer questions about a text, in one pass of the trunk.

        `backbone` answers unknown questions, if the operator lets it. `is_whole`: no task is asked
        if a question is refused anyway.

        Raises:
            NunatakError: the text or the whole request cannot be answered.
        """
        cards = await self.cards(questions, handling)
        embeds = self._settings.decisions_unknown is UnknownQuestions.EMBEDDINGS
        if is_whole and not embeds and None in cards:
            self.metrics.observe(None, refused := _unknown(cards.index(None)))
            raise refused
        work = self._decide(questions, cards, text, handling, backbone if embeds else None)
        return await within(handling.deadline_s, work, late=DeadlineExceededError)

    async def _decide(
        self,
        questions: Sequence[Question],
        cards: Sequence[PublishedCard | None],
        text: str,
        handling: Handling,
        backbone: Backbone | None,
    ) -> Decisions:
        # One order, so that the order of questions changes no batch.
        references = tuple(sorted({it.document.task for it in cards if it is not None}))
        others = [it for it, card in zip(questions, cards, strict=True) if card is None]
        predicted, likened = await _both(
            self._predict(references, text, handling),
            self._liken(others if backbone else (), text, handling, backbone),
        )
        results = dict(zip(references, predicted.results, strict=True))
        answers = list[QuestionAnswer | NunatakError]()
        for place, (question, card) in enumerate(zip(questions, cards, strict=True)):
            if card is None:
                answer = likened.answers.get(question.digest) or _unknown(place)
            else:
                answer = answer_of(card, question, results[card.document.task])
            self.metrics.observe(card, answer)
            answers.append(answer)
        read = [it.extents[0] for it in predicted.results if not isinstance(it, TaskFailure)]
        return Decisions(
            answers=tuple(answers),
            num_tokens=max((likened.num_tokens, *(it.num_tokens for it in read))),
            is_cut=likened.is_cut or any(it.is_cut for it in read),
            timings=predicted.timings,
        )

    async def cards(
        self, questions: Sequence[Question], handling: Handling
    ) -> list[PublishedCard | None]:
        """Return the card of each question, if there is one whose task the caller may ask."""
        known = await self._facts.cards(handling.caller)
        return [visible(known.get(it.digest), handling.tasks) for it in questions]

    async def _predict(
        self, references: tuple[str, ...], text: str, handling: Handling
    ) -> Predictions:
        if not references:
            return Predictions(results=(), timings=StageTimes())
        request = PredictionRequest(
            references=references, inputs=(text,), options=OPTIONS, handling=handling
        )
        return await self._service.predict(request)

    async def _liken(
        self,
        questions: Sequence[Question],
        text: str,
        handling: Handling,
        backbone: Backbone | None,
    ) -> "Likened":
        """Answer questions by the likeness of the text to each outcome."""
        if backbone is None or not questions:
            return Likened()
        outcomes = [await self._embed_outcomes(it, handling, backbone) for it in questions]
        # In the same batch as the tasks, so that the trunk reads the text once.
        found = await self._embed((text,), handling, backbone)
        (vector,) = found.vectors
        answers = {
            question.digest: self._compare(question, known, vector, backbone)
            for question, known in zip(questions, outcomes, strict=True)
        }
        return Likened(answers=answers, num_tokens=found.num_tokens, is_cut=found.is_cut)

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

    async def _embed_outcomes(
        self, question: Question, handling: Handling, backbone: Backbone
    ) -> Tensor:
        """Return one vector for each outcome; they are remembered by the question's digest."""
        key = (backbone.digest, question.digest)
        found = self._vectors.get(key)
        if found is None:
            texts, vectors = outcome_texts(question), list[list[float]]()
            for begin in range(0, len(texts), self._settings.max_inputs):
                part = texts[begin : begin + self._settings.max_inputs]
                embedded = await self._embed(part, handling, backbone)
                vectors += embedded.vectors
            found = torch.tensor(vectors, dtype=torch.float64)
            if found.nbytes <= MAX_OPTION_BYTES:
                self._vectors[key] = found
        return found

    def _compare(
        self, question: Question, outcomes: Tensor, vector: list[float], backbone: Backbone
    ) -> QuestionAnswer:
        """Answer by the likeness of the text to each outcome: softmax(cosine / temperature)."""
        likeness = outcomes @ torch.tensor(vector, dtype=torch.float64)
        logits = likeness / self._settings.decisions_temperature
        return QuestionAnswer(
            question=question,
            probabilities=tuple(softmax([float(it) for it in logits])),
            source={"kind": "embeddings", "backbone": backbone.name},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Likened:
    """Answers by embeddings, by the digests of their questions."""

    answers: Mapping[str, QuestionAnswer] = field(default_factory=dict[str, QuestionAnswer])
    num_tokens: int = 0
    is_cut: bool = False


async def _both(
    one: Coroutine[Any, Any, First], other: Coroutine[Any, Any, Second]
) -> tuple[First, Second]:
    """Await two works at once, both to their ends; raise the failure of either."""
    found = await asyncio.gather(one, other, return_exceptions=True)
    for it in found:
        if isinstance(it, BaseException):
            raise it
    first, second = found
    return cast("First", first), cast("Second", second)


def _unknown(place: int) -> NunatakError:
    return NunatakError("question_unknown", position=place + 1)


def visible(card: PublishedCard | None, tasks: TaskList) -> PublishedCard | None:
    """Return a card if its task is on the list of a caller."""
    if card is None or not tasks.allows(TaskReference.task_in(card.document.task)):
        return None
    return card


def answer_of(
    card: PublishedCard, question: Question, result: TaskAnswer
) -> QuestionAnswer | NunatakError:
    """Return the answer of a task to the question of its card, or why there is none."""
    if card.document.question.digest != question.digest:
        raise AssertionError("the card of another question")
    if isinstance(result, TaskFailure):
        return result.error
    head = AnsweringHead(
        kind=result.head, problem_type=result.problem_type, labels=tuple(result.labels)
    )
    misfit = find_card_misfit(card.document, head)
    if misfit is not None:
        return NunatakError(
            "question_unanswerable",
            card=card.reference,
            task=result.task,
            version=result.version,
            reason=misfit,
        )
    probabilities = dict(
        zip(card.document.question.outcomes, probabilities_of(card.document, result), strict=True)
    )
    source = {
        "kind": "task",
        "task": f"{result.task}/{result.version}",
        "card": card.reference,
    }
    ordered = tuple(probabilities[it] for it in question.outcomes)
    return QuestionAnswer(question=question, probabilities=ordered, source=source)


def outcome_texts(question: Question) -> tuple[str, ...]:
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

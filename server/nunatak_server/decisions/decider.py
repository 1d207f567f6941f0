"""The decider: asks the tasks of all known questions at once, and the backbone about the others.

A question is known if a card of the registry equals it. The version that answers must fit the card:
an alias may have moved since the card was published.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from prometheus_client import Counter

from nunatak_contract.enums import UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_contract.questions import AnsweringHead, TypedQuestion, find_card_misfit
from nunatak_model import Backbone
from nunatak_registry import Cards, PublishedCard
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog.facts import KnownFacts
from nunatak_server.decisions.answers import (
    AnswerSource,
    AskedQuestion,
    QuestionAnswer,
    probabilities_of,
)
from nunatak_server.decisions.likeness import Likened, Likeness
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    Handling,
    LiteralText,
    PredictionRequest,
    Predictions,
    StageTimes,
    TaskAnswer,
    TaskFailure,
)
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import LabelValues
from nunatak_server.tokenization import check_texts

Binding: TypeAlias = PublishedCard | NunatakError | None
"""The card of a question, why there may be one, or None: the question is unknown."""


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

    def observe(self, card: Binding, answer: QuestionAnswer | NunatakError) -> None:
        """Count one question; without a card, the card is empty."""
        by = answer.code if isinstance(answer, NunatakError) else answer.by.value
        is_bound = not isinstance(card, NunatakError | None)
        name = self._cards.of(card.document.name) if is_bound else ""
        self.counter.labels(name, by).inc()


class Decider:
    """Answers typed questions; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        facts: KnownFacts,
        service: PredictionService,
        settings: ServerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = DecisionMetrics()
        self._facts = facts
        self._service = service
        self._settings = settings
        self._likeness = Likeness(service=service, settings=settings)
        self._clock = clock

    async def decide(
        self,
        asked: Sequence[AskedQuestion],
        text: str,
        *,
        handling: Handling,
        backbone: Backbone,
        is_whole: bool = False,
    ) -> Decisions:
        """Answer questions about a text. All their tasks are asked in one request.

        `backbone` answers unknown questions, if the operator lets it. `is_whole`: no task is asked
        if a question is refused anyway.

        Raises:
            NunatakError: no question can be answered, or with `is_whole`, a question is refused.
        """
        check_texts((text,), max_chars=self._settings.max_text_chars)
        ends_at = self._clock() + handling.deadline_s
        look_up = self._bindings(asked, handling)
        cards = await within(handling.deadline_s, look_up, late=DeadlineExceededError)
        if is_whole:
            for card in cards:
                if isinstance(card, NunatakError):
                    self.metrics.observe(None, card)
                    raise card
        left = replace(handling, own_deadline_s=max(0.0, ends_at - self._clock()))
        return await self._decide(asked, cards, text, left, backbone)

    async def _decide(
        self,
        asked: Sequence[AskedQuestion],
        cards: Sequence[Binding],
        text: str,
        handling: Handling,
        backbone: Backbone,
    ) -> Decisions:
        bound = [it for it in cards if not isinstance(it, NunatakError | None)]
        # One order, so that the order of questions changes no batch.
        references = tuple(sorted({it.document.task for it in bound}))
        others = [it for it, card in zip(asked, cards, strict=True) if card is None]
        # The embedding can meet the tasks in a batch, and rarely does. Its deadline is its own, so
        # that a late embedding or task fails its own questions alone.
        likening = within(
            handling.deadline_s,
            self._likeness.answer(others, text, handling=handling, backbone=backbone),
            late=DeadlineExceededError,
        )
        predicted, likened = await asyncio.gather(
            self._predict(references, text, handling), likening, return_exceptions=True
        )
        results, likely = _results_of(predicted, references), iter(_answers_of(likened, others))
        answers = list[QuestionAnswer | NunatakError]()
        for each, card in zip(asked, cards, strict=True):
            match card:
                case None:
                    answer = next(likely)
                case NunatakError():
                    answer = card
                case _:
                    answer = answer_of(card, each.question, results[card.document.task])
            self.metrics.observe(card, answer)
            answers.append(answer)
        sides = (predicted, likened)
        failures = [it for it in sides if isinstance(it, NunatakError)]
        if failures and not any(isinstance(it, QuestionAnswer) for it in answers):
            raise failures[0]
        read = [it.extents[0] for it in results.values() if not isinstance(it, TaskFailure)]
        done = [it for it in sides if not isinstance(it, BaseException)]
        cut = Likened() if isinstance(likened, BaseException) else likened
        return Decisions(
            answers=tuple(answers),
            num_tokens=max((cut.num_tokens, *(it.num_tokens for it in read))),
            is_cut=cut.is_cut or any(it.is_cut for it in read),
            timings=StageTimes.slowest(it.timings for it in done),
        )

    async def _bindings(self, asked: Sequence[AskedQuestion], handling: Handling) -> list[Binding]:
        """Return the card of each question whose task the caller may ask."""
        known = await self._facts.cards(handling.caller)
        is_refused = self._settings.decisions_unknown is UnknownQuestions.REFUSE
        found = [_binding(known, it.question, handling.tasks) for it in asked]
        return [
            NunatakError("question_unknown", question=it.title)
            if card is None and is_refused
            else card
            for it, card in zip(asked, found, strict=True)
        ]

    async def _predict(
        self, references: tuple[str, ...], text: str, handling: Handling
    ) -> Predictions:
        if not references:
            return Predictions(results=(), timings=StageTimes())
        request = PredictionRequest(
            references=references, inputs=(text,), options=LiteralText(), handling=handling
        )
        return await self._service.predict(request)


def _results_of(
    predicted: Predictions | BaseException, references: Sequence[str]
) -> Mapping[str, TaskAnswer]:
    """Return the answer of each task. A failure of the request is the failure of each task."""
    match predicted:
        case NunatakError():
            return {it: TaskFailure(reference=it, error=predicted) for it in references}
        case BaseException():
            raise predicted
        case _:
            return dict(zip(references, predicted.results, strict=True))


def _answers_of(
    likened: Likened | BaseException, asked: Sequence[AskedQuestion]
) -> Sequence[QuestionAnswer | NunatakError]:
    match likened:
        case NunatakError():
            return [likened] * len(asked)
        case BaseException():
            raise likened
        case _:
            return likened.answers


def _binding(known: Cards, question: TypedQuestion, tasks: TaskList) -> Binding:
    try:
        return visible(known.find(question.digest), tasks)
    except NunatakError as error:
        return error.with_traceback(None)


def visible(card: PublishedCard | None, tasks: TaskList) -> PublishedCard | None:
    """Return a card if its task is on the list of a caller."""
    if card is None or not tasks.allows(TaskReference.task_in(card.document.task)):
        return None
    return card


def answer_of(
    card: PublishedCard, question: TypedQuestion, result: TaskAnswer
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
    # By outcome, because the digest does not say in which order a question has its options.
    probabilities = dict(
        zip(card.document.question.outcomes, probabilities_of(card.document, result), strict=True)
    )
    return QuestionAnswer(
        question=question,
        probabilities=tuple(probabilities[it] for it in question.outcomes),
        by=AnswerSource.TASK,
        about={"task": f"{result.task}/{result.version}", "card": card.reference},
    )

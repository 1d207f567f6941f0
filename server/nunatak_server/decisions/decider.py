"""The decider: asks the tasks of all known questions, and the backbone or an upstream the others.

A question is known if a card of the registry equals it. The version that answers must fit the card:
an alias may have moved since the card was published. An answer below the card's confidence is asked
of the upstream (the cascade).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nunatak_contract.enums import UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_contract.questions import AnsweringHead, Outcome, TypedQuestion, find_card_misfit
from nunatak_model import Backbone
from nunatak_registry import Cards, PublishedCard
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.decisions.answers import (
    AnswerSource,
    AskedQuestion,
    Decisions,
    QuestionAnswer,
    probabilities_of,
)
from nunatak_server.decisions.collection import Collector
from nunatak_server.decisions.likeness import Likeness
from nunatak_server.decisions.upstream import Upstream
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import (
    Handling,
    LiteralText,
    PredictionRequest,
    StageTimes,
    TaskAnswer,
    TaskFailure,
)
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import check_texts

Binding: TypeAlias = PublishedCard | NunatakError | None
"""The card of a question, why there may be one, or None: the question is unknown."""
Bound: TypeAlias = tuple[AskedQuestion, PublishedCard]
UPSTREAM_SHARE = 0.9
"""The share of the time left for an upstream, so that the task's own answer is in time without."""


class Decider:
    """Answers typed questions; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        facts: KnownFacts,
        service: PredictionService,
        settings: ServerSettings,
        metrics: Metrics,
        upstream: Upstream | None = None,
        collector: Collector | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._facts = facts
        self._service = service
        self._settings = settings
        self._likeness = Likeness(service=service, settings=settings)
        self._upstream, self._collector = upstream, collector
        mode = settings.decisions_unknown
        self._asks_upstream = upstream is not None and mode is UnknownQuestions.UPSTREAM
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

        `backbone` answers unknown questions, if the operator lets it. `is_whole`: nothing is asked
        if a question is refused anyway.

        Raises:
            NunatakError: no question can be answered, or with `is_whole`, a question is refused.
        """
        check_texts((text,), max_chars=self._settings.max_text_chars)
        ends_at = self._clock() + handling.deadline_s
        look_up = self._facts.cards(handling.caller)
        found = await within(handling.deadline_s, look_up, late=DeadlineExceededError)
        cards = [self._binding(found, it, handling.tasks) for it in asked]
        for card in cards:
            if isinstance(card, NunatakError):
                self._observe(None, card)
                if is_whole:
                    raise card
        pairs = list(zip(asked, cards, strict=True))
        bound = [(it, card) for it, card in pairs if not isinstance(card, NunatakError | None)]
        others = [it for it, card in pairs if card is None]
        left = replace(handling, own_deadline_s=max(0.0, ends_at - self._clock()))
        # The embedding can meet the tasks in a batch, and rarely does. The deadline of each side is
        # its own, so that a late one fails its own questions alone.
        known, unknown = sides = await asyncio.gather(
            self._ask_tasks(bound, text, left),
            self._ask_about(others, text, left, backbone),
            return_exceptions=True,
        )
        by_task = iter(self._answers_of(known, [card for _, card in bound]))
        by_other = iter(self._answers_of(unknown, [None] * len(others)))
        answers = tuple(
            card if isinstance(card, NunatakError) else next(by_other if card is None else by_task)
            for card in cards
        )
        failures = [it for it in sides if isinstance(it, NunatakError)]
        if failures and not any(isinstance(it, QuestionAnswer) for it in answers):
            raise failures[0]
        done = [it for it in sides if isinstance(it, Decisions)]
        return Decisions(
            answers=answers,
            num_tokens=max((it.num_tokens for it in done), default=0),
            is_cut=any(it.is_cut for it in done),
            timings=StageTimes.slowest(it.timings for it in done),
        )

    def _answers_of(
        self, side: Decisions | BaseException, cards: Sequence[PublishedCard | None]
    ) -> Sequence[QuestionAnswer | NunatakError]:
        """Return the answers of a side. A failure of the side is the failure of each question."""
        match side:
            case NunatakError():
                for card in cards:
                    self._observe(card, side)
                return [side] * len(cards)
            case BaseException():
                raise side
            case _:
                return side.answers

    def _binding(self, known: Cards, asked: AskedQuestion, tasks: TaskList) -> Binding:
        try:
            card = visible(known.find(asked.question.digest), tasks)
        except NunatakError as error:
            return error.with_traceback(None)
        if card is None:
            mode = self._settings.decisions_unknown
            if mode is UnknownQuestions.EMBEDDINGS or self._asks_upstream:
                return None
            return NunatakError("question_unknown", question=asked.title)
        if self._upstream is None and card.document.ask_upstream_below is not None:
            return NunatakError("upstream_missing", card=card.reference)
        return card

    async def _ask_tasks(self, bound: Sequence[Bound], text: str, handling: Handling) -> Decisions:
        """Ask the tasks of all cards in one request, and the upstream about unsure answers."""
        if not bound:
            return Decisions()
        began = self._clock()
        # One order, so that the order of questions changes no batch.
        references = tuple(sorted({card.document.task for _, card in bound}))
        request = PredictionRequest(
            references=references, inputs=(text,), options=LiteralText(), handling=handling
        )
        predicted = await self._service.predict(request)
        results = dict(zip(references, predicted.results, strict=True))
        answers = [
            answer_of(card, asked.question, results[card.document.task]) for asked, card in bound
        ]
        own_s = self._clock() - began
        left_s = max(0.0, UPSTREAM_SHARE * (handling.deadline_s - own_s))
        later = await self._cascade(bound, answers, text, replace(handling, own_deadline_s=left_s))
        for place, (_, card) in enumerate(bound):
            seconds = self._clock() - began if place in later else own_s
            answers[place] = later.get(place, answers[place])
            self._observe(card, answers[place], seconds)
        read = [it.extents[0] for it in results.values() if not isinstance(it, TaskFailure)]
        return Decisions(
            answers=tuple(answers),
            num_tokens=max((it.num_tokens for it in read), default=0),
            is_cut=any(it.is_cut for it in read),
            timings=predicted.timings,
        )

    async def _cascade(
        self,
        bound: Sequence[Bound],
        answers: Sequence[QuestionAnswer | NunatakError],
        text: str,
        handling: Handling,
    ) -> Mapping[int, QuestionAnswer]:
        """Return the answers in the place of unsure ones, by place.

        Where the upstream fails, that is the task's own answer.
        """
        unsure = {
            place: own
            for place, own in enumerate(answers)
            if isinstance(own, QuestionAnswer)
            and own.confidence < (bound[place][1].document.ask_upstream_below or 0)
        }
        if not unsure or self._upstream is None:
            return {}
        asked = [bound[place][0] for place in unsure]
        found = await self._upstream.answer(asked, text, handling=handling)
        later = dict[int, QuestionAnswer]()
        for (place, own), answer in zip(unsure.items(), found.answers, strict=True):
            card, about = bound[place][1], {**own.about, "confidence": own.confidence}
            if isinstance(answer, NunatakError):
                said = answer.code
                later[place] = replace(own, about={**about, "upstream": said})
            else:
                said = "agrees" if answer.best_place == own.best_place else "differs"
                later[place] = replace(answer, about={**about, **answer.about})
                self._keep(answer, card.document.names, text)
            self._metrics.count("decisions_unsure", self._label(card), said)
        return later

    def _observe(
        self, card: PublishedCard | None, answer: QuestionAnswer | NunatakError, seconds: float = 0
    ) -> None:
        is_answered = isinstance(answer, QuestionAnswer)
        labels = self._label(card), answer.by.value if is_answered else answer.code
        self._metrics.count("decisions", *labels)
        if is_answered:
            self._metrics.decision_seconds.labels(*labels).observe(seconds)

    def _label(self, card: PublishedCard | None) -> str:
        return "" if card is None else self._metrics.bounded("card", card.document.name)

    def _keep(self, answer: QuestionAnswer, names: Mapping[Outcome, str], text: str) -> None:
        if self._collector is not None:
            self._collector.keep(answer, names, text)

    async def _ask_about(
        self, asked: Sequence[AskedQuestion], text: str, handling: Handling, backbone: Backbone
    ) -> Decisions:
        if not asked:
            return Decisions()
        began = self._clock()
        if self._upstream is not None and self._asks_upstream:
            found = await self._upstream.answer(asked, text, handling=handling)
            for answer in found.answers:
                if isinstance(answer, QuestionAnswer):
                    self._keep(answer, answer.question.names, text)
        else:
            likening = self._likeness.answer(asked, text, handling=handling, backbone=backbone)
            found = await within(handling.deadline_s, likening, late=DeadlineExceededError)
        for answer in found.answers:
            self._observe(None, answer, self._clock() - began)
        return found


def visible(card: PublishedCard | None, tasks: TaskList) -> PublishedCard | None:
    if card is None or not tasks.allows(TaskReference.task_in(card.document.task)):
        return None
    return card


def answer_of(
    card: PublishedCard, question: TypedQuestion, result: TaskAnswer
) -> QuestionAnswer | NunatakError:
    if card.document.question.digest != question.digest:
        raise AssertionError("the card of another question")
    if isinstance(result, TaskFailure):
        return result.error
    num_unread = max((it.num_unread for it in result.extents), default=0)
    if num_unread and not card.document.unjudged:
        return NunatakError(
            "text_unread", task=result.task, version=result.version, count=num_unread
        )
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

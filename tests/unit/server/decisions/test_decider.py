"""Laws of the decider: what fails, fails alone and in time, and what is cached has no order."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.refusals import raises
from doubles.serving import make_settings
from nunatak_contract.enums import HeadKind, ProblemType, UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_registry import Cards, Published
from nunatak_server.catalog.facts import KnownFacts
from nunatak_server.decisions.answers import AskedQuestion, QuestionAnswer
from nunatak_server.decisions.decider import Decider, Decisions
from nunatak_server.errors import DeadlineExceededError
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
    TaskPrediction,
)
from nunatak_server.tokenization import Extent

BACKBONE = tiny_backbone()
KNOWN = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it urgent?"})
OTHER = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it late?"})


def choice(*options: str) -> TypedQuestion:
    return TypedQuestion.model_validate({"type": "choice", "criteria": dict.fromkeys(options)})


def card_of(question: TypedQuestion, task: str) -> Published[QuestionCard]:
    card = QuestionCard(name=f"card-{task}", task=task, question=question)
    return Published(document=card, version=1, published_at=CREATED_AT, by="ann")


class Facts:
    """Cards in memory; the look-up can be held."""

    def __init__(self, cards: Cards) -> None:
        self.known = cards
        self.gate = asyncio.Event()
        self.gate.set()

    async def cards(self, _caller: str) -> Cards:
        await self.gate.wait()
        return self.known


class Service:
    """Answers at once; tasks and embeddings can fail, and embeddings can be held."""

    def __init__(self) -> None:
        self.failures = dict[str, NunatakError]()
        self.refusal: NunatakError | None = None
        self.embedded = list[tuple[str, ...]]()
        self.gate = asyncio.Event()
        self.gate.set()

    async def predict(self, request: PredictionRequest) -> Predictions:
        if self.refusal is not None:
            raise self.refusal
        results = tuple(map(self._result, request.references))
        return Predictions(results=results, timings=StageTimes(queue_s=1.0, batch_rows=3))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        self.embedded.append(request.inputs)
        await self.gate.wait()
        vectors = tuple([len(it) / 9, sum(map(ord, it)) / 900] for it in request.inputs)
        times = StageTimes(queue_s=0.5, compute_s=2.0, batch_rows=1)
        return Embeddings(vectors=vectors, num_tokens=3, is_cut=False, timings=times)

    def _result(self, reference: str) -> TaskAnswer:
        if reference in self.failures:
            return TaskFailure(reference=reference, error=self.failures[reference])
        scores = [{"label": "yes", "score": 0.75}, {"label": "no", "score": 0.25}]
        return TaskPrediction(
            reference=reference,
            task=reference,
            version=1,
            head=HeadKind.SEQUENCE_CLASSIFICATION,
            problem_type=ProblemType.SINGLE_LABEL,
            labels=("yes", "no"),
            outputs=(cast("Any", scores),),
            extents=(Extent(num_tokens=2, num_left_out=0, is_windowed=False),),
        )


class Asked:
    """A decider with its doubles, in a mode."""

    def __init__(
        self, *cards: Published[QuestionCard], damaged: Sequence[str] = (), **settings: object
    ) -> None:
        known = {it.document.question.digest: (it,) for it in cards}
        self.facts = Facts(Cards(by_digest=known, damaged=tuple(damaged)))
        self.service = Service()
        mode = {"decisions_unknown": UnknownQuestions.EMBEDDINGS, **settings}
        self.decider = Decider(
            facts=cast("KnownFacts", self.facts),
            service=cast("PredictionService", self.service),
            settings=make_settings(**mode),
        )

    async def decide(
        self, *questions: TypedQuestion, seconds: float = 10.0, is_whole: bool = False
    ) -> Decisions:
        titles = [f"question {place}" for place, _ in enumerate(questions, start=1)]
        asked = [
            AskedQuestion(question=it, title=title)
            for it, title in zip(questions, titles, strict=True)
        ]
        handling = Handling(default_deadline_s=seconds)
        return await self.decider.decide(
            asked, "text", handling=handling, backbone=BACKBONE, is_whole=is_whole
        )


def kinds(decisions: Decisions) -> list[str]:
    return [it.by.value if isinstance(it, QuestionAnswer) else it.code for it in decisions.answers]


async def test_a_late_task_fails_its_question_alone() -> None:
    asked = Asked(card_of(KNOWN, "one"), card_of(OTHER, "two"))
    asked.service.failures["one"] = DeadlineExceededError()

    assert kinds(await asked.decide(KNOWN, OTHER, choice("a", "b"))) == [
        "deadline_exceeded",
        "task",
        "embeddings",
    ]


async def test_late_embeddings_fail_their_questions_alone() -> None:
    asked = Asked(card_of(KNOWN, "one"))
    asked.service.gate.clear()

    decisions = await asked.decide(OTHER, KNOWN, seconds=0.01)

    assert kinds(decisions) == ["deadline_exceeded", "task"]


async def test_a_refusal_of_all_tasks_fails_their_questions_alone_or_the_request() -> None:
    asked = Asked(card_of(KNOWN, "one"))
    asked.service.refusal = NunatakError("too_many_tasks", count=2, limit=1)

    assert kinds(await asked.decide(OTHER, KNOWN)) == ["embeddings", "too_many_tasks"]
    with raises("too_many_tasks"):
        await asked.decide(KNOWN)


async def test_the_look_up_of_cards_counts_for_the_deadline() -> None:
    asked = Asked(card_of(KNOWN, "one"))
    asked.facts.gate.clear()

    with raises("deadline_exceeded"):
        await asked.decide(KNOWN, seconds=0.01)


@pytest.mark.parametrize("mode", UnknownQuestions)
async def test_while_a_card_is_damaged_a_question_without_a_card_fails(
    mode: UnknownQuestions,
) -> None:
    asked = Asked(card_of(KNOWN, "one"), damaged=["x"], decisions_unknown=mode)

    assert kinds(await asked.decide(KNOWN, OTHER)) == ["task", "invalid_question"]
    assert asked.service.embedded == []
    with raises("invalid_question"):
        await asked.decide(KNOWN, OTHER, is_whole=True)


async def test_an_order_of_options_changes_no_probability_of_an_option() -> None:
    asked = Asked()
    first, turned = choice("a", "b", "ccc"), choice("ccc", "a", "b")

    one, other = (await asked.decide(first, turned)).answers
    (again,) = (await asked.decide(turned)).answers

    by_option = [
        dict(zip(it.question.outcomes, it.probabilities, strict=True))
        for it in (one, other, again)
        if isinstance(it, QuestionAnswer)
    ]
    assert len(by_option) == 3
    assert by_option[0] == by_option[1] == by_option[2]
    assert len(set(by_option[0].values())) == 3
    assert asked.service.embedded == [("a", "b", "ccc"), ("text",), ("text",)]


async def test_outcomes_are_embedded_together_in_parts() -> None:
    asked = Asked(max_inputs=2)

    await asked.decide(choice("a", "b", "c"), choice("c", "d", "e"))

    assert asked.service.embedded == [("a", "b"), ("c", "d"), ("e",), ("text",)]


async def test_timings_are_the_slowest_of_tasks_and_embeddings() -> None:
    asked = Asked(card_of(KNOWN, "one"))

    mixed, alone = await asked.decide(KNOWN, OTHER), await asked.decide(OTHER)

    assert mixed.timings == StageTimes(queue_s=1.0, compute_s=2.0, batch_rows=3)
    assert alone.timings == replace(mixed.timings, queue_s=0.5, batch_rows=1)

"""Laws of the decider: what fails, fails alone and in time, and what is cached has no order."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from doubles.backbones import tiny_backbone
from doubles.drafts import CREATED_AT
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.serving import make_settings
from nunatak_contract.enums import HeadKind, ProblemType, UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_registry import Cards, Published
from nunatak_server.catalog.catalog import KnownFacts
from nunatak_server.decisions.answers import AnswerSource, AskedQuestion, Decisions, QuestionAnswer
from nunatak_server.decisions.collection import Collector
from nunatak_server.decisions.decider import Decider
from nunatak_server.decisions.upstream import Upstream
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
from nunatak_server.telemetry.metrics import Metrics
from nunatak_server.tokenization import Extent

BACKBONE = tiny_backbone()
KNOWN = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it urgent?"})
OTHER = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it late?"})


UPSTREAM = {
    "decisions_unknown": UnknownQuestions.UPSTREAM,
    "decisions_upstream": "http://host/v1/systemone",
}
"""The task is sure by 0.5: yes has 0.75."""


def choice(*options: str) -> TypedQuestion:
    return TypedQuestion.model_validate({"type": "choice", "criteria": dict.fromkeys(options)})


def card_of(
    question: TypedQuestion, task: str, *, below: float | None = None
) -> Published[QuestionCard]:
    card = QuestionCard(name=f"card-{task}", task=task, question=question, ask_upstream_below=below)
    return Published(document=card, version=1, published_at=CREATED_AT, by="ann")


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
        assert request.is_literal, "a text could hide behind special tokens"
        self.embedded.append(request.inputs)
        await self.gate.wait()
        vectors = tuple([len(it) / 9, sum(map(ord, it)) / 900] for it in request.inputs)
        times = StageTimes(queue_s=0.5, compute_s=2.0, batch_rows=1)
        unread = (0,) * len(vectors)
        return Embeddings(
            vectors=vectors, num_tokens=3, is_cut=False, num_unread=unread, timings=times
        )

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


class Other:
    """An upstream that is sure of no, or fails."""

    def __init__(self) -> None:
        self.asked = list[TypedQuestion]()
        self.seconds = list[float]()
        self.failure: NunatakError | None = None
        self.is_asked = asyncio.Event()
        self.waits_for: asyncio.Event | None = None

    async def answer(
        self, asked: Sequence[AskedQuestion], text: str, *, handling: Handling
    ) -> Decisions:
        self.asked += [it.question for it in asked]
        self.seconds.append(handling.deadline_s)
        self.is_asked.set()
        if self.waits_for is not None:
            await self.waits_for.wait()
        return Decisions(answers=tuple(self.failure or self._answer(it.question) for it in asked))

    def _answer(self, question: TypedQuestion) -> QuestionAnswer:
        by, about = AnswerSource.UPSTREAM, {"model": "m"}
        shares = (0.9, *[0.1] * (len(question.outcomes) - 1))
        return QuestionAnswer(question=question, probabilities=shares, by=by, about=about)


class Kept(list[tuple[str, dict[object, str]]]):
    """A collector."""

    def keep(self, answer: QuestionAnswer, names: dict[object, str], text: str) -> None:
        assert answer.by is AnswerSource.UPSTREAM
        self.append((text, dict(names)))


class Asked:
    """A decider with its doubles, in a mode; it knows the cards itself."""

    def __init__(
        self,
        *cards: Published[QuestionCard],
        damaged: Sequence[str] = (),
        has_upstream: bool = True,
        **settings: object,
    ) -> None:
        known = {it.document.question.digest: (it,) for it in cards}
        self.known = Cards(by_digest=known, damaged=tuple(damaged))
        self.service = Service()
        mode = {**UPSTREAM, "decisions_unknown": UnknownQuestions.EMBEDDINGS, **settings}
        self.upstream, self.kept = Other(), Kept()
        has_upstream &= mode["decisions_unknown"] is UnknownQuestions.UPSTREAM
        self.metrics = Metrics()
        self.decider = Decider(
            facts=cast("KnownFacts", self),
            service=cast("PredictionService", self.service),
            settings=make_settings(**mode),
            metrics=self.metrics,
            upstream=cast("Upstream", self.upstream) if has_upstream else None,
            collector=cast("Collector", self.kept) if has_upstream else None,
        )

    async def cards(self, _caller: str) -> Cards:
        return self.known

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
    assert metric(asked, "nunatak_decisions_total", card="card-one", by="too_many_tasks") == 2
    assert metric(asked, "nunatak_decisions_total", card="", by="embeddings") == 1


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


def metric(asked: Asked, name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in text_string_to_metric_families(rendered(asked.metrics))
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ] or [0.0]
    return found


async def test_an_answer_below_the_confidence_of_its_card_is_asked_of_the_upstream() -> None:
    asked = Asked(card_of(KNOWN, "one", below=0.51), card_of(OTHER, "two", below=0.5), **UPSTREAM)

    unsure, sure = (await asked.decide(KNOWN, OTHER)).answers

    assert isinstance(unsure, QuestionAnswer)
    assert isinstance(sure, QuestionAnswer)
    assert (unsure.probabilities, sure.probabilities) == ((0.9, 0.1), (0.25, 0.75))
    own = {"task": "one/1", "card": "card-one/1", "confidence": 0.5}
    assert unsure.source == {"kind": "upstream", **own, "model": "m"}
    assert sure.source == {"kind": "task", "task": "two/1", "card": "card-two/1"}
    assert asked.upstream.asked == [KNOWN]
    assert asked.upstream.seconds[0] <= 9.0
    assert asked.kept == [("text", {True: "yes", False: "no"})]
    assert metric(asked, "nunatak_decisions_unsure_total", card="card-one", upstream="differs") == 1
    assert metric(asked, "nunatak_decisions_total", card="card-one", by="upstream") == 1
    assert metric(asked, "nunatak_decisions_seconds_count", card="card-two", by="task") == 1


async def test_without_the_upstream_an_unsure_task_answers_and_says_so() -> None:
    asked = Asked(card_of(KNOWN, "one", below=1.0), **UPSTREAM)
    asked.upstream.failure = NunatakError("upstream_failed", question="it", reason="its status")

    (answer,) = (await asked.decide(KNOWN)).answers

    assert isinstance(answer, QuestionAnswer)
    assert answer.probabilities == (0.25, 0.75)
    assert answer.source == {
        "kind": "task",
        "task": "one/1",
        "card": "card-one/1",
        "confidence": 0.5,
        "upstream": "upstream_failed",
    }
    assert asked.kept == []
    labels = {"card": "card-one", "upstream": "upstream_failed"}
    assert metric(asked, "nunatak_decisions_unsure_total", **labels) == 1
    assert metric(asked, "nunatak_decisions_total", card="card-one", by="task") == 1


async def test_a_card_that_needs_an_upstream_is_not_answered_without_one() -> None:
    asked = Asked(card_of(KNOWN, "one", below=0.1), card_of(OTHER, "two"))

    assert kinds(await asked.decide(KNOWN, OTHER)) == ["upstream_missing", "task"]
    with raises("upstream_missing"):
        await asked.decide(KNOWN, OTHER, is_whole=True)


async def test_without_its_upstream_the_mode_refuses_and_embeds_nothing() -> None:
    asked = Asked(card_of(KNOWN, "one"), has_upstream=False, **UPSTREAM)

    assert kinds(await asked.decide(KNOWN, OTHER)) == ["task", "question_unknown"]
    assert asked.service.embedded == []


async def test_unknown_questions_go_to_the_upstream_while_the_tasks_answer() -> None:
    asked = Asked(card_of(KNOWN, "one"), **UPSTREAM)
    asked.upstream.waits_for = asyncio.Event()
    predict = asked.service.predict

    async def answered(request: PredictionRequest) -> Predictions:
        # The tasks answer only after the upstream is asked, and the upstream only after the tasks.
        await asked.upstream.is_asked.wait()
        found = await predict(request)
        assert asked.upstream.waits_for is not None
        asked.upstream.waits_for.set()
        return found

    asked.service.predict = answered  # pyrefly: ignore[method-assign]

    assert kinds(await asked.decide(OTHER, KNOWN, choice("a", "b"))) == [
        "upstream",
        "task",
        "upstream",
    ]
    assert asked.upstream.asked == [OTHER, choice("a", "b")]
    assert [sorted(names.values()) for _, names in asked.kept] == [["no", "yes"], ["a", "b"]]
    assert asked.service.embedded == []


async def test_a_failing_upstream_fails_unknown_questions_alone() -> None:
    asked = Asked(card_of(KNOWN, "one"), **UPSTREAM)
    asked.upstream.failure = NunatakError("upstream_failed", question="it", reason="its status")

    assert kinds(await asked.decide(OTHER, KNOWN)) == ["upstream_failed", "task"]
    assert kinds(await asked.decide(OTHER)) == ["upstream_failed"]
    assert metric(asked, "nunatak_decisions_total", card="", by="upstream_failed") == 2
    assert asked.kept == []


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ({}, {True: "yes", False: "no"}),
        ({"late": True, "fine": False}, {True: "late", False: "fine"}),
        ({"late": True}, {True: "yes", False: "no"}),
        ({"late": True, "lost": True, "fine": False}, {True: "yes", False: "no"}),
    ],
)
def test_texts_are_kept_by_the_labels_of_the_card_if_each_outcome_has_one(
    labels: dict[str, bool], names: dict[bool, str]
) -> None:
    card = QuestionCard(name="card", task="one", question=KNOWN, labels={**labels})

    assert card.names == names

"""Laws of answers to questions, and the law that no task answers another question."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jevcompat.validate import choice_confidence, score_confidence

from doubles.drafts import CREATED_AT
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_registry import Published
from nunatak_server.decisions.answers import (
    AnswerSource,
    QuestionAnswer,
    as_shares,
    probabilities_of,
)
from nunatak_server.decisions.decider import answer_of
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.tokenization import Extent

SINGLE, SEVERAL, VALUE = ProblemType.SINGLE_LABEL, ProblemType.MULTI_LABEL, ProblemType.REGRESSION
WEIGHTS = st.lists(st.floats(0, 1), min_size=2, max_size=10).filter(lambda it: sum(it) > 1e-6)


def predicted(scores: Mapping[str, float], problem_type: ProblemType = SINGLE) -> TaskPrediction:
    return TaskPrediction(
        reference="tone",
        task="tone",
        version=3,
        head=HeadKind.SEQUENCE_CLASSIFICATION,
        problem_type=problem_type,
        labels=tuple(scores),
        outputs=([{"label": label, "score": score} for label, score in scores.items()],),
        extents=(),
    )


def card_of(question: dict[str, Any], **fields: object) -> QuestionCard:
    return QuestionCard.model_validate(
        {"name": "card", "task": "tone", "question": question, **fields}
    )


def answered(question: TypedQuestion, shares: tuple[float, ...]) -> QuestionAnswer:
    return QuestionAnswer(question=question, probabilities=shares, by=AnswerSource.TASK, about={})


def scale(num_levels: int) -> TypedQuestion:
    return TypedQuestion.model_validate(
        {"type": "score", "criteria": list(map(str, range(num_levels)))}
    )


@given(WEIGHTS)
def test_confidence_is_that_of_the_reference(weights: list[float]) -> None:
    shares = as_shares(weights)
    options = {"type": "choice", "criteria": {str(it): None for it in range(len(shares))}}
    choice = answered(TypedQuestion.model_validate(options), shares)
    score = answered(scale(len(shares)), shares)

    assert math.fsum(shares) == pytest.approx(1)
    assert choice.confidence == pytest.approx(choice_confidence(list(shares)), abs=1e-12)
    assert score.confidence == pytest.approx(score_confidence(list(shares)), abs=1e-12)
    assert choice.best == str(shares.index(max(shares)))


@given(st.floats(-100, 100), st.integers(2, 10))
def test_a_regression_is_the_expectation_of_its_levels(value: float, num_levels: int) -> None:
    card = card_of(
        {"type": "score", "criteria": list(map(str, range(num_levels)))}, bounds=(-50, 50)
    )

    shares = probabilities_of(card, predicted({"x": value}, VALUE))
    answer = answered(card.question, shares)

    place = (min(max(value, -50), 50) + 50) / 100 * (num_levels - 1)
    assert answer.expectation == pytest.approx(place, abs=1e-9)
    assert math.fsum(shares) == pytest.approx(1)
    assert all(0 <= it <= 1 for it in shares)


def test_several_labels_share_and_one_of_them_says_yes() -> None:
    yes_no = card_of({"type": "noul", "instructions": "?"}, labels={"x": True})
    card = card_of({"type": "choice", "criteria": {"a": None, "b": None}})

    for scores, shares in (((0.9, 0.3), (0.75, 0.25)), ((0.0, 0.0), (0.5, 0.5))):
        found = predicted(dict(zip("ab", scores, strict=True)), SEVERAL)
        assert probabilities_of(card, found) == pytest.approx(shares)
    found = predicted({"x": 0.4, "other": 0.9}, SEVERAL)
    assert probabilities_of(yes_no, found) == pytest.approx((0.6, 0.4))


CHOICES = st.lists(st.sampled_from("abcd"), min_size=2, max_size=4, unique=True)


@given(asked=CHOICES, bound=CHOICES, labels=CHOICES)
def test_a_question_is_answered_by_its_own_card_and_a_version_that_fits_or_not_at_all(
    asked: list[str], bound: list[str], labels: list[str]
) -> None:
    question = TypedQuestion.model_validate({"type": "choice", "criteria": dict.fromkeys(asked)})
    card = Published(
        document=card_of({"type": "choice", "criteria": dict.fromkeys(bound)}),
        version=1,
        published_at=CREATED_AT,
        by="ann",
    )
    weights = {label: 1.0 + place for place, label in enumerate(labels)}
    scores = {label: it / sum(weights.values()) for label, it in weights.items()}

    if set(asked) != set(bound):
        with pytest.raises(AssertionError):
            answer_of(card, question, predicted(scores))
        return
    answer = answer_of(card, question, predicted(scores))
    if set(labels) != set(bound):
        assert isinstance(answer, NunatakError)
        assert answer.code == "question_unanswerable"
    else:
        assert isinstance(answer, QuestionAnswer)
        assert dict(zip(asked, answer.probabilities, strict=True)) == pytest.approx(scores)
        assert answer.source == {"kind": "task", "task": "tone/3", "card": "card/1"}


@pytest.mark.parametrize("unjudged", [[], ["unread"]])
def test_a_text_with_unread_characters_has_no_answer_unless_the_card_lets_them_pass(
    unjudged: list[str],
) -> None:
    document = card_of({"type": "noul", "instructions": "?"}, unjudged=unjudged)
    card = Published(document=document, version=1, published_at=CREATED_AT, by="ann")
    extent = Extent(num_tokens=4, num_left_out=0, num_unread=9, is_windowed=False)
    result = replace(predicted({"no": 0.9, "yes": 0.1}), extents=(extent,))

    answer = answer_of(card, document.question, result)

    assert isinstance(answer, QuestionAnswer) == bool(unjudged)
    assert unjudged or (isinstance(answer, NunatakError) and answer.code == "text_unread")

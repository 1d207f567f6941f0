"""Every kind of index: question cards, which bind one question each to a task."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from doubles.drafts import publish_many
from doubles.refusals import raises
from nunatak_contract.questions import QuestionCard
from nunatak_registry import FindingKind, Registry
from nunatak_registry.locations import parse_location


def make_card(name: str = "urgent", **changes: object) -> QuestionCard:
    question = {"type": "noul", "instructions": "Is it urgent?"}
    return QuestionCard.model_validate(
        {"name": name, "task": "intent", "question": question, **changes}
    )


CARD = make_card()


@pytest.fixture
def stocked(registry: Registry) -> Registry:
    publish_many(registry, 2)
    return registry


def test_the_newest_version_of_a_card_answers_its_question(stocked: Registry) -> None:
    other = make_card(question={"type": "noul", "instructions": "Is it late?"})
    stocked.questions.put(CARD)
    put = stocked.questions.put(other, by="Ann")

    assert (put.version, put.by, stocked.questions.get("urgent", 1).document) == (2, "Ann", CARD)
    assert stocked.questions.by_digest() == {other.question.digest: put}


def test_a_question_has_one_card(stocked: Registry) -> None:
    stocked.questions.put(CARD)

    with raises("invalid_question", match="the card 'urgent' has the same question"):
        stocked.questions.put(make_card("again", task="intent/1"))
    assert stocked.questions.numbers() == {"urgent": 1}


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        (make_card(task="nobody"), "no task 'nobody'"),
        (make_card(task="intent@test"), "no alias 'test'"),
        (make_card(labels={"yes": True, "perhaps": False}), "no label 'perhaps'"),
        (make_card(labels={"yes": True}), "the label 'no' means no answer"),
        (make_card(labels={"yes": True, "no": True}), "no label means False"),
        (make_card(question={"type": "score", "criteria": ["yes", "no", "x"]}), "no label 'x'"),
    ],
)
def test_a_card_that_its_task_cannot_answer_is_refused(
    stocked: Registry, card: QuestionCard, problem: str
) -> None:
    for refuse in (stocked.questions.put, stocked.questions.check):
        with raises("invalid_question", match=problem):
            refuse(card)
    assert stocked.questions.numbers() == {}


def test_an_index_without_the_table_of_cards_gets_it(tmp_path: Path) -> None:
    place = str(tmp_path / "older")
    with Registry.open(place) as made:
        publish_many(made, 1)
    engine = create_engine(parse_location(place).index_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE nunatak_questions"))
    engine.dispose()

    with Registry.open(place, create=False) as opened:
        assert opened.questions.put(CARD).version == 1


def test_verify_finds_a_damaged_card_and_no_question_means_it(tmp_path: Path) -> None:
    place = str(tmp_path / "registry")
    with Registry.open(place) as opened:
        publish_many(opened, 1)
        opened.questions.put(CARD)
        engine = create_engine(parse_location(place).index_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE nunatak_questions SET document = '{}'"))
        engine.dispose()

        assert opened.questions.by_digest() == {}
        found = [it for it in opened.verify() if it.kind is FindingKind.QUESTION]
        assert [it.subject for it in found] == ["urgent/1"]
        with raises("invalid_question", match="differs from the published question"):
            opened.questions.get("urgent")


def test_cards_are_copied_once(stocked: Registry, tmp_path: Path) -> None:
    stocked.questions.put(CARD)
    with Registry.open(tmp_path / "target") as target:
        assert target.questions.take("urgent", stocked.questions) == [1]
        assert target.questions.take("urgent", stocked.questions) == []
        assert target.questions.newest() == stocked.questions.newest()

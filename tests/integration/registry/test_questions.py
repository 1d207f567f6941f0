"""Every kind of index: question cards, which bind one question each to a task."""

from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.drafts import publish_many, publish_one
from doubles.postgres import ANYWHERE
from doubles.refusals import raises
from nunatak_contract.questions import QuestionCard
from nunatak_registry import FindingKind, Registry
from nunatak_registry.blobs.blobs import digest_of


def make_card(name: str = "urgent", **changes: object) -> QuestionCard:
    question = {"type": "noul", "instructions": "Is it urgent?"}
    return QuestionCard.model_validate(
        {"name": name, "task": "intent", "question": question, **changes}
    )


CARD = make_card()
LATE = make_card("late", question={"type": "noul", "instructions": "Is it late?"})


@pytest.fixture
def stocked(registry: Registry) -> Registry:
    publish_many(registry, 2)
    return registry


def test_the_newest_version_of_a_card_answers_its_question(stocked: Registry) -> None:
    other = make_card(question={"type": "noul", "instructions": "Is it late?"})
    stocked.questions.put(CARD)
    put = stocked.questions.put(other, by="Ann")

    assert (put.version, put.by, stocked.questions.get("urgent", 1).document) == (2, "Ann", CARD)
    cards = stocked.questions.cards()
    assert (cards.find(other.question.digest), cards.single) == (put, (put,))
    assert cards.find(CARD.question.digest) is None


def test_a_question_has_one_card(stocked: Registry) -> None:
    stocked.questions.put(CARD)

    with raises("invalid_question", match="the card 'urgent' has the same question"):
        stocked.questions.put(make_card("again", task="intent/1"))
    assert stocked.questions.numbers() == {"urgent": 1}


@ANYWHERE
def test_a_card_that_its_task_cannot_answer_is_refused(stocked: Registry) -> None:
    for card, problem in (
        (make_card(task="nobody"), "no task 'nobody'"),
        (make_card(task="intent@test"), "no alias 'test'"),
        (make_card(labels={"yes": True, "perhaps": False}), "no label 'perhaps'"),
        (make_card(labels={"yes": True}), "the label 'no' means no answer"),
        (make_card(labels={"yes": True, "no": True}), "no label means False"),
        (make_card(question={"type": "score", "criteria": ["yes", "no", "x"]}), "no label 'x'"),
    ):
        for refuse in (stocked.questions.put, stocked.questions.check):
            with raises("invalid_question", match=problem):
                refuse(card)
    assert stocked.questions.numbers() == {}


def test_a_damaged_card_leaves_no_question_certainly_unknown(tmp_path: Path) -> None:
    place = str(tmp_path / "registry")
    with Registry.open(place) as opened:
        publish_many(opened, 1)
        opened.questions.put(CARD)
        known = opened.questions.put(LATE)
        write_rows(place, "UPDATE nunatak_questions SET document = '{}' WHERE name = 'urgent'")

        cards = opened.questions.cards()
        assert (cards.find(LATE.question.digest), cards.damaged) == (known, ("urgent",))
        with raises("invalid_question", match="is damaged"):
            cards.find(CARD.question.digest)
        with raises("invalid_question", match="is damaged"):
            opened.questions.put(make_card("again"))
        found = [it for it in opened.verify() if it.kind is FindingKind.QUESTION]
        assert [it.subject for it in found] == ["urgent/1"]
        with raises("invalid_question", match="differs from the published question card"):
            opened.questions.get("urgent")


def test_a_copy_brings_no_second_card_and_no_card_without_its_task(
    stocked: Registry, tmp_path: Path
) -> None:
    stocked.questions.put(CARD)
    with Registry.open(tmp_path / "target") as target:
        with raises("copy_conflict", match="no task 'intent'"):
            target.questions.take("urgent", stocked.questions)
        publish_many(target, 1)
        target.questions.put(make_card("mine"))
        with raises("copy_conflict", match="the card 'mine' has its question there"):
            target.questions.take("urgent", stocked.questions)
        assert target.questions.numbers() == {"mine": 1}


def test_verify_names_a_second_card_of_a_question_and_neither_answers(tmp_path: Path) -> None:
    place = str(tmp_path / "registry")
    with Registry.open(place) as opened:
        publish_many(opened, 1)
        opened.questions.put(CARD)
        opened.questions.put(LATE)
        row = make_card("late").model_dump_json()
        values = f"document = '{row}', digest = '{digest_of(row.encode())}'"
        write_rows(place, f"UPDATE nunatak_questions SET {values} WHERE name = 'late'")  # noqa: S608

        (found,) = opened.verify()
        assert (found.kind, found.subject) == (FindingKind.QUESTION, "urgent/1")
        assert "the question of card 'late'" in found.message
        with raises("invalid_question", match="several cards"):
            opened.questions.cards().find(CARD.question.digest)
        assert opened.questions.cards().single == ()


@ANYWHERE
def test_a_name_that_cannot_be_one_is_named_as_the_name_of_a_card(stocked: Registry) -> None:
    with raises("invalid_name", match="question card name"):
        stocked.questions.get("No Name")


@pytest.mark.each
@pytest.mark.parametrize("asked", ["intent/1", "intent"])
def test_the_last_version_that_a_card_asks_is_not_deleted(stocked: Registry, asked: str) -> None:
    stocked.questions.put(make_card(task=asked))
    stocked.delete("intent", 2)

    with raises("version_in_use", match="question card urgent"):
        stocked.delete("intent", 1)
    publish_one(stocked, "other")
    stocked.questions.put(make_card(task="other"))
    stocked.delete("intent", 1)

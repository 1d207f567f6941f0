"""Every kind of index: policies and question cards, of which the newest version serves."""

import getpass
from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.drafts import make_draft, publish_many, publish_one
from doubles.policies import make_policy, make_rule, when
from doubles.postgres import ANYWHERE
from doubles.refusals import raises
from nunatak_contract.enums import OnFailure, Reads, VerdictAction
from nunatak_contract.questions import QuestionCard
from nunatak_registry import FindingKind, Registry
from nunatak_registry.blobs.blobs import digest_of

FIRST = make_policy(make_rule(when("intent", "yes", threshold=0.5)))
SECOND = FIRST.model_copy(update={"on_failure": OnFailure.ALLOW})


@pytest.fixture
def stocked(registry: Registry) -> Registry:
    publish_many(registry, 2)
    return registry


def test_the_newest_version_of_a_policy_serves_and_older_ones_stay(stocked: Registry) -> None:
    assert stocked.policies.put(FIRST).version == 1
    put = stocked.policies.put(SECOND, by="Ann")

    assert (put.version, put.by, put.document) == (2, "Ann", SECOND)
    assert stocked.policies.get("guard") == put
    first = stocked.policies.get("guard", 1)
    assert (first.document, first.by) == (FIRST, getpass.getuser())
    other = stocked.policies.put(FIRST.model_copy(update={"name": "other"}))
    assert stocked.policies.newest() == [put, other]
    assert stocked.policies.numbers() == {"guard": 2, "other": 1}
    again = stocked.policies.put(FIRST)
    assert (again.version, again.document) == (3, FIRST)
    assert stocked.policies.get("guard") == again


def test_a_rollback_publishes_the_version_before_or_the_named_one_again(stocked: Registry) -> None:
    third = FIRST.model_copy(update={"deadline_ms": 900})
    for policy in (FIRST, SECOND, third):
        stocked.policies.put(policy)

    before = stocked.policies.rollback("guard", by="Ann")
    first = stocked.policies.rollback("guard", 1)
    again = stocked.policies.rollback("guard", 5)

    assert (before.version, before.document, before.by) == (4, SECOND, "Ann")
    assert (first.version, first.document) == (5, FIRST)
    assert again == first == stocked.policies.get("guard")
    assert [it.version for it in stocked.policies.history("guard")] == [5, 4, 3, 2, 1]


def test_what_nobody_put_is_not_found_and_not_rolled_back_to(stocked: Registry) -> None:
    policies = stocked.policies
    for look_up in (policies.get, policies.rollback, policies.history):
        with raises("policy_not_found"):
            look_up("guard")
    policies.put(FIRST)
    for look_up in (policies.get, policies.rollback):
        with raises("policy_not_found", match="policy history` the versions"):
            look_up("guard", 2)
    with raises("no_previous_version", match="policy 'guard' has no earlier version"):
        policies.rollback("guard")

    assert policies.numbers() == {"guard": 1}


def test_a_change_of_a_policy_changes_the_generation_and_a_repetition_does_not(
    stocked: Registry,
) -> None:
    before = stocked.generation()
    put = stocked.policies.put(FIRST)
    after = stocked.generation()

    assert after.number == before.number + 1
    assert stocked.policies.put(FIRST) == put
    assert stocked.generation() == after


@ANYWHERE
def test_a_policy_that_its_tasks_cannot_decide_is_not_published(stocked: Registry) -> None:
    draft, blobs = make_draft("pairs")
    stocked.publish(draft.model_copy(update={"reads": Reads.PAIR}), blobs)
    before = stocked.generation()

    for rule, problem in (
        (make_rule(when("nobody", "yes")), "no task 'nobody'"),
        (make_rule(when("intent@test", "yes")), "no alias 'test'"),
        (make_rule(when("intent/9", "yes")), "no version 9"),
        (make_rule(when("intent", "maybe")), "no label 'maybe'; its labels: no, yes"),
        (
            make_rule(when("intent", "yes"), action=VerdictAction.MASK),
            "masks, so it needs tasks of token classification",
        ),
        (make_rule(when("pairs", "yes")), "the task reads pairs of texts"),
    ):
        for refused in (stocked.policies.check, stocked.policies.put):
            with raises("invalid_policy", match=problem):
                refused(make_policy(rule))

    assert stocked.generation() == before
    assert stocked.policies.newest() == []


@pytest.mark.each
@pytest.mark.parametrize("damage", ["document = '{}'", "published_at = 'then'"])
def test_a_damaged_policy_is_refused_and_found_by_verify(
    stocked: Registry, location: str, damage: str
) -> None:
    stocked.policies.put(FIRST)
    whole = stocked.policies.put(FIRST.model_copy(update={"name": "other"}))
    write_rows(location, f"UPDATE nunatak_policies SET {damage} WHERE name = 'guard'")  # noqa: S608 - a case

    with raises("invalid_policy", match="guard/1"):
        stocked.policies.get("guard")
    assert stocked.policies.newest() == [whole]
    found = [it for it in stocked.verify() if it.kind is FindingKind.POLICY]
    assert [(it.subject, it.kind.is_error) for it in found] == [("guard/1", True)]


def test_a_copy_brings_the_missing_versions_and_nothing_else(
    stocked: Registry, tmp_path: Path
) -> None:
    with Registry.open(tmp_path / "copy") as target:
        for policy, numbers in ((FIRST, [1]), (SECOND, [2])):
            stocked.policies.put(policy)
            assert target.policies.take("guard", stocked.policies) == numbers
            assert target.policies.get("guard") == stocked.policies.get("guard")
        after = target.generation()
        assert target.policies.take("guard", stocked.policies) == []
        assert target.generation() == after


def test_a_copy_onto_another_policy_of_the_name_is_refused(
    stocked: Registry, tmp_path: Path
) -> None:
    stocked.policies.put(FIRST)
    with Registry.open(tmp_path / "copy") as target:
        publish_one(target)
        target.policies.put(SECOND)

        with raises("copy_conflict", match="policy 'guard'"):
            target.policies.take("guard", stocked.policies)
        assert target.policies.numbers() == {"guard": 1}


def make_card(name: str = "urgent", **changes: object) -> QuestionCard:
    question = {"type": "noul", "instructions": "Is it urgent?"}
    return QuestionCard.model_validate(
        {"name": name, "task": "intent", "question": question, **changes}
    )


CARD = make_card()
LATE = make_card("late", question={"type": "noul", "instructions": "Is it late?"})


def test_the_newest_version_of_a_card_answers_its_question(stocked: Registry) -> None:
    other = make_card(question={"type": "noul", "instructions": "Is it late?"})
    stocked.questions.put(CARD)
    put = stocked.questions.put(other)

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


@pytest.mark.pairs
@pytest.mark.parametrize("asked", ["intent/1", "intent"])
@pytest.mark.parametrize("holder", ["policy guard", "question card urgent"])
def test_the_last_version_that_a_document_asks_is_not_deleted(
    stocked: Registry, holder: str, asked: str
) -> None:
    def ask(task: str) -> None:
        if holder == "policy guard":
            stocked.policies.put(make_policy(make_rule(when(task, "yes"))))
        else:
            stocked.questions.put(make_card(task=task))

    publish_one(stocked, "other")
    ask(asked)
    stocked.delete("intent", 2)

    with raises("version_in_use", match=holder):
        stocked.delete("intent", 1)
    ask("other")
    stocked.delete("intent", 1)

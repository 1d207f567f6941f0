"""While cards and aliases change, no question is answered by another card, task or version."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from doubles.compat import TEXT, post
from doubles.questions import EMBEDDING, THREAT, URGENT, body, scores, theirs
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_registry.locations import parse_location


def test_a_version_that_does_not_fit_its_card_is_refused_until_it_does(
    tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> None:
    with Registry.open(tmp_path_factory.mktemp("moved")) as registry:
        for labels in (("yes", "no"), ("yes", "other")):
            publish_tiny_task(registry, backbone, task="tone", labels=labels)
        registry.promote("tone", "prod", 1)
        card = {"name": "tone", "task": "tone@prod", "question": URGENT}
        registry.questions.put(QuestionCard.model_validate(card))
        registry.promote("tone", "prod", 2)

        async def scenario() -> None:
            async with running_client(backbone, registry, make_settings()) as client:
                refused = await post(client, "/v1/systemone", body({"q": URGENT}), 503)
                assert refused["detail"]["code"] == "question_unanswerable"
                asked = {"model": "nunatak", "input": TEXT, "questions": [theirs(URGENT)]}
                (only,) = (await post(client, "/v1/decisions", asked))["answers"]
                assert (only["type"], only["x_reason"]["code"]) == (
                    "refusal",
                    "question_unanswerable",
                )
                registry.rollback("tone", "prod")
                await asyncio.sleep(0.5)
                answers = (await post(client, "/v1/systemone", body({"q": URGENT})))["answers"]
                assert answers["q"]["x_source"]["task"] == "tone/1"

        asyncio.run(scenario())


ASKED = [{"type": "noul", "instructions": f"Question {it}?"} for it in range(3)]
LABELS = (("yes", "no"), ("no", "yes"), ("yes", "other"))


@pytest.fixture
def changing(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    """Two tasks with three versions each, of which the third fits no card."""
    with Registry.open(tmp_path / "changing") as opened:
        for first, task in enumerate(("one", "two")):
            for seed, own in enumerate(LABELS, start=3 * first):
                publish_tiny_task(opened, backbone, task=task, labels=own, seed=seed)
            opened.promote(task, "prod", 1)
        yield opened


def change(registry: Registry, chance: random.Random) -> None:
    """Move an alias, or bind another question to a task, if the registry allows it."""
    task = chance.choice(["one", "two"])
    if chance.random() < 0.5:
        registry.promote(task, "prod", chance.randint(1, 3))
        return
    card = {"name": task, "task": f"{task}@prod", "question": chance.choice(ASKED)}
    with contextlib.suppress(NunatakError):
        registry.questions.put(QuestionCard.model_validate(card))


def outcome_of(
    registry: Registry, asked: object, answer: dict[str, Any], own: dict[str, dict[str, float]]
) -> str:
    """Return what became of a question, whose answer must be that of its own card and task.

    `own` has the scores of each version, as `/predict` gives them.
    """
    if answer["type"] == "refusal":
        return answer["x_reason"]["code"]
    source = answer["x_source"]
    name, number = source["card"].split("/")
    card = registry.questions.get(name, int(number)).document
    assert card.question == TypedQuestion.model_validate(asked)
    assert card.task == f"{source['task'].partition('/')[0]}@prod"
    scores = own[source["task"]]
    assert "other" not in scores
    assert answer["probability"] == pytest.approx(scores["yes"])
    return "answered"


async def test_under_changes_no_question_is_answered_by_the_card_or_labels_of_another(
    changing: Registry, backbone: Backbone
) -> None:
    chance, outcomes = random.Random(3), Counter[str]()
    versions = [f"{task}/{number}" for task in ("one", "two") for number in (1, 2, 3)]
    sent = {"model": "nunatak", "input": TEXT, "questions": list(map(theirs, ASKED))}
    async with running_client(backbone, changing, make_settings()) as client:
        own = {it: await scores(client, it) for it in versions}
        assert len({it["yes"] for it in own.values()}) == len(versions)
        for _ in range(60):
            change(changing, chance)
            answers = (await post(client, "/v1/decisions", sent))["answers"]
            for asked, answer in zip(ASKED, answers, strict=True):
                outcomes[outcome_of(changing, asked, answer, own)] += 1

    assert outcomes.keys() == {"answered", "question_unknown", "question_unanswerable"}


async def test_no_embedding_answers_while_a_card_is_damaged(
    tmp_path: Path, backbone: Backbone
) -> None:
    place = tmp_path / "damaged"
    with Registry.open(place) as registry:
        publish_tiny_task(registry, backbone, task="tone", labels=("yes", "no"))
        for name, question in (("urgent", URGENT), ("threat", THREAT)):
            card = {"name": name, "task": "tone", "question": question}
            registry.questions.put(QuestionCard.model_validate(card))
        engine = create_engine(parse_location(str(place)).index_url)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE nunatak_questions SET document = '{}' WHERE name = 'urgent'"
            )
        engine.dispose()
        async with running_client(backbone, registry, make_settings(**EMBEDDING)) as client:
            refused = await post(client, "/v1/systemone", body({"q": URGENT}), 503)
            answers = (await post(client, "/v1/systemone", body({"q": THREAT})))["answers"]
            asked = {"model": "nunatak", "input": TEXT, "questions": [theirs(URGENT)]}
            (only,) = (await post(client, "/v1/decisions", asked))["answers"]

    assert refused["detail"]["code"] == "invalid_question"
    assert (only["type"], only["x_reason"]["code"]) == ("refusal", "invalid_question")
    assert answers["q"]["x_source"]["kind"] == "task"

"""Typed questions of every kind, the tasks that answer them, and requests with them."""

from collections.abc import Collection
from typing import Any

import httpx

from doubles.compat import TEXT, native
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import ProblemType, UnknownQuestions
from nunatak_contract.questions import QuestionCard
from nunatak_model import Backbone
from nunatak_registry import Registry

URGENT: dict[str, Any] = {"type": "noul", "instructions": "Is it urgent?"}
TEAM: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"bill": "Money", "tech": None},
}
ANGER: dict[str, Any] = {
    "type": "score",
    "instructions": "How angry?",
    "criteria": ["Calm", "Cross", "Furious"],
}
STARS: dict[str, Any] = {
    "type": "score",
    "instructions": "How many stars?",
    "criteria": ["0", "1", "2", "3"],
}
THREAT: dict[str, Any] = {
    "type": "noul",
    "instructions": "A threat?",
    "criteria": {"true": "It threatens"},
}
QUESTIONS = {"u": URGENT, "team": TEAM, "anger": ANGER, "stars": STARS, "threat": THREAT}
UNKNOWN = {"type": "noul", "instructions": "Is it urgent ?"}
STRANGE: dict[str, Any] = {
    "type": "choice",
    "criteria": {"ann": None, "oslo": "The city", "bob": None, "met": None},
}
SINGLE, SEVERAL, VALUE = ProblemType.SINGLE_LABEL, ProblemType.MULTI_LABEL, ProblemType.REGRESSION
TASKS: dict[str, tuple[tuple[str, ...], ProblemType, dict[str, Any]]] = {
    "u": (("calm", "urgent"), SINGLE, {"urgent": True, "calm": False}),
    "team": (
        ("cards", "invoices", "tech"),
        SINGLE,
        {"cards": "bill", "invoices": "bill", "tech": "tech"},
    ),
    "anger": (("Calm", "Cross", "Furious"), SINGLE, {}),
    "stars": (("stars",), VALUE, {}),
    "threat": (("insult", "threat"), SEVERAL, {"threat": True}),
}


EMBEDDING = {"decisions_unknown": UnknownQuestions.EMBEDDINGS}


def body(questions: object = None, **changes: object) -> dict[str, object]:
    asked = QUESTIONS if questions is None else questions
    return {"model": "jev-latest", "state": TEXT, "questions": asked, **changes}


def theirs(question: dict[str, Any], name: str | None = None) -> dict[str, object]:
    """The same question in the shape of OpenAI."""
    made: dict[str, Any] = {"instructions": question["instructions"], "name": name}
    match question["type"]:
        case "choice":
            options = question["criteria"].items()
            choices = [{"value": it, **({"description": to} if to else {})} for it, to in options]
            return {**made, "type": "choice", "choices": choices}
        case "score":
            levels = [{"label": it} for it in question["criteria"]]
            return {**made, "type": "score", "levels": levels}
        case _:
            return {**made, "type": "predicate"}


async def scores(client: httpx.AsyncClient, task: str) -> dict[str, float]:
    return {it["label"]: it["score"] for it in await native(client, task, TEXT)}


def publish_all(
    registry: Registry, backbone: Backbone, *, only: Collection[str] = tuple(TASKS)
) -> None:
    for seed, (name, (labels, problem_type, meanings)) in enumerate(TASKS.items()):
        if name not in only:
            continue
        publish_tiny_task(
            registry, backbone, task=name, labels=labels, problem_type=problem_type, seed=seed
        )
        card: dict[str, object] = {"name": name, "task": name, "labels": meanings}
        card["question"] = QUESTIONS[name]
        if problem_type is VALUE:
            card["bounds"] = (-8, 8)
        registry.questions.put(QuestionCard.model_validate(card))

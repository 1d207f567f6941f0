"""Typed questions, by the protocols of System One and of OpenAI's decisions, with their clients.

A second real server answers unknown questions, and unsure ones, over real HTTP.
"""

import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from jevcompat import runner
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
from pydantic import SecretStr
from typesafe_sdk import Noul as AskedNoul
from typesafe_sdk import TypeSafeClient

from doubles.access import add_key
from doubles.compat import TEXT, counted, post
from doubles.questions import (
    ANGER,
    EMBEDDING,
    QUESTIONS,
    STRANGE,
    TASKS,
    TEAM,
    UNKNOWN,
    URGENT,
    body,
    publish_all,
    scores,
    theirs,
)
from doubles.serving import make_settings, running_client, running_server
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from doubles.upstreams import noul, running_upstream
from nunatak_client import Client, InvalidRequestError, NotFoundError
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, TypedQuestion
from nunatak_model import Backbone
from nunatak_registry import Registry

SHARED = "nunatak_shared_trunk_rows_total"
"""The rows that took their trunk from another row of the batch."""


async def test_bound_questions_have_the_probabilities_of_their_tasks(
    bound: httpx.AsyncClient,
) -> None:
    answers = (await post(bound, "/v1/systemone", body()))["answers"]

    own = {name: await scores(bound, name) for name in TASKS}
    assert answers["u"]["noul"] == pytest.approx(own["u"]["urgent"])
    team = own["team"]
    assert answers["team"]["probabilities"] == pytest.approx(
        {"bill": team["cards"] + team["invoices"], "tech": team["tech"]}
    )
    anger = answers["anger"]
    assert list(anger["probabilities"].values()) == pytest.approx(
        [own["anger"][it] for it in ("Calm", "Cross", "Furious")]
    )
    assert answers["stars"]["score"] == pytest.approx((own["stars"]["stars"] + 8) / 16 * 3)
    assert answers["threat"]["noul"] == pytest.approx(own["threat"]["threat"])
    assert anger["x_source"] == {"kind": "task", "task": "anger/1", "card": "anger/1"}


async def test_both_protocols_say_the_same(bound: httpx.AsyncClient) -> None:
    one = (await post(bound, "/v1/systemone", body()))["answers"]
    asked = [theirs(it, name) for name, it in QUESTIONS.items() if name != "threat"]
    answer = await post(
        bound, "/v1/decisions", {"model": "nunatak", "input": TEXT, "questions": asked}
    )
    urgent, team, anger, stars = answer["answers"]

    assert urgent["probability"] == one["u"]["noul"]
    assert (team["choice"], team["confidence"]) == (
        one["team"]["choice"],
        one["team"]["confidence"],
    )
    assert (anger["score"], stars["score"]) == (one["anger"]["score"], one["stars"]["score"])
    assert [it["label"] for it in anger["probabilities"]] == ANGER["criteria"]
    assert answer["usage"]["total_tokens"] > 0


async def test_all_bound_questions_are_one_trunk_pass(backbone: Backbone, cards: Registry) -> None:
    async with running_client(backbone, cards, make_settings(**EMBEDDING)) as client:
        await post(client, "/v1/systemone", body(state="where?"))
        before = await counted(client, SHARED)
        await post(client, "/v1/systemone", body())
        assert await counted(client, SHARED) == before + len(QUESTIONS) - 1
        await post(client, "/v1/systemone", body({"x": UNKNOWN}))
        metrics = (await client.get("/metrics")).text
    assert 'nunatak_decisions_total{by="embeddings",card=""} 1.0' in metrics
    assert 'nunatak_decisions_total{by="task",card="u"} 2.0' in metrics


def shuffled(question: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same question with its options in another order."""
    if question["type"] != "choice":
        return question
    options = list(question["criteria"].items())
    return {**question, "criteria": dict(chance.sample(options, len(options)))}


@pytest.mark.parametrize("unknown", [False, True])
async def test_other_questions_names_and_orders_change_no_bit(
    asking: httpx.AsyncClient, *, unknown: bool
) -> None:
    asked = {**QUESTIONS, **({"x": UNKNOWN, "strange": STRANGE} if unknown else {})}

    chance = random.Random(7)
    whole = (await post(asking, "/v1/systemone", body(asked)))["answers"]
    if unknown:
        assert len(set(whole["strange"]["probabilities"].values())) == len(STRANGE["criteria"])
    for _ in range(10):
        names = chance.sample(list(asked), chance.randint(1, len(asked)))
        renamed = {f"{chance.random()}": name for name in names}
        questions = {new: shuffled(asked[name], chance) for new, name in renamed.items()}
        answers = (await post(asking, "/v1/systemone", body(questions)))["answers"]
        assert answers == {new: whole[name] for new, name in renamed.items()}


async def test_a_question_that_differs_in_one_character_is_unknown(
    bound: httpx.AsyncClient,
) -> None:
    refused = await post(bound, "/v1/systemone", body({"u": URGENT, "x": UNKNOWN}), 404)
    assert refused["detail"]["code"] == "question_unknown"
    assert "question 2 of the request ('x')" in refused["detail"]["message"]

    asked = [theirs(URGENT, "u"), theirs(UNKNOWN)]
    answer = await post(
        bound, "/v1/decisions", {"model": "nunatak", "input": TEXT, "questions": asked}
    )
    known, other = answer["answers"]
    assert known["type"] == "predicate"
    assert (other["type"], other["name"]) == ("refusal", None)
    assert other["x_reason"]["code"] == "question_unknown"


async def test_a_conversation_is_one_text(bound: httpx.AsyncClient) -> None:
    def asked(value: object) -> dict[str, object]:
        return {"model": "nunatak", "input": value, "questions": [theirs(URGENT)]}

    async def answer(value: object) -> object:
        return (await post(bound, "/v1/decisions", asked(value)))["answers"]

    parts = [{"type": "input_text", "text": "ann"}, {"type": "input_json", "data": {"a": 1}}]
    both = [{"role": "user", "content": "ann"}, {"role": "assistant", "content": "bob"}]
    assert await answer([{"role": "user", "content": TEXT}]) == await answer(TEXT)
    assert await answer(both) == await answer("user: ann\nassistant: bob")
    assert await answer([{"role": "user", "content": parts}]) == await answer('ann\n{"a": 1}')


async def test_models_lists_what_can_be_asked(bound: httpx.AsyncClient, backbone: Backbone) -> None:
    listed = (await bound.get("/v1/models")).json()
    model, alias = listed["models"]
    assert (model["name"], alias["name"]) == ("nunatak", "jev-latest")
    assert {it["card"] for it in model["x_questions"]} == {f"{name}/1" for name in TASKS}
    assert alias["x_questions"] == []
    assert [it["id"] for it in listed["data"]] == [backbone.name]
    refused = await post(bound, "/v1/systemone", body(model="gpt"), 404)
    assert refused["detail"]["error_type"] == "not_found"


async def test_a_question_of_a_hidden_task_is_unknown(
    tmp_path: Path, backbone: Backbone, cards: Registry
) -> None:
    keys = tmp_path / "keys.json"
    headers = add_key(keys, "tenant", tasks=["u"])
    settings = make_settings(api_keys_file=keys)
    async with running_client(backbone, cards, settings) as client:
        own = await client.post("/v1/systemone", json=body({"q": URGENT}), headers=headers)
        other = await client.post("/v1/systemone", json=body({"q": TEAM}), headers=headers)
        nobody = await client.post("/v1/systemone", json=body({"q": URGENT}))
        listed = (await client.get("/v1/models", headers=headers)).json()["models"][0]

    assert own.status_code == 200
    assert (other.status_code, other.json()["detail"]["code"]) == (404, "question_unknown")
    assert nobody.json()["detail"]["error_type"] == "authentication_error"
    assert [it["card"] for it in listed["x_questions"]] == ["u/1"]


@pytest.fixture(scope="module")
def address(backbone: Backbone, cards: Registry) -> Generator[str]:
    with running_server(backbone, cards, make_settings(**EMBEDDING)) as found:
        yield found


@pytest.mark.parametrize(
    ("has_keys", "skipped"),
    [(False, {"auth.bearer", "auth.missing", "auth.invalid"}), (True, {"auth.ignored-when-off"})],
)
def test_jevcompat_finds_nothing_wrong(
    backbone: Backbone, registry: Registry, tmp_path: Path, *, has_keys: bool, skipped: set[str]
) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "asker")["authorization"].removeprefix("Bearer ")
    settings = make_settings(**EMBEDDING, api_keys_file=keys if has_keys else None)
    with running_server(backbone, registry, settings) as found:
        report = runner.run(found, key=key if has_keys else None)

    wrong = {it.id: it.findings[0].message for it in report.results if it.status == "fail"}
    assert (wrong, report.verdict) == ({}, "conformant")
    assert {it.id for it in report.results if it.status == "skip"} == skipped


@pytest.mark.filterwarnings("ignore:The class `OpenAIDecisions` is in beta")
def test_their_clients_read_every_answer(address: str) -> None:
    with TypeSafeClient(api_key="none", base_url=address) as client:
        answered = client.system_one(
            state=TEXT, questions={"u": AskedNoul(instructions="Is it urgent?")}
        )
        assert 0 <= answered.nouls["u"].noul <= 1
    with Client(address) as own:
        found = own.decide(TEXT, QUESTIONS)
        raw = httpx.post(f"{address}/v1/systemone", json=body()).json()["answers"]
        shown = {name: it.model_dump(exclude_none=True) for name, it in found.items()}
        assert [*shown] == [*raw]
        assert all(raw[name] | it == raw[name] for name, it in shown.items())
        with pytest.raises(InvalidRequestError, match="question 1") as refused:
            own.decide(TEXT, {"u": {"type": "noul"}})
        name, texts = str(own.info().backbone["name"]), [TEXT, "where?"]
        asked = {"model": name, "input": texts}
        vectors = httpx.post(f"{address}/v1/embeddings", json=asked).json()["data"]
        assert own.embed(name, texts) == tuple(
            pytest.approx(it["embedding"], abs=1e-5) for it in vectors
        )
        with pytest.raises(NotFoundError, match="name that model") as unknown:
            own.embed("nobody", [TEXT])
        assert (refused.value.code, unknown.value.code) == ("invalid_request", "model_not_found")
    chain = OpenAIDecisions(model="nunatak", base_url=f"{address}/v1", api_key=SecretStr("none"))
    decided = chain.invoke(
        {
            "input": TEXT,
            "questions": {
                "u": Predicate(instructions="Is it urgent?"),
                "team": Choice(instructions="Which team?", choices={"bill": "Money", "tech": "It"}),
                "anger": Score(instructions="How angry?", levels=["Calm", "Cross", "Furious"]),
            },
        }
    )
    assert decided.predicates["u"].probability == answered.nouls["u"].noul
    assert set(decided.choices["team"].probabilities) == {"bill", "tech"}
    assert decided.scores["anger"].legend == {0: "Calm", 1: "Cross", 2: "Furious"}
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as sdk:
        made = sdk.decisions.create(
            model="nunatak", input=TEXT, questions=[{"type": "predicate", "instructions": "Who?"}]
        )
        assert made.answers[0].type == "predicate"
        with pytest.raises(openai.NotFoundError):
            sdk.decisions.create(
                model="gpt", input=TEXT, questions=[{"type": "predicate", "instructions": "Who?"}]
            )


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


KEY = "a-secret-key-0815"
PATHS = ("/v1/systemone", "/v1/decisions")


@pytest.fixture(scope="module")
def other(backbone: Backbone, cards: Registry) -> Generator[str]:
    """The upstream: a server that knows all questions."""
    with running_server(backbone, cards) as address:
        yield address


def upstream(url: str, **settings: object) -> dict[str, object]:
    return {"decisions_unknown": "upstream", "decisions_upstream": url, **settings}


@pytest.fixture
def empty(tmp_path: Path, backbone: Backbone) -> Generator[Registry]:
    """A registry whose only card is that of `URGENT`, bound to a task of its own."""
    with Registry.open(tmp_path / "empty") as registry:
        publish_all(registry, backbone, only=["u"])
        yield registry


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_says_what_its_upstream_says(
    empty: Registry, backbone: Backbone, other: str, path: str
) -> None:
    asked = {name: it for name, it in QUESTIONS.items() if path == PATHS[0] or name != "threat"}
    async with httpx.AsyncClient(base_url=other, timeout=60) as client:
        direct = (await post(client, "/v1/systemone", body(asked)))["answers"]
    settings = make_settings(**upstream(f"{other}{path}"))
    async with running_client(backbone, empty, settings) as client:
        answers = (await post(client, "/v1/systemone", body(asked)))["answers"]
        metrics = (await client.get("/metrics")).text

    for name in asked.keys() - {"u"}:
        assert answers[name]["x_source"] == {"kind": "upstream", "model": "jev-latest"}
        for part in direct[name].keys() - {"x_source"}:
            expected: Any = direct[name][part]
            is_text = isinstance(expected, str) or part == "legend"
            assert answers[name][part] == (expected if is_text else pytest.approx(expected))
    assert answers["u"]["x_source"]["kind"] == "task"
    number = len(asked) - 1
    assert f'nunatak_decisions_total{{by="upstream",card=""}} {number}.0' in metrics


def bind(registry: Registry, **fields: object) -> None:
    newest = registry.questions.get("u").document.model_dump()
    registry.questions.put(QuestionCard.model_validate({**newest, **fields}))


async def test_unsure_texts_go_to_the_upstream_and_are_kept_for_training(
    empty: Registry, backbone: Backbone, tmp_path: Path
) -> None:
    bind(empty, ask_upstream_below=1.0)
    folder = tmp_path / "texts"
    with running_upstream(noul(0.75)) as fake:
        settings = make_settings(**upstream(fake.url, collect=folder))
        async with running_client(backbone, empty, settings) as client:
            answers = (await post(client, "/v1/systemone", body({"u": URGENT})))["answers"]
            await post(client, "/v1/systemone", body({"x": UNKNOWN}))
            metrics = (await client.get("/metrics")).text

    source = answers["u"]["x_source"]
    assert (answers["u"]["noul"], source["kind"], source["task"]) == (0.75, "upstream", "u/1")
    assert 0 <= source["confidence"] < 1
    assert 'nunatak_decisions_unsure_total{card="u",upstream="' in metrics
    rows = [
        json.loads((folder / f"{TypedQuestion.model_validate(it).digest}.jsonl").read_text())
        for it in (URGENT, UNKNOWN)
    ]
    assert [(it["text"], it["probabilities"]) for it in rows] == [
        (TEXT, {"urgent": 0.75, "calm": 0.25}),
        (TEXT, {"yes": 0.75, "no": 0.25}),
    ]
    listed = nunatak("question", "collected", str(folder), "--json").json()
    match listed:
        case {"collected": [{"rows": 1}, {"rows": 1}]}:  # pyrefly: ignore[not-callable, unused-ignore]
            assert TEXT not in json.dumps(listed)
        case other:
            raise AssertionError(other)
    shown = nunatak("question", "collected", str(folder)).stdout
    assert "Is it urgent" in shown
    patterns = [it for it in shown.split() if it.endswith("*.jsonl")]
    assert [len(list(folder.glob(it))) for it in patterns] == [1, 1]
    assert nunatak("question", "collected", str(folder), "--clear").stdout == "removed 2 texts\n"
    assert list(folder.iterdir()) == []


async def test_nothing_tells_the_key_or_the_text(
    empty: Registry, backbone: Backbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text(KEY)
    caplog.set_level(logging.DEBUG, logger="nunatak_server")
    replies: list[object] = [500, {"answers": {"q0": TEXT}}, None, None]
    with running_upstream(lambda _: replies.pop(0)) as fake:
        settings = make_settings(**upstream(fake.url, decisions_upstream_key_file=tmp_path / "key"))
        async with running_client(backbone, empty, settings) as client:
            told = [await client.post("/v1/systemone", json=body({"x": UNKNOWN})) for _ in range(3)]
            told += [await client.get(path) for path in ("/info", "/metrics", "/readyz")]

    assert [it.status_code for it in told] == [502, 502, 502, 200, 200, 200]
    assert {it["authorization"] for it in fake.headers} == {f"Bearer {KEY}"}
    said = "\n".join([it.text for it in told] + [str(it.__dict__) for it in caplog.records])
    assert KEY not in said
    assert TEXT not in said

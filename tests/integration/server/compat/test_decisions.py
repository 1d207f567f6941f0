"""Typed questions, by the protocols of System One and of OpenAI's decisions, with their clients."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from jevcompat import runner  # pyright: ignore[reportMissingTypeStubs]
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
from pydantic import SecretStr
from typesafe_sdk import Noul as AskedNoul
from typesafe_sdk import TypeSafeClient

from doubles.access import add_key
from doubles.backbones import tiny_backbone
from doubles.compat import TEXT, native, post
from doubles.serving import make_settings, running_client, running_server
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import Pooling, ProblemType, UnknownQuestions
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import Question, QuestionCard
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


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(pooling=Pooling.MEAN)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for seed, (name, (labels, problem_type, meanings)) in enumerate(TASKS.items()):
            publish_tiny_task(
                opened, backbone, task=name, labels=labels, problem_type=problem_type, seed=seed
            )
            card: dict[str, object] = {"name": name, "task": name, "labels": meanings}
            card["question"] = QUESTIONS[name]
            if problem_type is VALUE:
                card["bounds"] = (-8, 8)
            opened.questions.put(QuestionCard.model_validate(card))
        yield opened


Scenario = Callable[[httpx.AsyncClient], Any]


@pytest.fixture(scope="module")
def run(backbone: Backbone, registry: Registry) -> Callable[..., None]:
    def run_one(scenario: Scenario, **settings: object) -> None:
        async def connected() -> None:
            async with running_client(backbone, registry, make_settings(**settings)) as client:
                await scenario(client)

        asyncio.run(connected())

    return run_one


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


async def shared_rows(client: httpx.AsyncClient) -> float:
    """The rows that took their trunk from another row of the batch."""
    lines = (await client.get("/metrics")).text.splitlines()
    (found,) = [it for it in lines if it.startswith("nunatak_shared_trunk_rows_total ")]
    return float(found.split()[1])


def test_bound_questions_have_the_probabilities_of_their_tasks(run: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answers = (await post(client, "/v1/systemone", body()))["answers"]

        own = {name: await scores(client, name) for name in TASKS}
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

    run(scenario)


def test_both_protocols_say_the_same(run: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        one = (await post(client, "/v1/systemone", body()))["answers"]
        asked = [theirs(it, name) for name, it in QUESTIONS.items() if name != "threat"]
        answer = await post(
            client, "/v1/decisions", {"model": "nunatak", "input": TEXT, "questions": asked}
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

    run(scenario)


def test_all_bound_questions_are_one_trunk_pass(run: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await post(client, "/v1/systemone", body(state="where?"))
        before = await shared_rows(client)
        await post(client, "/v1/systemone", body())
        assert await shared_rows(client) == before + len(QUESTIONS) - 1
        await post(client, "/v1/systemone", body({"x": UNKNOWN}))
        metrics = (await client.get("/metrics")).text
        assert 'nunatak_decisions_total{by="embeddings",card=""} 1.0' in metrics
        assert 'nunatak_decisions_total{by="task",card="u"} 2.0' in metrics

    run(scenario, **EMBEDDING)


@pytest.mark.parametrize("unknown", [False, True])
def test_other_questions_names_and_orders_change_no_bit(
    run: Callable[..., None], *, unknown: bool
) -> None:
    asked = {**QUESTIONS, **({"x": UNKNOWN} if unknown else {})}

    async def scenario(client: httpx.AsyncClient) -> None:
        chance = random.Random(7)
        whole = (await post(client, "/v1/systemone", body(asked)))["answers"]
        for _ in range(20):
            names = chance.sample(list(asked), chance.randint(1, len(asked)))
            renamed = {f"{chance.random()}": name for name in names}
            questions = {new: asked[name] for new, name in renamed.items()}
            answers = (await post(client, "/v1/systemone", body(questions)))["answers"]
            assert answers == {new: whole[name] for new, name in renamed.items()}

    run(scenario, **EMBEDDING)


def test_a_question_that_differs_in_one_character_is_unknown(run: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, "/v1/systemone", body({"u": URGENT, "x": UNKNOWN}), 404)
        assert refused["detail"]["code"] == "question_unknown"
        assert "question 2 of the request" in refused["detail"]["message"]

        asked = [theirs(URGENT, "u"), theirs(UNKNOWN)]
        answer = await post(
            client, "/v1/decisions", {"model": "nunatak", "input": TEXT, "questions": asked}
        )
        known, other = answer["answers"]
        assert known["type"] == "predicate"
        assert (other["type"], other["name"]) == ("refusal", None)
        assert other["x_reason"]["code"] == "question_unknown"

    run(scenario)


WRONG: dict[str, dict[str, object]] = {
    "unknown type": body({"q": {"type": "box", "instructions": "?"}}),
    "no type": body({"q": {"instructions": "?"}}),
    "256 options": body({"q": {**TEAM, "criteria": {str(it): None for it in range(256)}}}),
    "1 option": body({"q": {**TEAM, "criteria": {"a": None}}}),
    "empty option": body({"q": {**TEAM, "criteria": {"": None, "b": None}}}),
    "list of options": body({"q": {**TEAM, "criteria": ["a", "b"]}}),
    "1 level": body({"q": {**ANGER, "criteria": ["a"]}}),
    "11 levels": body({"q": {**ANGER, "criteria": list("abcdefghijk")}}),
    "object of levels": body({"q": {**ANGER, "criteria": {"0": "a", "1": "b"}}}),
    "null level": body({"q": {**ANGER, "criteria": ["a", None]}}),
    "other sides": body({"q": {**URGENT, "criteria": {"yes": "a"}}}),
    "nothing asked": body({"q": {"type": "noul"}}),
    "unknown field": body({"q": {**URGENT, "min": 1}}),
    "empty id": body({"": URGENT}),
    "no questions": body({}),
    "list of questions": body([URGENT]),
    "401 questions": body({str(it): URGENT for it in range(401)}),
    "no state": body(state=None),
    "empty state": body(state=" "),
    "number as state": body(state=3),
    "image": body(assets={"a": {"type": "image"}}),
    "deep state": body(state=eval("[" * 40 + "]" * 40)),  # noqa: S307 - a literal
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_has_the_error_of_system_one(run: Callable[..., None], case: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, "/v1/systemone", WRONG[case], 422)
        for it in refused["detail"]:
            assert it["loc"][0] == "body"
            assert it["msg"]
            assert it["type"]

    run(scenario, **EMBEDDING)


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model": "nunatak", "state": NaN, "questions": {}}',
        b'{"model": "nunatak", "state": "a", "questions": {"q": {"type": "noul"}, "q": {}}}',
        b"{",
        b'{"state": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["NaN", "an id twice", "no JSON", "too deep"],
)
def test_what_is_no_json_has_the_error_of_system_one(run: Callable[..., None], sent: bytes) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(
            "/v1/systemone", content=sent, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body"])

    run(scenario)


IMAGE = {"type": "input_image", "image_url": "https://nowhere/"}


@pytest.mark.parametrize(
    "change",
    [
        {"input": [{"role": "user", "content": [IMAGE]}]},
        {"input": []},
        {"input": " "},
        {"input": [{"type": "function_call", "name": "f", "arguments": "", "call_id": "1"}]},
        {"questions": []},
        {"questions": [theirs(URGENT, "a"), theirs(TEAM, "a")]},
        {"questions": [{**theirs(URGENT), "name": ""}]},
        {"questions": [{"type": "predicate"}]},
        {"questions": [{**theirs(URGENT), "instructions": [IMAGE]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": "a"}]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"questions": [{**theirs(TEAM), "choices": {"a": "b"}}]},
        {"questions": [{**theirs(URGENT), "levels": [{"label": "a"}, {"label": "b"}]}]},
        {"unheard": 1},
    ],
)
def test_wrong_input_has_the_error_of_openai(
    run: Callable[..., None], change: dict[str, object]
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        sent = {"model": "nunatak", "input": TEXT, "questions": [theirs(URGENT)], **change}
        refused = await post(client, "/v1/decisions", sent, 422)
        assert refused["error"]["type"] == "invalid_request_error"

    run(scenario)


def test_a_conversation_is_one_text(run: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        def asked(value: object) -> dict[str, object]:
            return {"model": "nunatak", "input": value, "questions": [theirs(URGENT)]}

        async def answer(value: object) -> object:
            return (await post(client, "/v1/decisions", asked(value)))["answers"]

        parts = [{"type": "input_text", "text": "ann"}, {"type": "input_json", "data": {"a": 1}}]
        both = [{"role": "user", "content": "ann"}, {"role": "assistant", "content": "bob"}]
        assert await answer([{"role": "user", "content": TEXT}]) == await answer(TEXT)
        assert await answer(both) == await answer("user: ann\nassistant: bob")
        assert await answer([{"role": "user", "content": parts}]) == await answer('ann\n{"a": 1}')

    run(scenario)


def test_models_lists_what_can_be_asked(run: Callable[..., None], backbone: Backbone) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()
        model, alias = listed["models"]
        assert (model["name"], alias["name"]) == ("nunatak", "jev-latest")
        assert {it["card"] for it in model["x_questions"]} == {f"{name}/1" for name in TASKS}
        assert [it["id"] for it in listed["data"]] == [backbone.name]
        refused = await post(client, "/v1/systemone", body(model="gpt"), 404)
        assert refused["detail"]["error_type"] == "not_found"

    run(scenario)


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
        for task in ("one", "two"):
            for seed, own in enumerate(LABELS):
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


def outcome_of(registry: Registry, asked: object, found: dict[str, Any]) -> str:
    """Return what became of a question, whose answer must come from its own card and labels."""
    if "answers" not in found:
        return found["detail"]["code"]
    source = found["answers"]["q"]["x_source"]
    name, version = source["card"].split("/")
    card = registry.questions.get(name, int(version)).document
    assert card.question == Question.model_validate(asked)
    task, number = source["task"].split("/")
    assert card.task == f"{task}@prod"
    assert "other" not in LABELS[int(number) - 1]
    return "answered"


async def test_under_changes_no_question_is_answered_by_the_card_or_labels_of_another(
    changing: Registry, backbone: Backbone
) -> None:
    chance, outcomes = random.Random(3), Counter[str]()
    async with running_client(backbone, changing, make_settings()) as client:
        for _ in range(60):
            change(changing, chance)
            for asked in ASKED:
                answer = await client.post("/v1/systemone", json=body({"q": asked}))
                outcomes[outcome_of(changing, asked, answer.json())] += 1

    assert outcomes.keys() == {"answered", "question_unknown", "question_unanswerable"}


async def test_a_question_of_a_hidden_task_is_unknown(
    tmp_path: Path, backbone: Backbone, registry: Registry
) -> None:
    keys = tmp_path / "keys.json"
    headers = add_key(keys, "tenant", tasks=["u"])
    settings = make_settings(api_keys_file=keys)
    async with running_client(backbone, registry, settings) as client:
        own = await client.post("/v1/systemone", json=body({"q": URGENT}), headers=headers)
        other = await client.post("/v1/systemone", json=body({"q": TEAM}), headers=headers)
        nobody = await client.post("/v1/systemone", json=body({"q": URGENT}))
        listed = (await client.get("/v1/models", headers=headers)).json()["models"][0]

    assert own.status_code == 200
    assert (other.status_code, other.json()["detail"]["code"]) == (404, "question_unknown")
    assert nobody.json()["detail"]["error_type"] == "authentication_error"
    assert [it["card"] for it in listed["x_questions"]] == ["u/1"]


@pytest.fixture(scope="module")
def address(backbone: Backbone, registry: Registry) -> Generator[str]:
    with running_server(backbone, registry, make_settings(**EMBEDDING)) as found:
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
        answered = client.system_one(  # pyright: ignore[reportUnknownMemberType]
            state=TEXT, questions={"u": AskedNoul(instructions="Is it urgent?")}
        )
        assert 0 <= answered.nouls["u"].noul <= 1
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

"""Typed questions, by the protocols of System One and of OpenAI's decisions, with their clients."""

import random
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
from doubles.compat import TEXT, post
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
    scores,
    theirs,
)
from doubles.serving import make_settings, running_client, running_server
from nunatak_model import Backbone
from nunatak_registry import Registry


async def shared_rows(client: httpx.AsyncClient) -> float:
    """The rows that took their trunk from another row of the batch."""
    lines = (await client.get("/metrics")).text.splitlines()
    (found,) = [it for it in lines if it.startswith("nunatak_shared_trunk_rows_total ")]
    return float(found.split()[1])


def test_bound_questions_have_the_probabilities_of_their_tasks(asking: Callable[..., None]) -> None:
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

    asking(scenario)


def test_both_protocols_say_the_same(asking: Callable[..., None]) -> None:
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

    asking(scenario)


def test_all_bound_questions_are_one_trunk_pass(asking: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await post(client, "/v1/systemone", body(state="where?"))
        before = await shared_rows(client)
        await post(client, "/v1/systemone", body())
        assert await shared_rows(client) == before + len(QUESTIONS) - 1
        await post(client, "/v1/systemone", body({"x": UNKNOWN}))
        metrics = (await client.get("/metrics")).text
        assert 'nunatak_decisions_total{by="embeddings",card=""} 1.0' in metrics
        assert 'nunatak_decisions_total{by="task",card="u"} 2.0' in metrics

    asking(scenario, **EMBEDDING)


def shuffled(question: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same question with its options in another order."""
    if question["type"] != "choice":
        return question
    options = list(question["criteria"].items())
    return {**question, "criteria": dict(chance.sample(options, len(options)))}


def test_one_question_in_two_orders_of_options_has_the_same_answer(
    asking: Callable[..., None],
) -> None:
    turned = {**STRANGE, "criteria": dict([*STRANGE["criteria"].items()][::-1])}

    async def scenario(client: httpx.AsyncClient) -> None:
        asked = [theirs({**it, "instructions": "?"}) for it in (STRANGE, turned)]
        sent = {"model": "nunatak", "input": TEXT, "questions": asked}
        one, other = (await post(client, "/v1/decisions", sent))["answers"]
        assert [it["value"] for it in other["probabilities"]] == list(turned["criteria"])
        by_option = [
            {it["value"]: it["probability"] for it in each["probabilities"]}
            for each in (one, other)
        ]
        assert by_option[0] == by_option[1]
        assert one["choice"] == other["choice"]

    asking(scenario, **EMBEDDING)


@pytest.mark.parametrize("unknown", [False, True])
def test_other_questions_names_and_orders_change_no_bit(
    asking: Callable[..., None], *, unknown: bool
) -> None:
    asked = {**QUESTIONS, **({"x": UNKNOWN, "strange": STRANGE} if unknown else {})}

    async def scenario(client: httpx.AsyncClient) -> None:
        chance = random.Random(7)
        whole = (await post(client, "/v1/systemone", body(asked)))["answers"]
        if unknown:
            assert len(set(whole["strange"]["probabilities"].values())) == len(STRANGE["criteria"])
        for _ in range(20):
            names = chance.sample(list(asked), chance.randint(1, len(asked)))
            renamed = {f"{chance.random()}": name for name in names}
            questions = {new: shuffled(asked[name], chance) for new, name in renamed.items()}
            answers = (await post(client, "/v1/systemone", body(questions)))["answers"]
            assert answers == {new: whole[name] for new, name in renamed.items()}

    asking(scenario, **EMBEDDING)


def test_a_question_that_differs_in_one_character_is_unknown(asking: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, "/v1/systemone", body({"u": URGENT, "x": UNKNOWN}), 404)
        assert refused["detail"]["code"] == "question_unknown"
        assert "question 2 of the request ('x')" in refused["detail"]["message"]

        asked = [theirs(URGENT, "u"), theirs(UNKNOWN)]
        answer = await post(
            client, "/v1/decisions", {"model": "nunatak", "input": TEXT, "questions": asked}
        )
        known, other = answer["answers"]
        assert known["type"] == "predicate"
        assert (other["type"], other["name"]) == ("refusal", None)
        assert other["x_reason"]["code"] == "question_unknown"

    asking(scenario)


def test_a_conversation_is_one_text(asking: Callable[..., None]) -> None:
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

    asking(scenario)


def test_models_lists_what_can_be_asked(asking: Callable[..., None], backbone: Backbone) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()
        model, alias = listed["models"]
        assert (model["name"], alias["name"]) == ("nunatak", "jev-latest")
        assert {it["card"] for it in model["x_questions"]} == {f"{name}/1" for name in TASKS}
        assert alias["x_questions"] == []
        assert [it["id"] for it in listed["data"]] == [backbone.name]
        refused = await post(client, "/v1/systemone", body(model="gpt"), 404)
        assert refused["detail"]["error_type"] == "not_found"

    asking(scenario)


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

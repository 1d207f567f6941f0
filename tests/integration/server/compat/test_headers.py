"""The headers of our own prediction routes work in every protocol."""

import asyncio
import dataclasses
from typing import Any

import httpx
import pytest

from doubles.access import access_by_route
from doubles.backbones import HeldLayers
from doubles.compat import (
    DETECTORS,
    DOCUMENTS,
    OTHER,
    TASKS,
    TEXT,
    counted,
    detector,
    litellm,
    portkey,
)
from doubles.policies import make_policy, make_rule, when
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.questions import QuestionCard
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.catalog.catalog import Catalog
from nunatak_server.http.access import PREDICT

COMPUTING = [
    path
    for (_, path), needed in access_by_route().items()
    if needed == PREDICT
    and not path.startswith(("/v1/predict", "/v1/tasks"))
    and path not in {"/v1/verdicts/{policy}", "/v1/verdicts/{policy}/stream"}
]
"""Every route of another protocol that computes."""
OF_BACKBONE = {
    "/v1/embeddings",
    "/srun/v1/embeddings",
    "/tei/backbone",
    "/tei/backbone/embed",
    "/hf/backbone",
}
SEVERAL = {"/srun/v1/bundle", "/v1/systemone", "/v1/decisions"}
"""Routes whose answer has no header for the one version that answered."""
OF_POLICY = {path for path in COMPUTING if "{policy}" in path} | {"/v1/moderations", *DETECTORS}
NAMED = {"detector-id": "guard"}
"""The header that names the policy on the routes of detectors."""
PORTKEY = "/v1/verdicts/{policy}/portkey"
LITELLM = "/v1/verdicts/{policy}/beta/litellm_basic_guardrail_api"
GATEWAYS = {PORTKEY, LITELLM}
"""The routes whose refusals are verdicts, because gateways may let a call pass on an error."""
OF_ONE_TASK = [it for it in COMPUTING if it not in OF_BACKBONE | SEVERAL | OF_POLICY]
ASKED = {"type": "noul", "instructions": "Is it urgent?"}
POLL_S = 0.005
KEYS = [f"user-{number}" for number in range(8)]


def task_of(path: str) -> str:
    return "ranks" if path.endswith(("/rerank", "/score")) else "topic"


def address_of(path: str) -> str:
    return path.format(task=task_of(path), version=1, policy="guard")


def body_about(text: str, path: str, backbone: Backbone) -> dict[str, Any]:
    ranking = {"model": "ranks", "query": text, "documents": DOCUMENTS[:1]}
    scoring = {"model": "ranks", "text_1": text, "text_2": DOCUMENTS[0]}
    classifying = {"input": text, "model": "topic"}
    judging = {"input": text, "model": "guard"}
    embedding = {"input": text, "model": backbone.name}
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    bodies: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("/v1/embeddings", "/srun/v1/embeddings"), embedding),
        "/hf/backbone": {"inputs": {"source_sentence": text, "sentences": ["a"]}},
        **dict.fromkeys(("/srun/v1/classify", "/classify"), classifying),
        **dict.fromkeys(("/v1/moderations", "/v1/verdicts/{policy}/classify"), judging),
        LITELLM: litellm(text),
        PORTKEY: portkey(text),
        **{it: detector(text, it) for it in DETECTORS},
        "/srun/v1/rerank": ranking,
        "/v1/systemone": {"model": "nunatak", "state": text, "questions": {"q": ASKED}},
        "/v1/decisions": {
            "model": "nunatak",
            "input": text,
            "questions": [{**ASKED, "type": "predicate"}],
        },
        "/srun/v1/bundle": {"tasks": [{"id": "a", "rerank": ranking}]},
        **dict.fromkeys(("/score", "/v1/score"), scoring),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), ranking),
    }
    if path.endswith("/infer"):
        return {"inputs": [tensor]}
    if path.endswith(":predict"):
        return {"instances": [text]}
    if path.startswith("/tei/") and path.endswith("/rerank"):
        return {"query": text, "texts": DOCUMENTS[:1]}
    return bodies.get(path, {"inputs": text})


@pytest.fixture(scope="module", autouse=True)
def guard(registry: Registry) -> None:
    """Publish a policy that asks a task and never blocks, and a question that the task answers."""
    rule = make_rule(when("topic", "urgent", threshold=1.0))
    registry.policies.put(make_policy(rule, name="guard"))
    card = {"task": "topic", "question": ASKED, "labels": {"urgent": True, "calm": False}}
    registry.questions.put(QuestionCard.model_validate({"name": "urgent", **card}))


@pytest.fixture(scope="module")
def split(registry: Registry, backbone: Backbone) -> Registry:
    """Two versions of each task that is asked; `prod` is the first."""
    kind, method, _, _ = TASKS["ranks"]
    publish_tiny_task(registry, backbone, task="ranks", kind=kind, method=method, seed=1)
    for task in ("ranks", "topic"):
        registry.promote(task, "prod", 1)
    return registry


async def versions_by_key(client: httpx.AsyncClient, path: str, body: object) -> dict[str, str]:
    found = dict[str, str]()
    for key in KEYS:
        answer = await client.post(path, json=body, headers={"x-routing-key": key})
        assert answer.status_code == 200, answer.text
        found[key] = answer.headers["x-task-version"]
    return found


async def start_canary(client: httpx.AsyncClient, task: str) -> None:
    path = f"/v1/tasks/{task}/aliases/prod/canary"
    assert (await client.put(path, json={"version": 2, "share": 0.5})).status_code == 200


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("path", OF_ONE_TASK)
async def test_a_routing_key_gets_the_version_of_the_path_or_that_of_our_own_route(
    client: httpx.AsyncClient, backbone: Backbone, path: str
) -> None:
    task = task_of(path)
    await start_canary(client, task)
    inputs = {"query": OTHER, "documents": DOCUMENTS} if task == "ranks" else TEXT

    own = await versions_by_key(client, f"/v1/tasks/{task}/predict", {"inputs": inputs})
    theirs = await versions_by_key(client, address_of(path), body_about(TEXT, path, backbone))

    assert set(own.values()) == {f"{task}/1", f"{task}/2"}
    assert theirs == (dict.fromkeys(KEYS, f"{task}/1") if "{version}" in path else own)


@pytest.mark.usefixtures("split")
async def test_a_routing_key_gets_the_version_that_it_gets_by_our_own_route_from_a_policy(
    client: httpx.AsyncClient, registry: Registry
) -> None:
    rule = make_rule(when("topic@prod", "urgent", threshold=1.0))
    registry.policies.put(make_policy(rule, name="routed"))

    await start_canary(client, "topic")

    own = await versions_by_key(client, "/v1/tasks/topic@prod/predict", {"inputs": TEXT})
    for key, version in own.items():
        answer = await client.post(
            "/v1/verdicts/routed", json={"inputs": TEXT}, headers={"x-routing-key": key}
        )
        assert answer.json()["tasks"] == [version]


async def until_above(client: httpx.AsyncClient, limit: float) -> float:
    """Return the number of admitted tokens once it is above a limit."""
    while (found := await counted(client, "nunatak_admitted_tokens ")) <= limit:  # noqa: ASYNC110 - a poll of the server
        await asyncio.sleep(POLL_S)
    return found


async def test_a_higher_priority_goes_before_its_callers_others(
    backbone: Backbone, registry: Registry
) -> None:
    held = dataclasses.replace(backbone, layers=HeldLayers(backbone.layers))
    answered: list[str] = []

    async def ask(path: str, number: int, priority: str) -> None:
        body = body_about(f"text {number}", path, backbone)
        headers = {**NAMED, "x-priority": priority}
        answer = await client.post(address_of(path), json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        answered.append(priority)

    settings = make_settings(max_batch_rows=1, trunk_cache_bytes=0, answer_cache_bytes=0)
    async with running_client(held, registry, settings) as client:
        for path in COMPUTING:
            await ask(path, 0, "normal")
            answered.clear()
            with HeldLayers.held():
                asked = [asyncio.create_task(ask(path, 1, "low"))]
                async with asyncio.timeout(30):
                    each = await until_above(client, 0)
                    for number, priority in enumerate(("low", "low", "low", "low", "high"), 2):
                        asked.append(asyncio.create_task(ask(path, number, priority)))
                    await until_above(client, 5.4 * each)
            await asyncio.gather(*asked)

            # Only the batch in progress and the batch of the oldest row may come first.
            assert answered.index("high") <= 2, path


@pytest.mark.parametrize("path", [path for path in COMPUTING if path not in GATEWAYS])
async def test_an_unknown_priority_is_refused_in_the_neighbours_shape(
    client: httpx.AsyncClient, backbone: Backbone, path: str
) -> None:
    body = body_about(TEXT, path, backbone)

    headers = {**NAMED, "x-priority": "urgent"}
    refused = await client.post(address_of(path), json=body, headers=headers)

    assert refused.status_code == 422
    if path == "/v1/systemone":
        assert refused.json()["detail"][0]["loc"] == ["header", "x-priority"]
        return
    found = refused.json()
    error = found.get("error", found)
    text = error if isinstance(error, str) else error["message"]
    assert text.startswith("the request does not follow its schema: header.x-priority: ")


async def test_a_look_up_that_hangs_ends_at_the_deadline(
    backbone: Backbone, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.sleep(60)

    asked = [(address_of(it), it) for it in COMPUTING if it not in OF_BACKBONE]
    monkeypatch.setattr(Catalog, "look_up", hang)
    async with running_client(backbone, registry) as client, asyncio.timeout(60):
        for address, path in [*asked, ("/classify", "unnamed")]:
            body = body_about(TEXT, path, backbone)
            headers = {**NAMED, "x-deadline-ms": "50"}
            answer = await client.post(address, json=body, headers=headers)
            assert answer.status_code == 504 or "deadline" in answer.text, (path, answer.text)
            is_gateway = path.endswith(("/portkey", "/litellm_basic_guardrail_api"))
            assert not is_gateway or answer.status_code == 200, path

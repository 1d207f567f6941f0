"""The Open Inference Protocol: its routes answer like the native routes."""

from typing import Any

import httpx
from fastapi import FastAPI

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, post
from doubles.serving import running_transport
from nunatak_model import Backbone
from nunatak_registry import Registry

PROBES = (
    "/readyz",
    "/health",
    "/v2/health/ready",
    "/v2/models/topic/ready",
    "/v2/models/topic/versions/1/ready",
    "/tei/tasks/topic/health",
    "/tei/tasks/topic/1/health",
    "/tei/backbone/health",
)


def tensor(name: str, *texts: str, **more: object) -> dict[str, object]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts), **more}


async def infer(
    client: httpx.AsyncClient, task: str, *tensors: object, **more: object
) -> dict[str, Any]:
    answer = await post(client, f"/v2/models/{task}/infer", {"inputs": tensors, **more})
    return {"whole": answer, **{it["name"]: it for it in answer["outputs"]}}


async def test_open_inference_classifies_as_the_task_does(client: httpx.AsyncClient) -> None:
    expected = await native(client, "topic", [TEXT, OTHER])

    found = await infer(client, "topic", tensor("text", TEXT, OTHER), id="seven")
    pinned = await infer(client, "topic/versions/1", tensor("text", TEXT))

    assert found["whole"]["id"] == "seven"
    assert (found["whole"]["model_name"], found["whole"]["model_version"]) == ("topic", "2")
    assert pinned["whole"]["model_version"] == "1"
    assert found["label"]["shape"] == found["score"]["shape"] == [2, 2]
    assert found["label"]["data"] == [it["label"] for row in expected for it in row]
    assert found["score"]["data"] == SCORE([it["score"] for row in expected for it in row])


async def test_open_inference_answers_every_kind_of_head(client: httpx.AsyncClient) -> None:
    question = {"question": OTHER, "context": TEXT}
    (answer,) = await native(client, "answers", question)
    ranked = await native(client, "ranks", {"query": OTHER, "documents": DOCUMENTS})
    spans = await native(client, "names", TEXT, aggregation_strategy="simple")

    found = await infer(client, "answers", tensor("question", OTHER), tensor("context", TEXT))
    order = await infer(client, "ranks", tensor("query", OTHER), tensor("documents", *DOCUMENTS))
    named = await infer(
        client, "names", tensor("text", TEXT), parameters={"aggregation_strategy": "simple"}
    )
    stars = await infer(client, "stars", tensor("text", TEXT))

    assert {name: found[name]["data"] for name in answer} == {
        name: [value if isinstance(value, str) else SCORE(value)] for name, value in answer.items()
    }
    assert order["score"]["data"] == SCORE(
        [it["score"] for it in sorted(ranked, key=lambda it: it["index"])]
    )
    (text,) = named["entities"]["data"]
    found_spans = httpx.Response(200, text=text).json()
    assert [it["word"] for it in found_spans] == [it["word"] for it in spans]
    assert stars["score"]["shape"] == [1, 1]


async def test_open_inference_describes_tasks_as_it_answers_them(client: httpx.AsyncClient) -> None:
    told = {
        "topic": (tensor("text", TEXT),),
        "names": (tensor("text", TEXT),),
        "answers": (tensor("question", OTHER), tensor("context", TEXT)),
        "ranks": (tensor("query", OTHER), tensor("documents", *DOCUMENTS)),
    }
    for task, tensors in told.items():
        metadata = (await client.get(f"/v2/models/{task}")).json()
        known = {it["name"]: it["datatype"] for it in metadata["outputs"]}
        answer = await infer(client, task, *tensors)
        assert {it["name"]: it["datatype"] for it in answer["whole"]["outputs"]} == known
        assert {it["name"] for it in metadata["inputs"]} >= {str(it["name"]) for it in tensors}
        assert (await client.get(f"/v2/models/{task}/ready")).json()["ready"] is True
    assert (await client.get("/v2/models/topic")).json()["versions"] == ["1", "2"]
    assert (await client.get("/v2/models/topic/versions/9/ready")).status_code == 404
    assert (await client.get("/v2")).json()["name"] == "nunatak"
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2/health/ready")).json() == {"ready": True}


async def test_open_inference_gives_the_outputs_that_are_wanted(client: httpx.AsyncClient) -> None:
    found = await infer(client, "topic", tensor("text", TEXT), outputs=[{"name": "label"}])

    assert [it["name"] for it in found["whole"]["outputs"]] == ["label"]


async def test_open_inference_takes_a_no_to_what_it_does_not_offer(
    client: httpx.AsyncClient,
) -> None:
    plain = {"inputs": [tensor("text", TEXT)]}
    refusing = {
        "inputs": [tensor("text", TEXT, parameters={"binary_data": False})],
        "outputs": [
            {"name": name, "parameters": {"binary_data": False}} for name in ("label", "score")
        ],
        "parameters": {"binary_data_output": False},
    }
    path = "/v2/models/topic/infer"

    assert await post(client, path, refusing, 200) == await post(client, path, plain, 200)


async def test_kserve_predicts_as_the_task_does(client: httpx.AsyncClient) -> None:
    rows = await native(client, "topic", [TEXT, OTHER])
    pair = {"text": TEXT, "text_pair": OTHER}
    (paired,) = await native(client, "topic", [pair])
    (value,) = await native(client, "stars", [TEXT])

    found = await post(client, "/v1/models/topic:predict", {"instances": [TEXT, OTHER]})
    both = await post(client, "/v1/models/topic:predict", {"instances": [pair]})
    stars = await post(client, "/v1/models/stars:predict", {"instances": [TEXT]})

    assert found.keys() == {"predictions"}
    for prediction, row in zip(found["predictions"], rows, strict=True):
        assert prediction == SCORE({it["label"]: it["score"] for it in row})
    assert both["predictions"] == [SCORE({it["label"]: it["score"] for it in paired})]
    assert stars["predictions"] == SCORE([value[0]["score"]])


async def test_kserve_answers_every_kind_of_head(client: httpx.AsyncClient) -> None:
    asked: dict[str, object] = {
        "names": TEXT,
        "answers": {"question": OTHER, "context": TEXT},
        "ranks": {"query": OTHER, "documents": DOCUMENTS},
    }
    for task, instance in asked.items():
        expected = await native(client, task, [instance])
        path = f"/v1/models/{task}:predict"
        assert (await post(client, path, {"instances": [instance]}))["predictions"] == expected


async def test_a_server_that_is_about_to_leave_asks_for_no_more_by_any_protocol(
    backbone: Backbone, registry: Registry
) -> None:
    async with (
        running_transport(backbone, registry) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        before = {path: (await client.get(path)).status_code for path in PROBES}
        assert isinstance(transport.app, FastAPI)

        transport.app.state.runtime.announce_drain()

        after = {path: (await client.get(path)).status_code for path in PROBES}
        await native(client, "topic", "taken still")
    assert (before, after) == (dict.fromkeys(PROBES, 200), dict.fromkeys(PROBES, 503))

"""The Open Inference Protocol: its routes answer like the native routes."""

from typing import Any

import httpx

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, post


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

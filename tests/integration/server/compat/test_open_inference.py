"""The Open Inference Protocol: its routes answer like the native routes, also to Triton's clients.

These use the extension for binary tensors by default.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI
from tritonclient import http as triton
from tritonclient.http import aio as triton_aio
from tritonclient.utils import InferenceServerException

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, outputs, post, tensor
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
        answer = await post(client, f"/v2/models/{task}/infer", {"inputs": tensors})
        assert {it["name"]: it["datatype"] for it in answer["outputs"]} == known
        shapes = {it["name"]: it["shape"] for it in metadata["inputs"]}
        assert shapes.keys() >= {it["name"] for it in tensors}
        assert all(it == ([1] if name == "query" else [-1]) for name, it in shapes.items())
        assert (await client.get(f"/v2/models/{task}/ready")).json()["ready"] is True
    assert (await client.get("/v2/models/topic")).json()["versions"] == ["1", "2"]
    assert (await client.get("/v2/models/topic/versions/9/ready")).status_code == 404
    assert (await client.get("/v2")).json()["name"] == "nunatak"
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2/health/ready")).json() == {"ready": True}


async def test_open_inference_gives_the_outputs_that_are_wanted(client: httpx.AsyncClient) -> None:
    plain = {"inputs": [tensor("text", TEXT)]}
    refusing = {
        "inputs": [tensor("text", TEXT, parameters={"binary_data": False})],
        "outputs": [
            {"name": name, "parameters": {"binary_data": False}} for name in ("label", "score")
        ],
        "parameters": {"binary_data_output": False},
    }
    path = "/v2/models/topic/infer"

    whole = await post(client, path, plain)
    assert await post(client, path, refusing) == whole
    second = await post(client, path, {**plain, "outputs": [{"name": "score"}]})
    assert second["outputs"] == whole["outputs"][1:]


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


HEADER = "inference-header-content-length"
UNUSUAL = "naïve 東京 😀"


@contextmanager
def client_of(address: str) -> Generator[Any]:
    client = cast("Any", triton).InferenceServerClient(address.removeprefix("http://"))
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def aio_client_of(address: str) -> AsyncGenerator[Any]:
    client = cast("Any", triton_aio).InferenceServerClient(address.removeprefix("http://"))
    try:
        yield client
    finally:
        await client.close()


def packed(name: str, *texts: str, binary: bool = True) -> Any:  # noqa: ANN401 - a type of the client
    made = cast("Any", triton).InferInput(name, [len(texts)], "BYTES")
    data = np.array([text.encode() for text in texts], dtype=object)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def test_tritons_own_client_works_as_it_comes(address: str) -> None:
    with client_of(address) as client:
        expected = outputs(address, "topic", [TEXT, UNUSUAL])
        ranked = outputs(address, "ranks", {"query": OTHER, "documents": DOCUMENTS})
        (answered,) = outputs(address, "answers", {"question": OTHER, "context": TEXT})

        found = client.infer("topic", [packed("text", TEXT, UNUSUAL)], request_id="seven")
        order = client.infer("ranks", [packed("query", OTHER), packed("documents", *DOCUMENTS)])
        answer = client.infer("answers", [packed("question", OTHER), packed("context", TEXT)])
        pinned = client.infer("topic", [packed("text", TEXT)], model_version="1")

        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("topic")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        assert {it["name"] for it in client.get_model_metadata("topic")["inputs"]} == {
            "text",
            "text_pair",
        }
    assert found.get_response()["id"] == "seven"
    assert pinned.get_response()["model_version"] == "1"
    assert found.as_numpy("label").shape == (2, 2)
    labels = [[it.decode() for it in row] for row in found.as_numpy("label")]
    assert labels == [[it["label"] for it in row] for row in expected]
    for scores, row in zip(found.as_numpy("score"), expected, strict=True):
        assert scores.dtype == np.float32
        assert scores.tolist() == SCORE([it["score"] for it in row])
    in_order = [it["score"] for it in sorted(ranked, key=lambda it: it["index"])]
    assert order.as_numpy("score").tolist() == SCORE(in_order)
    assert answer.as_numpy("answer")[0].decode() == answered["answer"]
    assert answer.as_numpy("start").tolist() == [answered["start"]]
    assert answer.as_numpy("end").dtype == np.int64


@pytest.mark.parametrize("sends_binary", [True, False])
@pytest.mark.parametrize("gets_binary", [True, False])
def test_each_tensor_is_binary_or_json_as_the_caller_says(
    address: str, *, sends_binary: bool, gets_binary: bool
) -> None:
    wanted = [
        cast("Any", triton).InferRequestedOutput("score", binary_data=gets_binary),
        cast("Any", triton).InferRequestedOutput("label", binary_data=False),
    ]
    with client_of(address) as client:
        (row,) = outputs(address, "topic", [TEXT])
        found = client.infer("topic", [packed("text", TEXT, binary=sends_binary)], outputs=wanted)

    assert found.as_numpy("score")[0].tolist() == SCORE([it["score"] for it in row])
    assert found.get_output("label")["data"] == [it["label"] for it in row]
    assert ("data" in found.get_output("score")) is not gets_binary


def test_tritons_own_async_client_works_as_it_comes(address: str) -> None:
    async def ask() -> Any:  # noqa: ANN401 - a type of the client
        async with aio_client_of(address) as client:
            return await client.infer("topic", [packed("text", TEXT)], parameters={"top_k": 1})

    (row,) = outputs(address, "topic", [TEXT])
    found = asyncio.run(ask())

    assert found.as_numpy("label").tolist() == [[row[0]["label"].encode()]]


def test_tritons_own_client_reads_our_errors(address: str) -> None:
    with client_of(address) as client:
        with pytest.raises(InferenceServerException, match="no task 'nobody'"):
            client.infer("nobody", [packed("text", TEXT)])
        with pytest.raises(InferenceServerException, match="parameters here may be"):
            client.infer("topic", [packed("text", TEXT)], priority=7)


def element(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


def request_of(size: object, **more: object) -> dict[str, Any]:
    fields = {"name": "text", "shape": [1], "datatype": "BYTES", **more}
    return {"inputs": [{**fields, "parameters": {"binary_data_size": size}}]}


ELEMENT = element(b"where?")


@pytest.mark.parametrize(
    ("body", "rest", "length"),
    [
        (request_of(len(ELEMENT)), ELEMENT, "x"),
        (request_of(len(ELEMENT)), ELEMENT, "0"),
        (request_of(len(ELEMENT)), ELEMENT, "99999"),
        (request_of(len(ELEMENT)), ELEMENT, "-1"),
        (request_of(len(ELEMENT) + 1), ELEMENT, None),
        (request_of(len(ELEMENT) - 1), ELEMENT, None),
        (request_of(-1), ELEMENT, None),
        (request_of(True), ELEMENT, None),  # noqa: FBT003 - JSON
        (request_of("10"), ELEMENT, None),
        (request_of(0), b"", None),
        (request_of(len(ELEMENT), data=["where?"]), ELEMENT, None),
        (request_of(3), b"\1\0\0", None),
        (request_of(6), b"\xff\xff\xff\xffab", None),
        (request_of(5), element(b"\xff"), None),
        (request_of(8), element(b"") * 2, None),
        (request_of(4 * 5000), element(b"") * 5000, None),
        (request_of(len(ELEMENT), shape=[2]), ELEMENT, None),
        ({"inputs": []}, ELEMENT, None),
        ({"inputs": [7]}, ELEMENT, None),
        ([], ELEMENT, None),
    ],
)
async def test_binary_tensors_that_are_not_as_declared_are_refused(
    client: httpx.AsyncClient, body: object, rest: bytes, length: str | None
) -> None:
    head = orjson.dumps(body)
    headers = {
        HEADER: str(len(head)) if length is None else length,
        "content-type": "application/octet-stream",
    }
    answer = await client.post("/v2/models/topic/infer", content=head + rest, headers=headers)

    assert answer.status_code == 422, answer.text
    assert answer.json().keys() == {"error"}
    assert "where" not in answer.text


async def test_a_body_of_another_media_type_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "text/plain"}
    answer = await client.post("/v2/models/topic/infer", content=b"{}", headers=headers)
    assert answer.status_code == 415

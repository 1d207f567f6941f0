"""The extension for binary tensors, with Triton's own clients, which use it by default."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import httpx
import numpy as np
import orjson
import pytest
from tritonclient import http as triton
from tritonclient.http import aio as triton_aio
from tritonclient.utils import InferenceServerException

from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, native, outputs

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


def tensor(name: str, *texts: str, binary: bool = True) -> Any:  # noqa: ANN401 - a type of the client
    made = cast("Any", triton).InferInput(name, [len(texts)], "BYTES")
    data = np.array([text.encode() for text in texts], dtype=object)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def test_tritons_own_client_works_as_it_comes(address: str) -> None:
    with client_of(address) as client:
        expected = outputs(address, "topic", [TEXT, UNUSUAL])
        ranked = outputs(address, "ranks", {"query": OTHER, "documents": DOCUMENTS})
        (answered,) = outputs(address, "answers", {"question": OTHER, "context": TEXT})

        found = client.infer("topic", [tensor("text", TEXT, UNUSUAL)], request_id="seven")
        order = client.infer("ranks", [tensor("query", OTHER), tensor("documents", *DOCUMENTS)])
        answer = client.infer("answers", [tensor("question", OTHER), tensor("context", TEXT)])
        pinned = client.infer("topic", [tensor("text", TEXT)], model_version="1")

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
        found = client.infer("topic", [tensor("text", TEXT, binary=sends_binary)], outputs=wanted)

    assert found.as_numpy("score")[0].tolist() == SCORE([it["score"] for it in row])
    assert found.get_output("label")["data"] == [it["label"] for it in row]
    assert ("data" in found.get_output("score")) is not gets_binary


def test_tritons_own_async_client_works_as_it_comes(address: str) -> None:
    async def ask() -> Any:  # noqa: ANN401 - a type of the client
        async with aio_client_of(address) as client:
            return await client.infer("topic", [tensor("text", TEXT)], parameters={"top_k": 1})

    (row,) = outputs(address, "topic", [TEXT])
    found = asyncio.run(ask())

    assert found.as_numpy("label").tolist() == [[row[0]["label"].encode()]]


def test_tritons_own_client_reads_our_errors(address: str) -> None:
    with client_of(address) as client:
        with pytest.raises(InferenceServerException, match="no task 'nobody'"):
            client.infer("nobody", [tensor("text", TEXT)])
        with pytest.raises(InferenceServerException, match="parameters here may be"):
            client.infer("topic", [tensor("text", TEXT)], priority=7)


def element(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


def request_of(size: object, **more: object) -> dict[str, Any]:
    fields = {"name": "text", "shape": [1], "datatype": "BYTES", **more}
    return {"inputs": [{**fields, "parameters": {"binary_data_size": size}}]}


GOOD = element(b"where?")


@pytest.mark.parametrize(
    ("body", "rest", "length"),
    [
        (request_of(len(GOOD)), GOOD, "x"),
        (request_of(len(GOOD)), GOOD, "0"),
        (request_of(len(GOOD)), GOOD, "99999"),
        (request_of(len(GOOD)), GOOD, "-1"),
        (request_of(len(GOOD) + 1), GOOD, None),
        (request_of(len(GOOD) - 1), GOOD, None),
        (request_of(-1), GOOD, None),
        (request_of(True), GOOD, None),  # noqa: FBT003 - JSON
        (request_of("10"), GOOD, None),
        (request_of(0), b"", None),
        (request_of(len(GOOD), data=["where?"]), GOOD, None),
        (request_of(3), b"\1\0\0", None),
        (request_of(6), b"\xff\xff\xff\xffab", None),
        (request_of(5), element(b"\xff"), None),
        (request_of(8), element(b"") * 2, None),
        (request_of(4 * 5000), element(b"") * 5000, None),
        (request_of(len(GOOD), shape=[2]), GOOD, None),
        ({"inputs": []}, GOOD, None),
        ({"inputs": [7]}, GOOD, None),
        ([], GOOD, None),
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


async def test_equal_requests_get_equal_answers_in_both_forms(client: httpx.AsyncClient) -> None:
    (row,) = await native(client, "topic", [TEXT])
    head = orjson.dumps({**request_of(len(element(TEXT.encode())))})
    answer = await client.post(
        "/v2/models/topic/infer",
        content=head + element(TEXT.encode()),
        headers={HEADER: str(len(head))},
    )
    assert answer.status_code == 200, answer.text
    found = {it["name"]: it["data"] for it in answer.json()["outputs"]}
    assert found["label"] == [it["label"] for it in row]
    assert found["score"] == SCORE([it["score"] for it in row])

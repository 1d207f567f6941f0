"""Embeddings by the protocols of OpenAI and text-embeddings-inference."""

import asyncio
import base64
import struct
from typing import Any

import httpx

from doubles.compat import OTHER, SCORE, TEXT, native, post
from nunatak_model import Backbone


def vectors_of(answer: dict[str, Any]) -> list[list[float]]:
    return [item["embedding"] for item in answer["data"]]


def length(vector: list[float]) -> float:
    return sum(value * value for value in vector) ** 0.5


async def test_embeddings_are_the_same_by_either_protocol(client: httpx.AsyncClient) -> None:
    name = (await client.get("/v1/models")).json()["data"][0]["id"]
    body = {"input": [TEXT, OTHER], "model": name}

    theirs = await post(client, "/tei/backbone/embed", {"inputs": [TEXT, OTHER]})
    answer = await post(client, "/v1/embeddings", body)
    coded = await post(client, "/v1/embeddings", {**body, "encoding_format": "base64"})
    plain = await post(client, "/tei/backbone/embed", {"inputs": TEXT, "normalize": False})

    assert answer["object"] == "list"
    assert [it["index"] for it in answer["data"]] == [0, 1]
    assert vectors_of(answer) == [SCORE(vector) for vector in theirs]
    assert [length(vector) for vector in theirs] == [SCORE(1.0)] * 2
    assert length(plain[0]) != SCORE(1.0)
    assert [value / length(plain[0]) for value in plain[0]] == SCORE(theirs[0], abs=1e-6)
    for item, vector in zip(coded["data"], theirs, strict=True):
        decoded = struct.unpack(f"<{len(vector)}f", base64.b64decode(item["embedding"]))
        assert decoded == SCORE(vector)


async def test_openai_counts_every_token_that_was_read(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    answer = await post(
        client, "/v1/embeddings", {"input": [TEXT, OTHER], "model": backbone.name, "user": "me"}
    )

    read = backbone.tokenizer.encode([TEXT, OTHER], max_length=backbone.config.max_tokens)
    count = sum(encoding.num_tokens for encoding in read)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert answer["model"] == backbone.name


async def test_openai_lists_the_model_that_embeds(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    listed = (await client.get("/v1/models")).json()
    shown = await client.get(f"/v1/models/{backbone.name}")

    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [backbone.name]
    assert shown.json() == listed["data"][0]
    assert (await client.get("/v1/models/gpt")).json()["error"]["code"] == "model_not_found"


async def test_embeddings_and_tasks_meet_in_one_batch(client: httpx.AsyncClient) -> None:
    alone = await post(client, "/tei/backbone/embed", {"inputs": TEXT})
    expected = await native(client, "topic", TEXT)
    asked = [
        post(client, "/tei/backbone/embed", {"inputs": TEXT})
        if turn % 2
        else native(client, "topic", TEXT)
        for turn in range(20)
    ]

    for turn, answer in enumerate(await asyncio.gather(*asked)):
        if turn % 2:
            assert answer[0] == SCORE(alone[0], abs=1e-5)
        else:
            assert [it["score"] for it in answer] == SCORE([it["score"] for it in expected])
    text = (await client.get("/metrics")).text
    assert 'nunatak_requests_total{outcome="ok",task="(backbone)"}' in text

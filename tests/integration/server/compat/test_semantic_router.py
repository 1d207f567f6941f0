"""vLLM semantic-router's runtime contract, in the bytes of the router's own client.

The router is a Go program. The requests have the form that its client gives them
(src/semantic-router/pkg/modelservice/surfaces.go), and the answers the form of its contract
(src/model-runtime/vllm_srun/api/openapi.yaml 2.3.0), both of November 2026.
"""

import base64
import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.backbones import HeldLayers
from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, TOO_LONG, native, post
from doubles.serving import make_settings, running_client
from doubles.tasks import MAX_LENGTH, publish_tiny_task
from nunatak_contract.enums import ProblemType
from nunatak_model import Backbone
from nunatak_registry import Registry

LABELS = ["calm", "urgent"]
BACKBONE = "(backbone)"
"""Stands for the name of the backbone."""


def asking(model: str, *texts: str, **options: object) -> dict[str, Any]:
    """The request of the router's client, which always lists items and asks for meta."""
    return {
        "model": model,
        "input": [{"text": it} for it in texts],
        "options": {"deadline_ms": 2500.125, "return_meta": True, **options},
    }


@pytest.fixture(scope="module", autouse=True)
def _more_tasks(registry: Registry, backbone: Backbone) -> None:
    publish_tiny_task(
        registry,
        backbone,
        task="several",
        labels=("billing", "refund"),
        problem_type=ProblemType.MULTI_LABEL,
        thresholds={"refund": 0.01},
    )


async def test_the_router_classifies_as_the_task_does(client: httpx.AsyncClient) -> None:
    rows = await native(client, "topic", [TEXT, OTHER])
    body = {"inputs": TEXT}
    many = (await client.post("/v1/tasks/several/predict", json=body)).json()

    answer = await client.post("/srun/v1/classify", json=asking("topic", TEXT, OTHER))
    found = answer.json()
    scores = await post(client, "/srun/v1/classify", asking("several", TEXT))

    assert (found["model"], found["head"], found["kind"]) == ("topic", "topic", "sequence")
    assert found["labels"] == LABELS
    assert found["meta"]["model_id"] == "topic/2"
    for index, (result, row) in enumerate(zip(found["results"], rows, strict=True)):
        expected = {it["label"]: it["score"] for it in row}
        assert result["index"] == index
        assert result["label"] == row[0]["label"]
        assert result["probabilities"] == SCORE([expected[label] for label in LABELS])
        assert result["input"]["truncated"] is False
    read = [it["input"]["processed_tokens"] for it in found["results"]]
    assert found["usage"] == {"input_tokens": sum(read), "output_tokens": 0}
    parts = dict(it.split(";dur=") for it in answer.headers["server-timing"].split(", "))
    assert parts.keys() == {"tokenize", "queue", "forward", "total"}
    assert float(parts["total"]) >= float(parts["forward"])
    assert scores["kind"] == "scores"
    assert scores["results"][0]["selected"] == many["predicted"] != []


async def test_the_router_finds_spans(client: httpx.AsyncClient) -> None:
    expected = await native(client, "spans", TEXT, aggregation_strategy="simple")
    middle = max(it["score"] for it in expected)

    whole = await post(client, "/srun/v1/classify", asking("spans", TEXT, overflow="window"))
    sure = await post(client, "/srun/v1/classify", asking("spans", TEXT, threshold=middle))

    assert whole["kind"] == "token"
    (result,) = whole["results"]
    assert result["spans"]
    for span, it in zip(result["spans"], expected, strict=True):
        assert (span["label"], span["start"], span["end"]) == (
            it["entity_group"],
            it["start"],
            it["end"],
        )
        assert span["text"] == TEXT[span["start"] : span["end"]]
        assert span["probability"] == SCORE(it["score"])
    assert 0 < len(sure["results"][0]["spans"]) <= len(expected)
    assert min(it["probability"] for it in sure["results"][0]["spans"]) >= middle


async def test_one_input_that_is_too_long_fails_alone(client: httpx.AsyncClient) -> None:
    (row,) = await native(client, "topic", [TEXT])
    cut = await native(client, "topic", TOO_LONG, on_long="cut")
    path = "/srun/v1/classify"

    mixed = await post(client, path, asking("topic", TEXT, TOO_LONG, overflow="reject"))
    alone = await post(client, path, asking("topic", TOO_LONG, overflow="reject"))
    short = await post(client, path, asking("topic", TOO_LONG, overflow="truncate"))
    budget = asking("topic", TOO_LONG, overflow="window", max_tokens=MAX_LENGTH)
    scanned = await post(client, path, budget)

    assert mixed["results"][0]["label"] == row[0]["label"]
    assert mixed["results"][1] == {"index": 1, "error": "max_length_exceeded"}
    assert alone["results"] == [{"index": 0, "error": "max_length_exceeded"}]
    assert (alone["kind"], alone["labels"]) == ("sequence", LABELS)
    assert max(short["results"][0]["probabilities"]) == SCORE(cut[0]["score"])
    assert short["results"][0]["input"]["truncated"] is True
    assert scanned["results"] == [{"index": 0, "error": "scan_budget_exceeded"}]


async def test_one_version_answers_all_inputs_of_a_request_with_an_error(
    backbone: Backbone, tmp_path: Path
) -> None:
    with Registry.open(tmp_path) as registry:
        for seed, labels in enumerate((LABELS, LABELS[::-1])):
            publish_tiny_task(registry, backbone, task="topic", labels=labels, seed=seed)
        registry.promote("topic", "prod", 1)
        async with running_client(backbone, registry) as client:
            canary = {"version": 2, "share": 0.5}
            await client.put("/v1/tasks/topic/aliases/prod/canary", json=canary)
            body = asking("topic", *[TEXT] * 6, TOO_LONG, overflow="reject")
            for _ in range(8):
                answer = await client.post("/srun/v1/classify", json=body)
                found = answer.json()
                *rows, failed = found["results"]
                assert failed["error"] == "max_length_exceeded"
                assert len({tuple(it["probabilities"]) for it in rows}) == 1
                assert found["meta"]["model_id"] == answer.headers["x-task-version"] == "topic/1"


async def test_the_router_gets_logits_and_the_best_documents(client: httpx.AsyncClient) -> None:
    body = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}

    found = await post(client, "/srun/v1/rerank", body)
    best = await post(client, "/srun/v1/rerank", {**body, "top_n": 1, "return_documents": True})

    scores = [it["relevance_score"] for it in found["results"]]
    # The router's client drops every result without a logit.
    logits = [math.log(it / (1 - it)) for it in scores]
    assert [it["logit"] for it in found["results"]] == SCORE(logits)
    assert [it["document"] for it in best["results"]] == [DOCUMENTS[found["results"][0]["index"]]]


def embedding(*texts: str, **fields: object) -> dict[str, Any]:
    """The request of the router's client, which lists parts and asks for base64 and meta."""
    return {
        "model": BACKBONE,
        "input": [{"type": "text", "text": it} for it in texts],
        "encoding_format": "base64",
        "options": {"return_meta": True},
        **fields,
    }


async def test_the_router_gets_the_vectors_of_the_backbone(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    path, whole = "/srun/v1/embeddings", {"model": backbone.name, "input": [TEXT, OTHER]}
    (card,) = [
        it
        for it in (await client.get("/srun/v1/models")).json()["data"]
        if it["surfaces"] == ["embeddings"]
    ]
    expected = (await post(client, "/v1/embeddings", whole))["data"]

    found = await post(client, path, embedding(TEXT, OTHER, model=backbone.name))
    plain = await post(client, path, {"model": backbone.name, "input": TEXT})
    mixed = await post(client, path, embedding(TEXT, TOO_LONG * 9, model=backbone.name))
    cut = await post(
        client, path, embedding(TOO_LONG * 9, model=backbone.name, options={"overflow": "truncate"})
    )
    task = {"id": "e", "embeddings": embedding(TEXT, model=backbone.name)}
    (bundled,) = (await post(client, "/srun/v1/bundle", {"tasks": [task]}))["results"]

    vectors = [
        list(struct.unpack(f"<{len(raw) // 4}f", raw))
        for raw in (base64.b64decode(it["embedding"]) for it in found["data"])
    ]
    for vector, it in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(it["embedding"], abs=1e-6)
    assert plain["data"][0]["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    assert "meta" not in plain
    space = found["meta"]["representation"]
    assert (space["model_sha256"], space["dimension"]) == (backbone.digest, len(vectors[0]))
    assert card["id"] == backbone.name
    assert card["embedding"]["dimensions"] == [space["dimension"]]
    assert card["embedding"]["layers"] == [space["layer"]]
    assert mixed["data"][0]["embedding"] == found["data"][0]["embedding"]
    assert mixed["data"][1] == {"object": "embedding", "index": 1, "error": "max_length_exceeded"}
    assert mixed["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert "embedding" in cut["data"][0]
    assert bundled["embeddings"]["data"] == found["data"][:1]


async def test_a_bundle_answers_each_task_as_alone(client: httpx.AsyncClient) -> None:
    single = await post(client, "/srun/v1/classify", asking("topic", TEXT))
    ranking = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}
    tasks = [
        {"id": "a", "classify": asking("topic", TEXT)},
        {"id": "b", "classify": asking("nobody", TEXT)},
        {"id": "c", "rerank": ranking},
        {"id": "d", "classify": asking("ranks", TEXT)},
    ]

    found = await post(client, "/srun/v1/bundle", {"tasks": tasks})

    first, missing, ranked, wrong = found["results"]
    assert (first["id"], first["status"]) == ("a", 200)
    probabilities = first["classify"]["results"][0]["probabilities"]
    assert probabilities == SCORE(single["results"][0]["probabilities"])
    assert (missing["status"], missing["error"]["code"]) == (404, "model_not_found")
    assert ranked["status"] == 200
    assert len(ranked["rerank"]["results"]) == len(DOCUMENTS)
    assert (wrong["status"], wrong["error"]["code"]) == (422, "invalid_request")


async def test_the_cards_describe_what_the_router_can_ask(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    listed = (await client.get("/srun/v1/models")).json()
    health = (await client.get("/srun/health")).json()
    live = (await client.get("/srun/health/live")).json()

    cards = {it["id"]: it for it in listed["data"]}
    assert cards.keys() == {
        *("topic", "names", "people", "spans", "ranks", "several"),
        backbone.name,
    }
    assert listed["api_version"].split(".")[0] == "2"
    assert listed["limits"] == {"max_bundle_tasks": 64, "max_request_bytes": 1024 * 1024}
    assert cards["topic"]["surfaces"] == ["classify"]
    assert cards["topic"]["limits"] == {"max_input_tokens": MAX_LENGTH, "max_inputs": 8}
    (head,) = cards["topic"]["heads"]
    assert head == {
        "name": "topic",
        "kind": "sequence",
        "labels": LABELS,
        "inputs": ["text", "pair"],
        "overflow": "window",
    }
    assert cards["several"]["heads"][0]["thresholds"] == [0.5, 0.01]
    assert cards["spans"]["heads"][0]["inputs"] == ["text"]
    assert cards["ranks"]["surfaces"] == ["rerank"]
    assert all(it["ready"] for it in cards.values())
    assert health["status"] == "ready"
    assert {name: it["status"] for name, it in health["models"].items()} == dict.fromkeys(
        cards, "ready"
    )
    assert (live["status"], live["api_version"]) == ("alive", listed["api_version"])


async def test_late_inputs_carry_their_own_errors(backbone: Backbone, registry: Registry) -> None:
    held = dataclasses.replace(backbone, layers=HeldLayers(backbone.layers))
    settings = make_settings(max_inputs=8, trunk_cache_bytes=0)
    async with running_client(held, registry, settings) as client:
        await post(client, "/srun/v1/classify", asking("topic", OTHER))
        with HeldLayers.held():
            late = asking("topic", TEXT, OTHER, deadline_ms=50.5)
            found = await post(client, "/srun/v1/classify", late)
            body = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}
            ranked = await client.post(
                "/srun/v1/rerank", json=body, headers={"x-deadline-ms": "50"}
            )

    assert (ranked.status_code, ranked.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert found["results"] == [
        {"index": index, "error": "deadline_exceeded"} for index in range(2)
    ]

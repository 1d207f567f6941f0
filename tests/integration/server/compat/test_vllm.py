"""vLLM's pooling routes, and the rerank routes of Jina and Cohere, answer like the native routes.

vLLM has no client of its own. The bodies are those of its documents and of NeMo Guardrails'
`hf_classifier` (nemoguardrails/library/hf_classifier/backends.py); Jina's are those of its API
reference. Cohere's own client asks `/v1/rerank` and `/v2/rerank`.
"""

from pathlib import Path
from typing import Any, NoReturn

import cohere
import httpx
import pytest
from cohere.core.api_error import ApiError

from doubles.access import add_key
from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, TOO_LONG, native, outputs, post
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import change_keys

LABELS = ("calm", "urgent")
RERANK: dict[str, Any] = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}


async def ranking(client: httpx.AsyncClient, **parameters: object) -> list[dict[str, Any]]:
    return await native(client, "ranks", {"query": OTHER, "documents": DOCUMENTS}, **parameters)


def in_order(ranked: list[dict[str, Any]]) -> list[float]:
    return [it["score"] for it in sorted(ranked, key=lambda it: it["index"])]


async def test_vllm_classifies_as_the_task_does(client: httpx.AsyncClient) -> None:
    expected = await native(client, "topic", [TEXT, OTHER])
    read = (await client.post("/v1/tasks/topic/predict", json={"inputs": [TEXT, OTHER]})).json()

    found = await post(client, "/classify", {"model": "topic", "input": [TEXT, OTHER]})
    single = await post(client, "/classify", {"model": "topic", "input": TEXT})

    assert found["object"] == "list"
    assert found["model"] == "topic"
    assert found["id"].startswith("classify-")
    assert found["usage"]["prompt_tokens"] == sum(read["tokens"])
    for index, (item, row) in enumerate(zip(found["data"], expected, strict=True)):
        scores = {it["label"]: it["score"] for it in row}
        assert item["index"] == index
        assert item["label"] == row[0]["label"]
        assert item["probs"] == SCORE([scores[label] for label in LABELS])
        assert item["num_classes"] == 2
    assert single["data"] == [found["data"][0] | {"probs": SCORE(found["data"][0]["probs"])}]


async def test_vllm_gives_logits_versions_and_values(client: httpx.AsyncClient) -> None:
    logits = await native(client, "topic", TEXT, function_to_apply="none")
    stars = await native(client, "stars", TEXT)
    first = await native(client, "topic/1", TEXT)

    raw = await post(
        client, "/classify", {"model": "topic", "input": TEXT, "use_activation": False}
    )
    value = await post(client, "/classify", {"model": "stars", "input": TEXT})
    pinned = await post(client, "/classify", {"model": "topic/1", "input": TEXT})

    assert sorted(raw["data"][0]["probs"], reverse=True) == SCORE([it["score"] for it in logits])
    assert value["data"][0]["probs"] == SCORE([stars[0]["score"]])
    assert max(pinned["data"][0]["probs"]) == SCORE(first[0]["score"])


async def test_vllm_cuts_a_long_text_only_on_request(client: httpx.AsyncClient) -> None:
    body = {"model": "topic", "input": TOO_LONG}
    whole = await native(client, "topic", TOO_LONG)
    cut = await native(client, "topic", TOO_LONG, on_long="cut")

    found = await post(client, "/classify", body)
    shortened = await post(client, "/classify", {**body, "truncate_prompt_tokens": -1})

    assert max(found["data"][0]["probs"]) == SCORE(whole[0]["score"])
    assert max(shortened["data"][0]["probs"]) == SCORE(cut[0]["score"])


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names",
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
async def test_vllm_scores_pairs_in_their_order(
    client: httpx.AsyncClient, path: str, names: tuple[str, str]
) -> None:
    first, second = names

    expected = in_order(await ranking(client))

    one = await post(client, path, {"model": "ranks", first: OTHER, second: DOCUMENTS[1]})
    many = await post(client, path, {"model": "ranks", first: OTHER, second: DOCUMENTS})
    pairs = await post(client, path, {"model": "ranks", first: [OTHER] * 3, second: DOCUMENTS})

    assert [it["score"] for it in one["data"]] == SCORE(expected[1:2])
    assert [it["score"] for it in many["data"]] == SCORE(expected)
    assert [it["score"] for it in pairs["data"]] == SCORE(expected)
    assert [it["index"] for it in pairs["data"]] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_vllm_reranks_as_the_task_ranks(client: httpx.AsyncClient, path: str) -> None:
    expected = await ranking(client)

    found = await post(client, path, RERANK)
    best = await post(client, path, {**RERANK, "top_n": 1, "return_documents": False})
    as_objects = [{"text": it} for it in DOCUMENTS]
    objects = await post(client, path, {**RERANK, "documents": as_objects, "top_n": 0})

    assert [it["index"] for it in found["results"]] == [it["index"] for it in expected]
    scores = [it["relevance_score"] for it in found["results"]]
    assert scores == SCORE([it["score"] for it in expected])
    for it in found["results"]:
        assert it["document"] == {"text": DOCUMENTS[it["index"]]}
    assert best["results"] == [{k: found["results"][0][k] for k in ("index", "relevance_score")}]
    assert objects["results"] == found["results"]
    assert found["usage"]["total_tokens"] > 0


def test_coheres_own_client_reranks(address: str) -> None:
    expected = outputs(address, "ranks", {"query": OTHER, "documents": DOCUMENTS})[:2]
    asked: dict[str, Any] = {**RERANK, "top_n": 2}
    with httpx.Client() as http:
        newer = cohere.ClientV2(api_key="none", base_url=address, httpx_client=http)
        older = cohere.Client(api_key="none", base_url=address, httpx_client=http)

        # LangChain's reranker sends the null.
        answers = [
            older.rerank(**asked).results,
            newer.rerank(**asked).results,
            newer.rerank(**asked, max_tokens_per_doc=None).results,
        ]
        for answer in answers:
            assert [it.index for it in answer] == [it["index"] for it in expected]
            scores = [it.relevance_score for it in answer]
            assert scores == SCORE([it["score"] for it in expected])
        with pytest.raises(ApiError) as caught:
            newer.rerank(**RERANK, max_tokens_per_doc=9)
    assert caught.value.status_code == 422


class Unlisted(Registry):
    """A registry whose tasks are too many to list for each prediction."""

    def tasks(self) -> NoReturn:
        raise AssertionError("a prediction reads no manifest of another task")


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (LABELS, HeadKind.SEQUENCE_CLASSIFICATION),
        # Without "O", every token is in a span.
        (("B-X", "I-X"), HeadKind.TOKEN_CLASSIFICATION),
    ],
)
async def test_the_one_task_of_a_key_answers_a_request_without_a_name(
    backbone: Backbone, tmp_path: Path, labels: tuple[str, ...], kind: HeadKind
) -> None:
    keys = tmp_path / "keys.json"
    change_keys(keys, lambda found: found)
    one, every = add_key(keys, "one", tasks=["guard"]), add_key(keys, "every")
    with Unlisted.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, backbone, task="guard", labels=labels, kind=kind)
        publish_tiny_task(registry, backbone, task="other")
        settings = make_settings(api_keys_file=keys)
        async with running_client(backbone, registry, settings) as client:
            body: dict[str, Any] = {"inputs": TEXT}
            answer = await client.post("/classify", json=body, headers=one)
            refused = await client.post("/classify", json=body, headers=every)
            own = {**body, "parameters": {"aggregation_strategy": "simple"}}
            told = await client.post("/v1/tasks/guard/predict", json=own, headers=one)

    found, expected = answer.json(), told.json()["outputs"]
    assert refused.status_code == 422
    assert "this key has 2 tasks" in refused.json()["error"]["message"]
    assert [it["score"] for it in found] == SCORE([it["score"] for it in expected])
    if kind is HeadKind.SEQUENCE_CLASSIFICATION:
        assert [it["label"] for it in found] == [it["label"] for it in expected]
        assert sum(it["score"] for it in found) == SCORE(1)
    else:
        assert found
        assert [it["label"] for it in found] == [it["entity_group"] for it in expected]
        for it in found:
            assert it["text"] == TEXT[it["start"] : it["end"]] != ""

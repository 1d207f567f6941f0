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
from doubles.compat import DOCUMENTS, OTHER, SCORE, TEXT, outputs, post
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.keys import change_keys

LABELS = ("calm", "urgent")
RERANK: dict[str, Any] = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}


async def test_vllm_names_what_answers_and_counts_what_was_read(client: httpx.AsyncClient) -> None:
    read = (await client.post("/v1/tasks/topic/predict", json={"inputs": [TEXT, OTHER]})).json()

    found = await post(client, "/classify", {"model": "topic", "input": [TEXT, OTHER]})
    single = await post(client, "/classify", {"model": "topic", "input": TEXT})
    scored = await post(client, "/score", {"model": "ranks", "text_1": TEXT, "text_2": TEXT})

    assert (found["object"], found["model"]) == ("list", "topic")
    assert found["id"].startswith("classify-")
    assert found["usage"]["prompt_tokens"] == sum(read["tokens"])
    assert [it["index"] for it in found["data"]] == [0, 1]
    assert single["data"] == [found["data"][0] | {"probs": SCORE(found["data"][0]["probs"])}]
    assert [it["object"] for it in scored["data"]] == ["score"]


async def test_vllm_shows_the_best_documents_on_request(client: httpx.AsyncClient) -> None:
    found = await post(client, "/rerank", RERANK)
    best = await post(client, "/rerank", {**RERANK, "top_n": 1, "return_documents": False})

    for it in found["results"]:
        assert it["document"] == {"text": DOCUMENTS[it["index"]]}
    assert best["results"] == [{k: found["results"][0][k] for k in ("index", "relevance_score")}]
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

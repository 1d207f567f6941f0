"""A query with a thousand documents over real HTTP, in every protocol that ranks."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from doubles.serving import make_settings
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

NUM_DOCUMENTS = 1000
QUERY = "who came?"
DOCUMENTS = [f"{number} ann met bob." for number in range(NUM_DOCUMENTS)]
RANKS, TOPIC = "ranks", "topic"
MIN_ANSWERED = 3
PARTS = range(0, NUM_DOCUMENTS, 475)
"""The first documents of parts that are ranked alone."""


def publish(opened: Registry, backbone: Backbone) -> None:
    lora = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
    publish_tiny_task(opened, backbone, task=RANKS, method=lora, kind=HeadKind.RANKING, labels=())
    publish_tiny_task(opened, backbone, task=TOPIC, method=lora)


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(trunk_cache_bytes=0)


def ranked(client: httpx.Client, documents: list[str]) -> dict[int, float]:
    """Scores by the index of the document, which the server returns best first."""
    answer = client.post(
        f"/v1/tasks/{RANKS}/predict",
        json={
            "inputs": {"query": QUERY, "documents": documents},
            "parameters": {"function_to_apply": "none"},
        },
    )
    assert answer.status_code == 200, answer.text
    outputs = answer.json()["outputs"]
    scores = [item["score"] for item in outputs]
    assert scores == sorted(scores, reverse=True)
    return {item["index"]: item["score"] for item in outputs}


def classified(client: httpx.Client) -> Any:  # noqa: ANN401 - JSON
    answer = client.post(f"/v1/tasks/{TOPIC}/predict", json={"inputs": "ann met bob."})
    assert answer.status_code == 200, answer.text
    return {label["label"]: label["score"] for label in answer.json()["outputs"]}


def test_a_thousand_documents_are_ranked_while_short_requests_are_answered(address: str) -> None:
    with (
        httpx.Client(base_url=address, timeout=60) as client,
        httpx.Client(base_url=address, timeout=60) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        expected = classified(client)
        ranking = pool.submit(ranked, other, DOCUMENTS)
        num_answered = 0
        while not ranking.done():
            assert classified(client) == pytest.approx(expected, abs=1e-5)
            num_answered += 1
        parts = {begin: ranked(client, DOCUMENTS[begin : begin + 50]) for begin in PARTS}

    # At most two of the answered requests did not run next to the ranking.
    assert num_answered >= MIN_ANSWERED + 2
    together = ranking.result()
    assert together.keys() == {*range(NUM_DOCUMENTS)}
    alone = {begin + index: score for begin, it in parts.items() for index, score in it.items()}
    assert {index: together[index] for index in alone} == pytest.approx(alone, abs=1e-5)
    assert len({*alone.values()}) > 1


def test_every_protocol_that_ranks_takes_as_many_documents(address: str) -> None:
    tensors = [
        {"name": "query", "datatype": "BYTES", "shape": [1], "data": [QUERY]},
        {"name": "documents", "datatype": "BYTES", "shape": [NUM_DOCUMENTS], "data": DOCUMENTS},
    ]
    with httpx.Client(base_url=address, timeout=60) as client:
        native = ranked(client, DOCUMENTS)
        theirs = client.post(
            f"/tei/tasks/{RANKS}/rerank",
            json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True},
        ).json()
        column = client.post(
            f"/v2/models/{RANKS}/infer",
            json={"inputs": tensors, "parameters": {"function_to_apply": "none"}},
        ).json()
        information = client.get(f"/tei/tasks/{RANKS}/info").json()
        too_many = client.post(
            f"/tei/tasks/{RANKS}/rerank", json={"query": QUERY, "texts": [*DOCUMENTS, "one more"]}
        )

    assert {it["index"]: it["score"] for it in theirs} == pytest.approx(native, abs=1e-5)
    scores = next(it["data"] for it in column["outputs"] if it["name"] == "score")
    assert scores == pytest.approx([native[index] for index in range(NUM_DOCUMENTS)], abs=1e-5)
    assert information["max_client_batch_size"] == NUM_DOCUMENTS
    assert too_many.status_code == 422
    assert "at most 1000 documents, got 1001" in too_many.json()["error"]

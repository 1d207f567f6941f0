"""text-embeddings-inference and the hub's own client: they get the answers of the native routes."""

import asyncio
import base64
import struct
from typing import Any, cast

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from doubles.compat import DOCUMENTS, OTHER, QUERY, SCORE, TEXT, TOO_LONG, native, outputs, post
from doubles.tasks import MAX_LENGTH
from nunatak_model import Backbone


def vectors_of(answer: dict[str, Any]) -> list[list[float]]:
    return [item["embedding"] for item in answer["data"]]


def length(vector: list[float]) -> float:
    return sum(value * value for value in vector) ** 0.5


async def test_tei_predicts_what_the_task_says(client: httpx.AsyncClient) -> None:
    path = "/tei/tasks/topic/predict"
    single = await native(client, "topic", TEXT)
    pair = await native(client, "topic", {"text": TEXT, "text_pair": OTHER})
    logits = await native(client, "topic", TEXT, function_to_apply="none")
    first = await native(client, "topic/1", TEXT)

    assert await post(client, path, {"inputs": TEXT}) == single
    assert await post(client, path, {"inputs": [TEXT, OTHER]}) == pair
    batch = await post(client, path, {"inputs": [[TEXT], [TEXT, OTHER]]})
    scores = [[it["score"] for it in one] for one in batch]
    assert scores == [SCORE([it["score"] for it in one]) for one in (single, pair)]
    assert await post(client, path, {"inputs": TEXT, "raw_scores": True}) == logits
    assert await post(client, "/tei/tasks/topic/1/predict", {"inputs": TEXT}) == first
    assert first != single


async def test_tei_reranks_as_the_task_ranks(client: httpx.AsyncClient) -> None:
    expected = await native(client, "ranks", {"query": QUERY["query"], "documents": DOCUMENTS})

    ranked = await post(client, "/tei/tasks/ranks/rerank", QUERY)
    told = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "return_text": True})
    best = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "top_n": 2})
    raw = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "raw_scores": True})

    assert (ranked, best) == (expected, expected[:2])
    assert [it["text"] for it in told] == [DOCUMENTS[it["index"]] for it in ranked]
    assert [it["index"] for it in raw] == [it["index"] for it in ranked]
    assert raw != ranked


async def test_tei_cuts_long_texts_only_on_request(client: httpx.AsyncClient) -> None:
    cut = {"inputs": TOO_LONG, "truncate": True}

    refused = await post(client, "/tei/tasks/topic/predict", {"inputs": TOO_LONG}, 422)

    assert refused["error_type"] == "validation"
    assert f"at most {MAX_LENGTH} are read at once" in refused["error"]
    expected = await native(client, "topic", TOO_LONG, on_long="cut")
    assert await post(client, "/tei/tasks/topic/predict", cut) == expected
    await post(client, "/tei/backbone/embed", {"inputs": TOO_LONG}, 422)
    assert len(await post(client, "/tei/backbone/embed", cut)) == 1
    # Null means false, as in text-embeddings-inference.
    await post(client, "/tei/backbone/embed", {"inputs": TEXT, "truncate": None})
    absent = await post(
        client, "/tei/tasks/topic/predict", {"inputs": TOO_LONG, "truncate": None}, 422
    )
    assert absent == refused


async def test_tei_names_what_each_base_url_is(client: httpx.AsyncClient) -> None:
    kinds = {}
    for path in ("tasks/topic", "tasks/topic/1", "tasks/ranks", "backbone"):
        answer = await client.get(f"/tei/{path}/info")
        assert answer.status_code == 200
        assert (await client.get(f"/tei/{path}/health")).status_code == 200
        kinds[path] = (answer.json()["model_id"], *answer.json()["model_type"])
    assert kinds["tasks/topic"] == ("topic/2", "classifier")
    assert kinds["tasks/topic/1"] == ("topic/1", "classifier")
    assert kinds["tasks/ranks"] == ("ranks/1", "reranker")
    assert kinds["backbone"][1] == "embedding"
    assert (await client.get("/tei/tasks/names/info")).status_code == 422


def test_the_hubs_inference_client_embeds(address: str, backbone: Backbone) -> None:
    client = InferenceClient(model=f"{address}/tei/backbone")
    vectors = cast("Any", client.feature_extraction(TEXT, normalize=True))
    answer = httpx.post(f"{address}/tei/backbone/embed", json={"inputs": TEXT}).json()

    assert vectors.shape == (1, backbone.config.hidden_width)
    assert vectors.tolist() == [SCORE(answer[0])]


async def test_what_is_no_route_is_a_problem_of_ours(client: httpx.AsyncClient) -> None:
    answer = await client.get("/tei/tasks/topic/embed")

    assert answer.status_code == 404
    assert answer.json()["code"] == "route_not_found"


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


def client_of(address: str, path: str) -> InferenceClient:
    return InferenceClient(model=f"{address}/hf/{path}")


def test_the_hubs_client_classifies(address: str) -> None:
    expected = outputs(address, "topic", TEXT)
    first = outputs(address, "topic/1", TEXT, top_k=1, function_to_apply="none")

    found = client_of(address, "tasks/topic").text_classification(TEXT)
    pinned = client_of(address, "tasks/topic/1").text_classification(
        TEXT, top_k=1, function_to_apply="none"
    )

    assert [it.label for it in found] == [it["label"] for it in expected]
    assert [it.score for it in found] == SCORE([it["score"] for it in expected])
    assert [it.score for it in pinned] == SCORE([it["score"] for it in first])


def test_the_hubs_client_finds_entities(address: str) -> None:
    expected = outputs(address, "spans", TEXT, aggregation_strategy="simple")
    tokens = outputs(address, "spans", TEXT)

    client = client_of(address, "tasks/spans")
    found = client.token_classification(TEXT)
    single = client.token_classification(TEXT, aggregation_strategy=cast("Any", "none"))

    assert found
    assert [(it.entity_group, it.start, it.end) for it in found] == [
        (it["entity_group"], it["start"], it["end"]) for it in expected
    ]
    assert [it.entity for it in single] == [it["entity"] for it in tokens]


def test_the_hubs_client_answers_questions(address: str) -> None:
    question = {"question": OTHER, "context": TEXT}
    (best,) = outputs(address, "answers", question, max_answer_len=3)
    ranked = outputs(address, "answers", question, top_k=2)

    client = client_of(address, "tasks/answers")
    found = cast("Any", client.question_answering(OTHER, TEXT, max_answer_len=3))
    several = cast("Any", client.question_answering(OTHER, TEXT, top_k=2))

    assert (found.answer, found.start, found.end) == (best["answer"], best["start"], best["end"])
    assert found.score == SCORE(best["score"])
    assert [it.answer for it in several] == [it["answer"] for it in ranked]


def test_the_hubs_client_compares_sentences(address: str) -> None:
    body = {"inputs": [TEXT, *DOCUMENTS]}
    source, *others = httpx.post(f"{address}/tei/backbone/embed", json=body).json()
    expected = [sum(a * b for a, b in zip(source, one, strict=True)) for one in others]

    found = client_of(address, "backbone").sentence_similarity(TEXT, DOCUMENTS)

    assert found == SCORE(expected)


def test_the_hubs_client_raises_our_errors(address: str) -> None:
    with pytest.raises(HfHubHTTPError, match="no task 'nobody'"):
        client_of(address, "tasks/nobody").text_classification(TEXT)
    with pytest.raises(HfHubHTTPError, match="max_seq_len"):
        client_of(address, "tasks/answers").question_answering(OTHER, TEXT, max_seq_len=9)


async def test_a_list_of_inputs_gets_a_list_of_answers(client: httpx.AsyncClient) -> None:
    questions = [{"question": OTHER, "context": TEXT}, {"question": TEXT, "context": OTHER}]
    rows = await native(client, "topic", [TEXT, OTHER])
    pair = await native(client, "topic", {"text": TEXT, "text_pair": OTHER})
    answers = await native(client, "answers", questions)

    async def ask(task: str, inputs: object) -> Any:  # noqa: ANN401 - JSON
        return await post(client, f"/hf/tasks/{task}", {"inputs": inputs})

    assert await ask("topic", [TEXT, OTHER]) == rows
    assert await ask("topic", {"text": TEXT, "text_pair": OTHER}) == [pair]
    assert await ask("answers", questions) == [row[0] for row in answers]
    assert await ask("names", [TEXT, OTHER]) == await native(
        client, "names", [TEXT, OTHER], aggregation_strategy="simple"
    )

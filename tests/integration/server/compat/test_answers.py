"""Every protocol gives the answers of the native routes, also to the clients of others.

vLLM has no client of its own. Its bodies are those of its documents and of NeMo Guardrails'
`hf_classifier` (nemoguardrails/library/hf_classifier/backends.py); Jina's are those of its API
reference. Cohere's own client asks `/v1/rerank` and `/v2/rerank`.
"""

import asyncio
import base64
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import cohere
import httpx
import orjson
import pytest
from cohere.core.api_error import ApiError
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from doubles.access import add_key
from doubles.compat import (
    DOCUMENTS,
    OTHER,
    QUERY,
    SCORE,
    TEXT,
    TOO_LONG,
    native,
    outputs,
    post,
    tensor,
)
from doubles.serving import make_settings, running_client
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_model import Backbone
from nunatak_registry import ListedTask, Registry
from nunatak_server.access.keys import change_keys

Read = Callable[[Any], object]
"""Returns an answer in the native form."""
Row = tuple[str, dict[str, Any], str, object, dict[str, str], Read]
"""A path with a body; the task, inputs and parameters of the native route; and the reader."""
PAIR = {"text": TEXT, "text_pair": OTHER}
ASKED = {"question": OTHER, "context": TEXT}
RANKING = {"query": OTHER, "documents": DOCUMENTS}
RERANK: dict[str, Any] = {"model": "ranks", **RANKING}
LABELS = ("calm", "urgent")
LOGITS, CUT = {"function_to_apply": "none"}, {"on_long": "cut"}
SIMPLE = {"aggregation_strategy": "simple"}


def as_it_is(found: Any) -> object:  # noqa: ANN401 - JSON
    return found


def best_first(scores: dict[str, float]) -> list[dict[str, object]]:
    return [{"label": it, "score": scores[it]} for it in sorted(scores, key=lambda it: -scores[it])]


def ranked(scores: list[float]) -> list[dict[str, object]]:
    order = sorted(range(len(scores)), key=lambda it: -scores[it])
    return [{"index": it, "score": scores[it]} for it in order]


def of_hugging_face() -> Iterator[Row]:
    """Yield the requests of text-embeddings-inference and of Inference."""
    predict, first = (f"/tei/tasks/{it}/predict" for it in ("topic", "topic/1"))
    raw, cut = {"inputs": TEXT, "raw_scores": True}, {"inputs": TOO_LONG, "truncate": True}
    batch = {"inputs": [[TEXT], [TEXT, OTHER]]}
    yield predict, {"inputs": TEXT}, "topic", TEXT, {}, as_it_is
    # Null means false, as in text-embeddings-inference.
    yield predict, {"inputs": TEXT, "truncate": None}, "topic", TEXT, {}, as_it_is
    yield predict, {"inputs": [TEXT, OTHER]}, "topic", PAIR, {}, as_it_is
    yield predict, batch, "topic", [TEXT, PAIR], {}, as_it_is
    yield predict, raw, "topic", TEXT, LOGITS, as_it_is
    yield predict, cut, "topic", TOO_LONG, CUT, as_it_is
    yield first, {"inputs": TEXT}, "topic/1", TEXT, {}, as_it_is
    rerank, ranking = "/tei/tasks/ranks/rerank", {**RANKING, "query": QUERY["query"]}
    yield rerank, QUERY, "ranks", ranking, {}, as_it_is
    yield rerank, {**QUERY, "raw_scores": True}, "ranks", ranking, LOGITS, as_it_is
    several, questions = [TEXT, OTHER], [ASKED, {"question": TEXT, "context": OTHER}]
    yield "/hf/tasks/topic", {"inputs": several}, "topic", several, {}, as_it_is
    yield "/hf/tasks/topic", {"inputs": PAIR}, "topic", [PAIR], {}, as_it_is
    yield "/hf/tasks/spans", {"inputs": several}, "spans", several, SIMPLE, as_it_is
    yield (
        *("/hf/tasks/answers", {"inputs": questions}, "answers", questions, {}),
        lambda found: [[it] for it in found],
    )


def predicted(found: Any) -> object:  # noqa: ANN401 - JSON
    def plain(one: Any) -> object:  # noqa: ANN401 - JSON
        match one:
            case float():
                return best_first({"stars": one})
            case {"calm": _, "urgent": _}:
                return best_first(one)
            case _:
                return one

    return list(map(plain, found["predictions"]))


def of_kserve() -> Iterator[Row]:
    inputs = {"topic": [TEXT, OTHER], "stars": [TEXT], "spans": [TEXT], "answers": [ASKED]}
    for task, sent in (*inputs.items(), ("topic", [PAIR]), ("ranks", [RANKING])):
        yield f"/v1/models/{task}:predict", {"instances": sent}, task, sent, {}, predicted


def labelled(found: Any) -> object:  # noqa: ANN401 - JSON
    """Return the rows of `/classify`, which has the labels of a task in their own order."""
    labels = ("stars",) if found["model"].startswith("stars") else LABELS
    rows = [best_first(dict(zip(labels, it["probs"], strict=True))) for it in found["data"]]
    assert [it["label"] for it in found["data"]] == [it[0]["label"] for it in rows]
    assert [it["num_classes"] for it in found["data"]] == [len(labels)] * len(rows)
    return rows


def by_relevance(found: Any) -> object:  # noqa: ANN401 - JSON
    results: list[Any] = found["results"]
    return [{"index": it["index"], "score": it["relevance_score"]} for it in results]


def in_order(found: Any) -> object:  # noqa: ANN401 - JSON
    assert [it["index"] for it in found["data"]] == [*range(len(DOCUMENTS))]
    return ranked([it["score"] for it in found["data"]])


def of_vllm() -> Iterator[Row]:
    for task, inputs, more, own in (
        ("topic", [TEXT, OTHER], {}, {}),
        ("topic", [TEXT], {"use_activation": False}, LOGITS),
        ("topic", [TOO_LONG], {}, {}),
        ("topic", [TOO_LONG], {"truncate_prompt_tokens": -1}, CUT),
        ("topic/1", [TEXT], {}, {}),
        ("stars", [TEXT], {}, {}),
    ):
        yield "/classify", {"model": task, "input": inputs, **more}, task, inputs, own, labelled
    names = [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")]
    for first, second in (*names, ("data_1", "data_2")):
        for path, query in (("/score", OTHER), ("/v1/score", OTHER), ("/score", [OTHER] * 3)):
            body = {"model": "ranks", first: query, second: DOCUMENTS}
            yield path, body, "ranks", RANKING, {}, in_order


def of_rerank() -> Iterator[Row]:
    yield "/srun/v1/rerank", RERANK, "ranks", RANKING, {}, by_relevance
    as_objects = {**RERANK, "documents": [{"text": it} for it in DOCUMENTS], "top_n": 0}
    for path, sent in product(("/rerank", "/v1/rerank", "/v2/rerank"), (RERANK, as_objects)):
        yield path, sent, "ranks", RANKING, {}, by_relevance


def of_open_inference() -> Iterator[Row]:
    def columns(found: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        return {it["name"]: it["data"] for it in found["outputs"]}

    def classified(found: Any) -> object:  # noqa: ANN401 - JSON
        labels, scores = columns(found).values()
        num_rows, width = found["outputs"][0]["shape"]
        pairs = [{"label": it, "score": own} for it, own in zip(labels, scores, strict=True)]
        return [pairs[it * width : (it + 1) * width] for it in range(num_rows)]

    def answers(found: Any) -> object:  # noqa: ANN401 - JSON
        return [{name: data for name, (data,) in columns(found).items()}]

    def entities(found: Any) -> object:  # noqa: ANN401 - JSON
        return list(map(orjson.loads, columns(found)["entities"]))

    def in_documents_order(found: Any) -> object:  # noqa: ANN401 - JSON
        return ranked(columns(found)["score"])

    both = [tensor("text", TEXT, OTHER)]
    simple = {"inputs": both, "parameters": SIMPLE}
    question = [tensor("question", OTHER), tensor("context", TEXT)]
    ranking = [tensor("query", OTHER), tensor("documents", *DOCUMENTS)]
    pair = [tensor("text", TEXT), tensor("text_pair", OTHER)]
    for task, body, inputs, own, read in (
        ("topic", {"inputs": both}, [TEXT, OTHER], {}, classified),
        ("topic", {"inputs": pair}, [PAIR], {}, classified),
        ("topic/versions/1", {"inputs": [tensor("text", TEXT)]}, [TEXT], {}, classified),
        ("stars", {"inputs": both}, [TEXT, OTHER], {}, classified),
        ("answers", {"inputs": question}, ASKED, {}, answers),
        ("ranks", {"inputs": ranking}, RANKING, {}, in_documents_order),
        ("spans", simple, [TEXT, OTHER], SIMPLE, entities),
    ):
        reference = task.replace("versions/", "")
        yield f"/v2/models/{task}/infer", body, reference, inputs, own, read


def is_same(found: Any, expected: Any) -> bool:  # noqa: ANN401 - JSON
    """Return whether answers are equal, and numbers to the rounding of other batches."""
    match expected:
        case dict():
            return [*found] == [*expected] and all(is_same(found[it], expected[it]) for it in found)
        case list():
            return len(found) == len(expected) and all(map(is_same, found, expected))
        case float():
            return found == SCORE(expected, abs=1e-5)
        case _:
            return found == expected


ROWS = [*of_hugging_face(), *of_kserve(), *of_vllm(), *of_rerank(), *of_open_inference()]


@pytest.mark.parametrize(
    ("path", "body", "task", "inputs", "parameters", "read"),
    [pytest.param(*row, id=f"{row[0]}-{number}") for number, row in enumerate(ROWS)],
)
async def test_a_protocol_gives_the_answer_of_the_native_route(
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    task: str,
    inputs: object,
    parameters: dict[str, str],
    read: Read,
) -> None:
    expected = await native(client, task, inputs, **parameters)

    assert is_same(read(await post(client, path, body)), expected)


def vectors_of(answer: dict[str, Any]) -> list[list[float]]:
    return [item["embedding"] for item in answer["data"]]


def length(vector: list[float]) -> float:
    return sum(value * value for value in vector) ** 0.5


async def test_tei_shows_the_best_texts_on_request(client: httpx.AsyncClient) -> None:
    ranked = await post(client, "/tei/tasks/ranks/rerank", QUERY)
    told = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "return_text": True})
    best = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "top_n": 2})

    assert [it["text"] for it in told] == [DOCUMENTS[it["index"]] for it in ranked]
    assert best == ranked[:2]


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


async def test_embeddings_are_the_same_by_either_protocol(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    (card,) = (await client.get("/v1/models")).json()["data"]
    shown = await client.get(f"/v1/models/{card['id']}")
    body = {"input": [TEXT, OTHER], "model": card["id"], "user": "me"}

    theirs = await post(client, "/tei/backbone/embed", {"inputs": [TEXT, OTHER]})
    answer = await post(client, "/v1/embeddings", body)
    coded = await post(client, "/v1/embeddings", {**body, "encoding_format": "base64"})
    plain = await post(client, "/tei/backbone/embed", {"inputs": TEXT, "normalize": False})

    read = backbone.tokenizer.encode([TEXT, OTHER], max_length=backbone.config.max_tokens)
    count = sum(encoding.num_tokens for encoding in read)
    assert (card["id"], shown.json()) == (backbone.name, card)
    assert (answer["object"], answer["model"]) == ("list", backbone.name)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert [it["index"] for it in answer["data"]] == [0, 1]
    assert vectors_of(answer) == [SCORE(vector) for vector in theirs]
    assert [length(vector) for vector in theirs] == [SCORE(1.0)] * 2
    assert length(plain[0]) != SCORE(1.0)
    assert [value / length(plain[0]) for value in plain[0]] == SCORE(theirs[0], abs=1e-6)
    for item, vector in zip(coded["data"], theirs, strict=True):
        decoded = struct.unpack(f"<{len(vector)}f", base64.b64decode(item["embedding"]))
        assert decoded == SCORE(vector)


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


def client_of(address: str, path: str) -> Any:  # noqa: ANN401 - its classes name some parameters
    return InferenceClient(model=f"{address}/hf/{path}")


def test_the_hubs_client_gets_what_the_task_says(address: str) -> None:
    topic, first, spans, answers = (
        client_of(address, f"tasks/{it}") for it in ("topic", "topic/1", "spans", "answers")
    )
    raw, ranks, short = {"top_k": 1, **LOGITS}, {"top_k": 2}, {"max_answer_len": 3}
    for found, expected in (
        (topic.text_classification(TEXT), outputs(address, "topic", TEXT)),
        (first.text_classification(TEXT, **raw), outputs(address, "topic/1", TEXT, **raw)),
        (spans.token_classification(TEXT), outputs(address, "spans", TEXT, **SIMPLE)),
        (
            spans.token_classification(TEXT, aggregation_strategy="none"),
            outputs(address, "spans", TEXT),
        ),
        (
            answers.question_answering(OTHER, TEXT, **ranks),
            outputs(address, "answers", ASKED, **ranks),
        ),
        (
            [answers.question_answering(OTHER, TEXT, **short)],
            outputs(address, "answers", ASKED, **short),
        ),
    ):
        told = [{name: it for name, it in one.items() if it is not None} for one in found]
        assert told
        for own, other in zip(told, expected, strict=True):
            assert own.keys() <= other.keys() <= own.keys() | {"word", "index"}
            assert is_same(own, {it: other[it] for it in own})


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

    is_serving = False

    def tasks(self) -> list[ListedTask]:
        assert not self.is_serving, "a prediction reads no manifest of another task"
        return super().tasks()


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
            registry.is_serving = True
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

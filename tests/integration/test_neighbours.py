"""Neighbours' protocols over the real application: each says what the native routes say."""

import asyncio
import base64
import struct
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

import httpx
import pytest
from huggingface_hub import InferenceClient

from doubles.backbones import tiny_backbone
from doubles.serving import make_settings, running_client, running_server
from doubles.tasks import MAX_LENGTH, publish_tiny_task
from nunatak_model import Backbone, HeadKind, HeadOnly, Lora, Method, Pooling, TopK
from nunatak_registry import ProblemType, Registry

TASKS: dict[str, tuple[HeadKind, Method, tuple[str, ...], ProblemType | None]] = {
    "topic": (HeadKind.SEQUENCE_CLASSIFICATION, TopK(num_layers=1), ("calm", "urgent"), None),
    "stars": (
        HeadKind.SEQUENCE_CLASSIFICATION,
        HeadOnly(),
        ("stars",),
        ProblemType.REGRESSION,
    ),
    "names": (HeadKind.TOKEN_CLASSIFICATION, Lora(rank=2), ("O", "B-X"), None),
    "answers": (HeadKind.QUESTION_ANSWERING, TopK(num_layers=2), (), None),
    "ranks": (HeadKind.RANKING, Lora(rank=2, first_layer=2), (), None),
}
TEXT, OTHER = "ann met bob in oslo.", "where?"
TOO_LONG = "a " * 2 * MAX_LENGTH
DOCUMENTS = ["ann", "bob and cy", "nobody"]
QUERY = {"query": "who came?", "texts": DOCUMENTS}
SCORE = pytest.approx
Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(pooling=Pooling.MEAN)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        for name, (kind, method, labels, problem) in TASKS.items():
            publish_tiny_task(
                opened,
                backbone,
                task=name,
                method=method,
                labels=labels,
                kind=kind,
                problem_type=problem,
            )
        publish_tiny_task(opened, backbone, task="topic", labels=("calm", "urgent"), seed=1)
        yield opened


@pytest.fixture(scope="module")
def run(backbone: Backbone, registry: Registry) -> Callable[[Ask], None]:
    """Give a scenario a client of the running application."""

    def run_one(scenario: Ask) -> None:
        async def connected() -> None:
            settings = make_settings(max_inputs=8)
            async with running_client(backbone, registry, settings) as client:
                await scenario(client)

        asyncio.run(connected())

    return run_one


async def post(client: httpx.AsyncClient, path: str, body: object, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def native(client: httpx.AsyncClient, task: str, inputs: object, **parameters: object) -> Any:  # noqa: ANN401 - JSON
    body = {"inputs": inputs, "parameters": parameters}
    return (await post(client, f"/v1/tasks/{task}/predict", body))["outputs"]


def vectors_of(answer: dict[str, Any]) -> list[list[float]]:
    return [item["embedding"] for item in answer["data"]]


def length(vector: list[float]) -> float:
    return sum(value * value for value in vector) ** 0.5


# text-embeddings-inference


def test_tei_predicts_what_the_task_says(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
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

    run(scenario)


def test_tei_reranks_as_the_task_ranks(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        expected = await native(client, "ranks", {"query": QUERY["query"], "documents": DOCUMENTS})

        ranked = await post(client, "/tei/tasks/ranks/rerank", QUERY)
        told = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "return_text": True})
        raw = await post(client, "/tei/tasks/ranks/rerank", {**QUERY, "raw_scores": True})

        assert ranked == expected
        assert [it["text"] for it in told] == [DOCUMENTS[it["index"]] for it in ranked]
        assert [it["index"] for it in raw] == [it["index"] for it in ranked]
        assert raw != ranked

    run(scenario)


def test_tei_cuts_long_texts_only_if_it_is_told_to(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        cut = {"inputs": TOO_LONG, "truncate": True}

        refused = await post(client, "/tei/tasks/topic/predict", {"inputs": TOO_LONG}, 422)

        assert refused["error_type"] == "validation"
        assert f"more than {MAX_LENGTH} tokens" in refused["error"]
        expected = await native(client, "topic", TOO_LONG)
        assert await post(client, "/tei/tasks/topic/predict", cut) == expected
        await post(client, "/tei/backbone/embed", {"inputs": TOO_LONG}, 422)
        assert len(await post(client, "/tei/backbone/embed", cut)) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("tasks/none/predict", {"inputs": TEXT}, 404, "validation"),
        ("tasks/names/predict", {"inputs": TEXT}, 422, "validation"),
        ("tasks/ranks/predict", {"inputs": TEXT}, 422, "validation"),
        ("tasks/topic/rerank", QUERY, 422, "validation"),
        ("tasks/topic/predict", {"inputs": " "}, 422, "empty"),
        ("tasks/topic/predict", {"inputs": []}, 422, "validation"),
        ("tasks/topic/predict", {"inputs": [[TEXT, TEXT, TEXT]]}, 422, "validation"),
        ("tasks/topic/predict", {"inputs": [[TEXT]] * 9}, 422, "validation"),
        (
            "tasks/topic/predict",
            {"inputs": TEXT, "truncation_direction": "left"},
            422,
            "validation",
        ),
        ("tasks/topic/predict", {"inputs": TEXT, "parameters": {}}, 422, "validation"),
        ("tasks/topic/predict", {"inputs": [7, 8]}, 422, "validation"),
        ("backbone/embed", {"inputs": TEXT, "prompt_name": "query"}, 422, "validation"),
        ("backbone/embed", {"inputs": TEXT, "dimensions": 8}, 422, "validation"),
        ("backbone/embed", {"inputs": [TEXT] * 9}, 422, "validation"),
    ],
)
def test_tei_refuses_in_its_own_shape(
    run: Callable[[Ask], None], path: str, body: object, status: int, kind: str
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, f"/tei/{path}", body, status)

        assert refused.keys() == {"error", "error_type"}
        assert refused["error_type"] == kind
        assert TEXT not in refused["error"]

    run(scenario)


def test_tei_tells_what_each_base_url_is(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
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

    run(scenario)


def test_the_hubs_inference_client_embeds(backbone: Backbone, registry: Registry) -> None:
    with running_server(backbone, registry) as address:
        client = InferenceClient(model=f"{address}/tei/backbone")
        vectors = cast("Any", client.feature_extraction(TEXT, normalize=True))
        answer = httpx.post(f"{address}/tei/backbone/embed", json={"inputs": TEXT}).json()

    assert vectors.shape == (1, backbone.config.hidden_width)
    assert vectors.tolist() == [SCORE(answer[0])]


# Embeddings


def test_embeddings_are_the_same_by_either_protocol(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
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

    run(scenario)


def test_openai_counts_every_token_that_was_read(
    run: Callable[[Ask], None], backbone: Backbone
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await post(
            client, "/v1/embeddings", {"input": [TEXT, OTHER], "model": backbone.name, "user": "me"}
        )

        read = backbone.tokenizer.encode([TEXT, OTHER], max_length=backbone.config.max_tokens)
        count = sum(encoding.num_tokens for encoding in read)
        assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
        assert answer["model"] == backbone.name

    run(scenario)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "topic"}, 404, "model_not_found"),
        ({"input": ""}, 422, "empty_text"),
        ({"input": []}, 422, "invalid_request"),
        ({"input": [1, 2]}, 422, "invalid_request"),
        ({"input": TOO_LONG}, 422, "too_many_tokens"),
        ({"input": [TEXT] * 9}, 422, "too_many_inputs"),
        ({"dimensions": 8}, 422, "invalid_request"),
        ({"encoding_format": "int8"}, 422, "invalid_request"),
        ({"unheard": 1}, 422, "invalid_request"),
    ],
)
def test_openai_refuses_in_its_own_shape(
    run: Callable[[Ask], None], backbone: Backbone, change: dict[str, Any], status: int, code: str
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"input": TEXT, "model": backbone.name, **change}

        refused = await post(client, "/v1/embeddings", body, status)

        assert refused.keys() == {"error"}
        assert refused["error"].keys() == {"message", "type", "param", "code"}
        assert refused["error"]["type"] == "invalid_request_error"
        assert refused["error"]["code"] == code

    run(scenario)


def test_openai_lists_the_model_that_embeds(run: Callable[[Ask], None], backbone: Backbone) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()
        shown = await client.get(f"/v1/models/{backbone.name}")

        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == [backbone.name]
        assert shown.json() == listed["data"][0]
        assert (await client.get("/v1/models/gpt")).json()["error"]["code"] == "model_not_found"

    run(scenario)


def test_embeddings_and_tasks_meet_in_one_batch(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
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

    run(scenario)


# Open Inference Protocol


def tensor(name: str, *texts: str, **more: object) -> dict[str, object]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts), **more}


async def infer(
    client: httpx.AsyncClient, task: str, *tensors: object, **more: object
) -> dict[str, Any]:
    answer = await post(client, f"/v2/models/{task}/infer", {"inputs": tensors, **more})
    return {"whole": answer, **{it["name"]: it for it in answer["outputs"]}}


def test_open_inference_classifies_as_the_task_does(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        expected = await native(client, "topic", [TEXT, OTHER])

        found = await infer(client, "topic", tensor("text", TEXT, OTHER), id="seven")
        pinned = await infer(client, "topic/versions/1", tensor("text", TEXT))

        assert found["whole"]["id"] == "seven"
        assert (found["whole"]["model_name"], found["whole"]["model_version"]) == ("topic", "2")
        assert pinned["whole"]["model_version"] == "1"
        assert found["label"]["shape"] == found["score"]["shape"] == [2, 2]
        assert found["label"]["data"] == [it["label"] for row in expected for it in row]
        assert found["score"]["data"] == SCORE([it["score"] for row in expected for it in row])

    run(scenario)


def test_open_inference_answers_every_kind_of_head(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        question = {"question": OTHER, "context": TEXT}
        (answer,) = await native(client, "answers", question)
        ranked = await native(client, "ranks", {"query": OTHER, "documents": DOCUMENTS})
        spans = await native(client, "names", TEXT, aggregation_strategy="simple")

        found = await infer(client, "answers", tensor("question", OTHER), tensor("context", TEXT))
        order = await infer(
            client, "ranks", tensor("query", OTHER), tensor("documents", *DOCUMENTS)
        )
        named = await infer(
            client, "names", tensor("text", TEXT), parameters={"aggregation_strategy": "simple"}
        )
        stars = await infer(client, "stars", tensor("text", TEXT))

        assert {name: found[name]["data"] for name in answer} == {
            name: [value if isinstance(value, str) else SCORE(value)]
            for name, value in answer.items()
        }
        assert order["score"]["data"] == SCORE(
            [it["score"] for it in sorted(ranked, key=lambda it: it["index"])]
        )
        (text,) = named["entities"]["data"]
        found_spans = httpx.Response(200, text=text).json()
        assert [it["word"] for it in found_spans] == [it["word"] for it in spans]
        assert stars["score"]["shape"] == [1, 1]

    run(scenario)


def test_open_inference_describes_tasks_as_it_answers_them(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
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

    run(scenario)


def test_open_inference_gives_the_outputs_that_are_wanted(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        found = await infer(client, "topic", tensor("text", TEXT), outputs=[{"name": "label"}])

        assert [it["name"] for it in found["whole"]["outputs"]] == ["label"]

    run(scenario)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"inputs": []}, 422),
        ({"inputs": [tensor("unheard", TEXT)]}, 422),
        ({"inputs": [tensor("text", TEXT), tensor("text", OTHER)]}, 422),
        ({"inputs": [tensor("text", TEXT), tensor("text_pair", TEXT, OTHER)]}, 422),
        ({"inputs": [tensor("text", TEXT, shape=[2])]}, 422),
        ({"inputs": [tensor("text", TEXT, datatype="FP32")]}, 422),
        ({"inputs": [tensor("text", TEXT, parameters={"binary_data_size": 9})]}, 422),
        ({"inputs": [tensor("text", TEXT)], "parameters": {"binary_data_output": True}}, 422),
        ({"inputs": [tensor("text", TEXT)], "parameters": {"return_documents": True}}, 422),
        ({"inputs": [tensor("text", TEXT)], "parameters": {"top_k": 0}}, 422),
        ({"inputs": [tensor("text", TEXT)], "outputs": [{"name": "logits"}]}, 422),
        ({"inputs": [tensor("question", OTHER), tensor("context", TEXT)]}, 422),
        ({"inputs": [tensor("text", TEXT)], "timeout": 3}, 422),
    ],
)
def test_open_inference_refuses_in_one_line(
    run: Callable[[Ask], None], body: object, status: int
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, "/v2/models/topic/infer", body, status)

        assert refused.keys() == {"error"}
        assert TEXT not in refused["error"]

    run(scenario)


def test_what_is_no_route_is_a_problem_of_ours(run: Callable[[Ask], None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.get("/tei/tasks/topic/embed")

        assert answer.status_code == 404
        assert answer.json()["code"] == "route_not_found"

    run(scenario)

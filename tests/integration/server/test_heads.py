"""Every kind of head over HTTP: alone, together in one batch, and with inputs to refuse."""

from typing import Any

import httpx
import pytest

from doubles.backbones import tiny_backbone
from doubles.compat import post
from doubles.serving import make_settings, running_client
from doubles.tasks import logits_alone, publish_tiny_task
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, TextInput
from nunatak_registry import Registry

TOPIC, TAGS, STARS, NAMES, ANSWERS, RANKS = "topic", "tags", "stars", "names", "answers", "ranks"
METHODS: dict[str, Method] = {
    TOPIC: TopK(num_layers=1),
    TAGS: Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    STARS: HeadOnly(),
    NAMES: TopK(num_layers=2),
    ANSWERS: Bottleneck(size=4, first_layer=1),
    RANKS: Lora(rank=2, first_layer=2, alpha=16.0, targets=QUERY_AND_VALUE),
}
KINDS = {
    TOPIC: HeadKind.SEQUENCE_CLASSIFICATION,
    TAGS: HeadKind.SEQUENCE_CLASSIFICATION,
    STARS: HeadKind.SEQUENCE_CLASSIFICATION,
    NAMES: HeadKind.TOKEN_CLASSIFICATION,
    ANSWERS: HeadKind.QUESTION_ANSWERING,
    RANKS: HeadKind.RANKING,
}
PROBLEMS = {TAGS: ProblemType.MULTI_LABEL, STARS: ProblemType.REGRESSION}
LABELS = {TOPIC: ("calm", "urgent"), TAGS: ("a", "b", "c"), STARS: ("stars",), NAMES: ("O", "B-X")}
TEXT = "ann met bob in oslo."
LONG = "ann met bob in oslo, and cy came. " * 8
QUESTION = {"question": "who came?", "context": LONG}
QUERY = {"query": "who came?", "documents": ["ann", "bob and cy", "nobody"]}


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return tiny_backbone(family=request.param)


def publish(opened: Registry, backbone: Backbone) -> None:
    for name, kind in KINDS.items():
        publish_tiny_task(
            opened,
            backbone,
            task=name,
            method=METHODS[name],
            labels=LABELS.get(name, ()),
            kind=kind,
            problem_type=PROBLEMS.get(name),
        )


def logits_of(backbone: Backbone, name: str, inputs: list[TextInput]) -> list[list[float]]:
    num_labels = len(LABELS.get(name, ()))
    return logits_alone(
        backbone, inputs, method=METHODS[name], num_labels=num_labels, kind=KINDS[name]
    )


async def ask(client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    answer = await client.post(f"/v1/tasks/{name}/predict", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["head"] == KINDS[name]
    return answer.json()["outputs"]


async def test_a_fan_out_over_all_kinds_answers_what_each_can(client: httpx.AsyncClient) -> None:
    for inputs, able in (
        (TEXT, {TOPIC, TAGS, STARS, NAMES}),
        ({"text": TEXT, "text_pair": "where?"}, {TOPIC, TAGS, STARS}),
        (QUESTION, {ANSWERS}),
        (QUERY, {RANKS}),
        ([TEXT, QUESTION], set[str]()),
    ):
        answer = await client.post("/v1/predict", json={"inputs": inputs, "tasks": list(KINDS)})
        assert answer.status_code == 200
        results = {result["reference"]: result for result in answer.json()["results"]}
        assert {name for name, result in results.items() if "outputs" in result} == able
        refused = [result["error"] for result in results.values() if "error" in result]
        assert {(it["code"], it["status"]) for it in refused} <= {("wrong_input_kind", 422)}


async def test_a_ranking_orders_documents_by_the_logits_of_their_pairs(
    client: httpx.AsyncClient, backbone: Backbone
) -> None:
    parameters = {"function_to_apply": "none", "return_documents": True, "top_k": 2}
    ranked = await ask(client, RANKS, {"inputs": QUERY, "parameters": parameters})

    pairs: list[TextInput] = [("who came?", document) for document in QUERY["documents"]]
    logits = [row[0] for row in logits_of(backbone, RANKS, pairs)]
    order = sorted(range(3), key=lambda index: -logits[index])[:2]
    assert [item["index"] for item in ranked] == order
    assert [item["score"] for item in ranked] == pytest.approx(
        [logits[index] for index in order], abs=1e-4
    )
    assert [item["document"] for item in ranked] == [QUERY["documents"][i] for i in order]


async def test_a_long_text_is_labelled_to_its_end(client: httpx.AsyncClient) -> None:
    parameters: dict[str, Any] = {"ignore_labels": [], "aggregation_strategy": "word"}
    words = await ask(client, NAMES, {"inputs": LONG, "parameters": parameters})

    # A byte-level token may begin with the space before its word, or may be a space at the end.
    spelt = [LONG[item["start"] : item["end"]].strip() for item in words]
    assert [word for word in spelt if word] == [
        part
        for word in LONG.split()
        for part in ((word[:-1], word[-1]) if word[-1] in ",." else (word,))
    ]
    assert [item["index"] for item in words] == list(range(len(words)))


async def test_answers_are_parts_of_the_context(client: httpx.AsyncClient) -> None:
    plain = await ask(client, ANSWERS, {"inputs": QUESTION})
    parameters = {"top_k": 5, "max_answer_len": 3, "doc_stride": 4}
    many = await ask(client, ANSWERS, {"inputs": QUESTION, "parameters": parameters})

    assert len(plain) == 1
    assert len(many) == 5
    for item in many:
        assert item["answer"] == LONG[item["start"] : item["end"]]
        assert len(item["answer"].replace(" ", "")) <= 3


NO_INPUT = 'expected a text, or an object such as {"text": ..., "text_pair": ...}, got '


@pytest.mark.parametrize(
    ("inputs", "place", "message"),
    [
        ({"question": "who?"}, "question.context", ""),
        ({"query": "who?", "documents": []}, "query.documents", ""),
        ({"query": "who?", "documents": ["a", 1]}, "query.documents.1", ""),
        ([{"question": "who?", "context": "x", "text": "y"}], "list.0.question.text", ""),
        ([["a", "b"]], "list.0", NO_INPUT + "a list"),
        (["a", 3], "list.1", NO_INPUT + "a number"),
        (3, "", NO_INPUT + "a number"),
        (None, "", NO_INPUT + "nothing"),
    ],
)
async def test_errors_speak_of_the_kind_that_was_meant_or_say_what_an_input_is(
    client: httpx.AsyncClient, inputs: object, place: str, message: str
) -> None:
    refused = await post(client, f"/v1/tasks/{ANSWERS}/predict", {"inputs": inputs}, 422)

    (error,) = refused["errors"]
    assert error["location"] == f"body.inputs.{place}".rstrip(".")
    assert error["message"] == message or not message


async def test_queries_count_as_inputs_and_their_documents_together(
    backbone: Backbone, registry: Registry
) -> None:
    settings = make_settings(max_inputs=2, max_documents=4)
    too_many: list[tuple[object, str]] = [
        ([{**QUERY, "documents": ["ann"]}] * 3, "at most 2 inputs, got 3"),
        ({**QUERY, "documents": ["ann"] * 5}, "at most 4 documents, got 5"),
        ([QUERY, {**QUERY, "documents": ["ann", "bob"]}], "at most 4 documents, got 5"),
    ]
    async with running_client(backbone, registry, settings) as client:
        for inputs, message in too_many:
            refused = await post(client, f"/v1/tasks/{RANKS}/predict", {"inputs": inputs}, 422)
            assert refused["code"] == "too_many_inputs"
            assert message in refused["detail"]
        await ask(client, RANKS, {"inputs": [{**QUERY, "documents": ["a", "b"]}] * 2})

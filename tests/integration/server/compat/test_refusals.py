"""What the protocols of other servers refuse and how they fail, each in its own shape."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import Request, Response

from doubles.compat import DOCUMENTS, OTHER, QUERY, TEXT, TOO_LONG, portkey, post, tensor
from doubles.policies import make_policy, make_rule, when
from doubles.questions import ANGER, TEAM, UNKNOWN, URGENT, body, theirs
from doubles.serving import running_client, running_transport
from nunatak_contract.enums import VerdictAction
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.app import Application
from nunatak_server.compat.translation import TranslatedRoute
from nunatak_server.http.access import PUBLIC

JSON = {"content-type": "application/json"}
BACKBONE = "(backbone)"
"""Stands for the name of the backbone."""
PAIR = {"question": OTHER, "context": TEXT}
RANKING = {"model": "ranks", "query": OTHER, "documents": DOCUMENTS}
VECTOR = {"model": BACKBONE, "input": [{"type": "text", "text": TEXT}]}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
INFER, KSERVE = "/v2/models/topic/infer", "/v1/models/topic:predict"
HF_TOPIC = "/hf/tasks/topic"
WRONG, NONE = "invalid_request", "model_not_found"
Row = tuple[str, object, int, str]
OPENAI: list[Row] = [
    ("/v1/embeddings", {"model": "topic", "input": TEXT}, 404, NONE),
    ("/v1/embeddings", {"model": BACKBONE, "input": ""}, 422, "empty_text"),
    ("/v1/embeddings", {"model": BACKBONE, "input": []}, 422, WRONG),
    ("/v1/embeddings", {"model": BACKBONE, "input": [1, 2]}, 422, WRONG),
    ("/v1/embeddings", {"model": BACKBONE, "input": TOO_LONG}, 422, "too_many_tokens"),
    ("/v1/embeddings", {"model": BACKBONE, "input": [TEXT] * 9}, 422, "too_many_inputs"),
    ("/v1/embeddings", {"model": BACKBONE, "input": TEXT, "dimensions": 8}, 422, WRONG),
    ("/v1/embeddings", {"model": BACKBONE, "input": TEXT, "encoding_format": "int8"}, 422, WRONG),
    ("/v1/embeddings", {"model": BACKBONE, "input": TEXT, "unheard": 1}, 422, WRONG),
    ("/v1/moderations", {"model": "omni", "input": TEXT}, 404, "policy_not_found"),
    ("/v1/moderations", {"input": TEXT}, 422, WRONG),
    ("/v1/moderations", {"model": "omni", "input": IMAGE[0]}, 422, WRONG),
]
TEI: list[Row] = [
    ("/tei/tasks/none/predict", {"inputs": TEXT}, 404, "validation"),
    ("/tei/tasks/names/predict", {"inputs": TEXT}, 422, "validation"),
    ("/tei/tasks/ranks/predict", {"inputs": TEXT}, 422, "validation"),
    ("/tei/tasks/topic/rerank", QUERY, 422, "validation"),
    ("/tei/tasks/topic/predict", {"inputs": " "}, 422, "empty"),
    ("/tei/tasks/topic/predict", {"inputs": []}, 422, "validation"),
    ("/tei/tasks/topic/predict", {"inputs": [[TEXT, TEXT, TEXT]]}, 422, "validation"),
    ("/tei/tasks/topic/predict", {"inputs": [[TEXT]] * 9}, 422, "validation"),
    (
        "/tei/tasks/topic/predict",
        {"inputs": TEXT, "truncation_direction": "left"},
        422,
        "validation",
    ),
    ("/tei/tasks/topic/predict", {"inputs": TEXT, "parameters": {}}, 422, "validation"),
    ("/tei/tasks/topic/predict", {"inputs": [7, 8]}, 422, "validation"),
    ("/tei/backbone/embed", {"inputs": TEXT, "prompt_name": "query"}, 422, "validation"),
    ("/tei/backbone/embed", {"inputs": TEXT, "dimensions": 8}, 422, "validation"),
    ("/tei/backbone/embed", {"inputs": [TEXT] * 9}, 422, "validation"),
    ("/tei/backbone/embed", {"inputs": TOO_LONG}, 422, "validation"),
    ("/tei/tasks/topic/predict", {"inputs": TOO_LONG, "truncate": None}, 422, "validation"),
]
WRONG_QUESTIONS: dict[str, dict[str, object]] = {
    "unknown type": body({"q": {"type": "box", "instructions": "?"}}),
    "no type": body({"q": {"instructions": "?"}}),
    "256 options": body({"q": {**TEAM, "criteria": {str(it): None for it in range(256)}}}),
    "1 option": body({"q": {**TEAM, "criteria": {"a": None}}}),
    "empty option": body({"q": {**TEAM, "criteria": {"": None, "b": None}}}),
    "list of options": body({"q": {**TEAM, "criteria": ["a", "b"]}}),
    "1 level": body({"q": {**ANGER, "criteria": ["a"]}}),
    "11 levels": body({"q": {**ANGER, "criteria": list("abcdefghijk")}}),
    "object of levels": body({"q": {**ANGER, "criteria": {"0": "a", "1": "b"}}}),
    "null level": body({"q": {**ANGER, "criteria": ["a", None]}}),
    "other sides": body({"q": {**URGENT, "criteria": {"yes": "a"}}}),
    "nothing asked": body({"q": {"type": "noul"}}),
    "unknown field": body({"q": {**URGENT, "min": 1}}),
    "empty id": body({"": URGENT}),
    "no questions": body({}),
    "list of questions": body([URGENT]),
    "401 questions": body({str(it): URGENT for it in range(401)}),
    "no state": body(state=None),
    "empty state": body(state=" "),
    "number as state": body(state=3),
    "image": body(assets={"a": {"type": "image"}}),
    "too many options": body(
        {str(at): {**TEAM, "criteria": {str(it): None for it in range(251)}} for at in range(4)}
    ),
    "both ways": body({"q": {**TEAM, "options": [{"value": "a"}, {"value": "b"}]}}),
    "text as criteria": body({"q": {**TEAM, "criteria": "ab"}}),
    "criterion without text": body({"q": {**URGENT, "criteria": {"true": ""}}}),
    "long criterion": body({"q": {**URGENT, "criteria": {"true": "a" * 40_000}}}),
    "deep instructions": body({"q": {**URGENT, "instructions": eval("[" * 40 + "]" * 40)}}),  # noqa: S307 - a literal
    "long state": body(state="a" * 40_000),
    "NUL": body(state="a\0"),
    "unreadable state": body({"q": UNKNOWN}, state="\U000e0041 \U000e0042"),
    "unreadable option": body({"q": {**TEAM, "criteria": {"a": None, "\U000e0041": None}}}),
    "deep state": body(state=eval("[" * 40 + "]" * 40)),  # noqa: S307 - a literal
}


def router(model: str, text: str = TEXT, **options: object) -> dict[str, Any]:
    return {"model": model, "input": [{"text": text}], "options": options}


def classified(**fields: object) -> dict[str, Any]:
    return {"model": "topic", "input": TEXT, **fields}


def inferred(**fields: object) -> dict[str, Any]:
    return {"inputs": [tensor("text", TEXT)], **fields}


def has_vllms_shape(refused: Any, status: int, _: str) -> None:  # noqa: ANN401 - JSON
    assert refused["error"]["type"] == {404: "NotFoundError", 422: "BadRequestError"}[status]
    assert refused["error"]["code"] == status


def has_a_code(refused: Any, _: int, code: str) -> None:  # noqa: ANN401 - JSON
    assert refused["error"]["code"] == code
    assert refused["error"].get("type", "invalid_request_error") == "invalid_request_error"


def has_one_line(refused: Any, _: int, kind: str) -> None:  # noqa: ANN401 - JSON
    assert TEXT not in refused["error"]
    assert refused.get("error_type", "") == kind


VLLM: list[Row] = [
    ("/classify", classified(model="none"), 404, ""),
    ("/classify", classified(model="names"), 422, ""),
    ("/classify", classified(model="ranks"), 422, ""),
    ("/classify", classified(model="a b"), 422, ""),
    ("/classify", {"input": TEXT}, 422, ""),
    ("/classify", classified(input=[1, 2]), 422, ""),
    ("/classify", {"model": "topic", "messages": []}, 422, ""),
    ("/classify", classified(priority=1), 422, ""),
    ("/classify", classified(truncate_prompt_tokens=8), 422, ""),
    ("/classify", classified(inputs=TEXT), 422, ""),
    ("/classify", {"inputs": TEXT}, 422, ""),
    ("/classify", [], 422, ""),
    ("/classify", classified(input=[TEXT] * 9), 422, ""),
    ("/score", {"model": "topic", "text_1": TEXT, "text_2": TEXT}, 422, ""),
    ("/score", {"model": "ranks", "text_1": [TEXT, TEXT], "text_2": TEXT}, 422, ""),
    ("/score", {"model": "ranks", "queries": TEXT, "text_2": TEXT}, 422, ""),
    ("/score", [], 422, ""),
    ("/rerank", {**RANKING, "model": "topic"}, 422, ""),
    ("/rerank", {**RANKING, "documents": []}, 422, ""),
    ("/rerank", {**RANKING, "instruction": "be kind"}, 422, ""),
    ("/v1/rerank", {**RANKING, "rank_fields": ["text"]}, 422, ""),
    ("/v2/rerank", {**RANKING, "max_tokens_per_doc": 4096}, 422, ""),
]
ROUTER: list[Row] = [
    ("/srun/v1/classify", router("nobody"), 404, NONE),
    ("/srun/v1/classify", router("ranks"), 422, WRONG),
    ("/srun/v1/classify", router("stars"), 422, WRONG),
    ("/srun/v1/classify", router("answers"), 422, WRONG),
    ("/srun/v1/classify", router("topic", profile="fast"), 422, WRONG),
    ("/srun/v1/classify", router("topic", threshold=0.5), 422, WRONG),
    ("/srun/v1/classify", router("topic", window={"tokens": 9}), 422, WRONG),
    ("/srun/v1/classify", router("topic", return_tokens=True), 422, WRONG),
    ("/srun/v1/classify", router("names", overflow="reject"), 422, WRONG),
    ("/srun/v1/classify", {**router("topic"), "head": "other"}, 422, WRONG),
    ("/srun/v1/classify", {"input": TEXT}, 422, WRONG),
    ("/srun/v1/classify", router("topic", TOO_LONG, overflow="truncate", max_tokens=9), 422, WRONG),
    ("/srun/v1/rerank", {**RANKING, "model": "topic"}, 422, WRONG),
    ("/srun/v1/rerank", {**RANKING, "layer": 3}, 422, WRONG),
    ("/srun/v1/embeddings", {**VECTOR, "model": "topic"}, 404, NONE),
    ("/srun/v1/embeddings", {**VECTOR, "layer": 1}, 422, WRONG),
    ("/srun/v1/embeddings", {**VECTOR, "dimensions": 3}, 422, WRONG),
    ("/srun/v1/embeddings", {**VECTOR, "input_type": "query"}, 422, WRONG),
    ("/srun/v1/embeddings", {**VECTOR, "options": {"max_tokens": 9}}, 422, WRONG),
    ("/srun/v1/embeddings", {**VECTOR, "input": IMAGE}, 422, WRONG),
    ("/srun/v1/bundle", {"tasks": []}, 422, WRONG),
    ("/srun/v1/bundle", {"tasks": [{"id": "a"}]}, 422, WRONG),
    ("/srun/v1/bundle", {"tasks": [{"id": "a", "decisions": TEXT}]}, 422, WRONG),
]
ONE_LINE: list[Row] = [
    ("/hf/tasks/ranks", {"inputs": {"query": OTHER, "documents": DOCUMENTS}}, 422, ""),
    (HF_TOPIC, {"inputs": PAIR}, 422, ""),
    (HF_TOPIC, {"inputs": TEXT, "parameters": {"aggregation_strategy": "simple"}}, 422, ""),
    ("/hf/tasks/names", {"inputs": TEXT, "parameters": {"top_k": 2}}, 422, ""),
    ("/hf/tasks/names", {"inputs": TEXT, "parameters": {"return_documents": True}}, 422, ""),
    (HF_TOPIC, {"inputs": TEXT, "options": {"wait_for_model": True}}, 422, ""),
    (HF_TOPIC, {"inputs": ""}, 422, ""),
    (HF_TOPIC, {"inputs": [TEXT] * 9}, 422, ""),
    ("/hf/backbone", {"inputs": TEXT}, 422, ""),
    ("/hf/backbone", {"inputs": {"source_sentence": TEXT, "sentences": []}}, 422, ""),
    ("/hf/backbone", {"inputs": {"source_sentence": TEXT, "sentences": [TEXT] * 8}}, 422, ""),
    ("/v1/models/none:predict", {"instances": [TEXT]}, 404, ""),
    ("/v1/models/topic@none:predict", {"instances": [TEXT]}, 404, ""),
    (KSERVE, {"instances": []}, 422, ""),
    (KSERVE, {"instances": TEXT}, 422, ""),
    (KSERVE, {"instances": [[1.0, 2.0]]}, 422, ""),
    (KSERVE, {"inputs": [TEXT]}, 422, ""),
    (KSERVE, {"instances": [TEXT], "signature_name": "x"}, 422, ""),
    (KSERVE, {"instances": [PAIR]}, 422, ""),
    (KSERVE, {"instances": [TEXT] * 9}, 422, ""),
    (INFER, {"inputs": []}, 422, ""),
    (INFER, {"inputs": [tensor("unheard", TEXT)]}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT)] * 2}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT), tensor("text_pair", TEXT, OTHER)]}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT, shape=[2])]}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT, datatype="FP32")]}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT, parameters={"binary_data_size": 9})]}, 422, ""),
    (INFER, {"inputs": [tensor("text", TEXT, parameters={"binary_data": True})]}, 422, ""),
    (INFER, inferred(parameters={"binary_data_output": "yes"}), 422, ""),
    (INFER, inferred(parameters={"binary_data": True}), 422, ""),
    (INFER, inferred(parameters={"return_documents": True}), 422, ""),
    (INFER, inferred(parameters={"top_k": 0}), 422, ""),
    (INFER, inferred(outputs=[{"name": "logits"}]), 422, ""),
    (INFER, inferred(outputs=[{"name": "label"}] * 2), 422, ""),
    (INFER, {"inputs": [tensor("question", OTHER), tensor("context", TEXT)]}, 422, ""),
    (INFER, inferred(timeout=3), 422, ""),
]  # fmt: skip
SHAPES: list[tuple[Callable[[Any, int, str], None], list[Row]]] = [
    (has_vllms_shape, VLLM),
    (has_a_code, ROUTER + OPENAI),
    (has_one_line, TEI + ONE_LINE),
]


@pytest.mark.parametrize(
    ("check", "path", "body", "status", "told"),
    [
        pytest.param(check, *row, id=f"{row[0]}-{number}")
        for check, rows in SHAPES
        for number, row in enumerate(rows)
    ],
)
async def test_a_wrong_request_is_refused_in_the_shape_of_its_protocol(
    client: httpx.AsyncClient,
    backbone: Backbone,
    check: Callable[[Any, int, str], None],
    path: str,
    body: object,
    status: int,
    told: str,
) -> None:
    sent = json.loads(json.dumps(body).replace(BACKBONE, backbone.name))

    refused = await post(client, path, sent, status)

    assert refused.keys() - {"error_type"} == {"error"}
    assert TEXT not in str(refused)
    check(refused, status, told)


@pytest.mark.parametrize("case", WRONG_QUESTIONS)
async def test_wrong_input_has_the_error_of_system_one(
    asking: httpx.AsyncClient, case: str
) -> None:
    refused = await post(asking, "/v1/systemone", WRONG_QUESTIONS[case], 422)
    for it in refused["detail"]:
        assert it["loc"][0] == "body"
        assert it["msg"]
        assert it["type"]


@pytest.mark.parametrize("state", ["", " ", "a\0", "a" * 40_000])
async def test_a_text_that_cannot_be_read_is_refused_without_a_known_question(
    bound: httpx.AsyncClient, state: str
) -> None:
    await post(bound, "/v1/systemone", body({"x": UNKNOWN}, state=state), 422)
    sent = {"model": "nunatak", "input": state, "questions": [theirs(UNKNOWN)]}
    await post(bound, "/v1/decisions", sent, 422)


async def test_an_unreadable_question_fails_alone_and_by_its_name(
    asking: httpx.AsyncClient,
) -> None:
    asked = [theirs(URGENT, "u"), {**theirs(UNKNOWN, "empty"), "instructions": ""}, theirs(UNKNOWN)]
    sent = {"model": "nunatak", "input": TEXT, "questions": asked}
    known, empty, other = (await post(asking, "/v1/decisions", sent))["answers"]
    assert [it["type"] for it in (known, empty, other)] == ["predicate", "refusal", "predicate"]
    assert empty["x_reason"]["code"] == "question_unreadable"
    assert "question 2 of the request ('empty')" in empty["x_reason"]["message"]


QUESTION_IMAGE = {"type": "input_image", "image_url": "https://nowhere/"}


@pytest.mark.parametrize(
    "change",
    [
        {"input": [{"role": "user", "content": [QUESTION_IMAGE]}]},
        {"input": []},
        {"input": " "},
        {"input": [{"type": "function_call", "name": "f", "arguments": "", "call_id": "1"}]},
        {"questions": []},
        {"questions": [theirs(URGENT, "a"), theirs(TEAM, "a")]},
        {"questions": [{**theirs(URGENT), "name": ""}]},
        {"questions": [{"type": "predicate"}]},
        {"questions": [{**theirs(URGENT), "instructions": [QUESTION_IMAGE]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"questions": [{**theirs(TEAM), "choices": {"a": "b"}}]},
        {"questions": [{**theirs(URGENT), "levels": [{"label": "a"}, {"label": "b"}]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": 1}, {"value": "b"}]}]},
        {"questions": [{**theirs(TEAM), "choices": None}]},
        {"questions": [{**theirs(TEAM), "criteria": {"a": None, "b": None}}]},
        {"questions": [theirs(URGENT)] * 401},
        {"questions": {"u": theirs(URGENT)}},
        {"input": {"a": 1}},
        {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]},
        {"input": "a\0"},
        {"input": "a" * 40_000},
        {"unheard": 1},
    ],
)
async def test_wrong_input_has_the_error_of_openai(
    bound: httpx.AsyncClient, change: dict[str, object]
) -> None:
    sent = {"model": "nunatak", "input": TEXT, "questions": [theirs(URGENT)], **change}
    refused = await post(bound, "/v1/decisions", sent, 422)
    assert refused["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model": "nunatak", "questions": NaN}',
        b'{"model": "a", "model": "b", "questions": {}}',
        b"{",
        b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["NaN", "a field twice", "no JSON", "too deep"],
)
async def test_what_is_no_json_has_the_error_of_its_protocol(
    bound: httpx.AsyncClient, sent: bytes
) -> None:
    theirs, openai = [
        await bound.post(path, content=sent, headers=JSON)
        for path in ("/v1/systemone", "/v1/decisions")
    ]
    assert (theirs.status_code, theirs.json()["detail"][0]["loc"]) == (422, ["body"])
    assert (openai.status_code, openai.json()["error"]["code"]) == (400, "invalid_json")


WORDS = "swordfish"


class Panic(BaseException):
    """A failure of a native library, as PyO3 raises it."""


FAILURES = [ValueError(WORDS), Panic(WORDS), asyncio.CancelledError(WORDS), RecursionError()]


async def answer_of(
    backbone: Backbone, registry: Registry, protocol: str, error: BaseException
) -> httpx.Response:
    async def fail(_: Request) -> Response:
        raise error

    async with running_transport(backbone, registry) as transport:
        app = transport.app
        assert isinstance(app, Application)
        route = TranslatedRoute("/fail", fail, dependencies=[PUBLIC], tags=[protocol])
        app.router.routes.append(route)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/fail")


@pytest.mark.parametrize("error", FAILURES, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("protocol", ["Portkey", "LiteLLM"])
async def test_every_exception_in_a_guards_route_is_the_verdict_that_protects(
    backbone: Backbone, registry: Registry, protocol: str, error: BaseException
) -> None:
    answer = await answer_of(backbone, registry, protocol, error)

    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    assert (found.get("verdict", True), found.get("action")) in {(False, None), (True, "BLOCKED")}
    assert WORDS not in answer.text


@pytest.mark.parametrize(
    "protocol", ["OpenAI", "text-embeddings-inference", "vLLM, Jina and Cohere"]
)
async def test_an_exception_has_the_shape_of_the_other_server(
    backbone: Backbone, registry: Registry, protocol: str
) -> None:
    answer = await answer_of(backbone, registry, protocol, ValueError(WORDS))

    assert (answer.status_code, "error" in answer.json()) == (500, True)
    assert WORDS not in answer.text


async def test_an_exception_is_logged_once_with_its_origin(
    backbone: Backbone, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "nunatak_server")

    answer = await answer_of(backbone, registry, "Portkey", ValueError(WORDS))

    (record,) = caplog.records
    request_id = answer.headers["x-request-id"]
    assert record.getMessage() == f"request {request_id} failed (ValueError)"
    assert record.exc_info is not None


async def test_a_call_of_any_depth_gets_a_verdict(backbone: Backbone, registry: Registry) -> None:
    rule = make_rule(when("people", "X"), action=VerdictAction.MASK)
    registry.policies.put(make_policy(rule, name="mask"))
    content = portkey(TEXT)

    def body(depth: int) -> str:
        deep = "[" * depth + "]" * depth
        text = httpx.Request("POST", "http://test", json=content).content.decode()
        return text.replace('"messages":', f'"metadata":{deep},"messages":', 1)

    async with running_client(backbone, registry) as client:
        found = [
            await client.post("/v1/verdicts/mask/portkey", content=body(it), headers=JSON)
            for it in (1, 100, *range(236, 262), 2000)
        ]

    answers = [it.json() for it in found]
    assert {it.status_code for it in found} == {200}
    assert answers[0]["verdict"] is True
    assert answers[-1]["verdict"] is False
    assert all(it["verdict"] is False or "transformedData" in it for it in answers)

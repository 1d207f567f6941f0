"""vLLM's pooling routes, with the rerank routes of Jina and Cohere. A task is a model.

`/classify` gives the probabilities of a sequence classification, `/score` scores pairs of texts
with a ranking task, and `/rerank` orders documents. The fields and shapes are vLLM's of November
2026 (vllm/frontend/entrypoints/pooling).

`/classify` also answers vLLM semantic-router's older request `{"inputs": text}`. This request names
no task, so it asks the one task of the key.

Below the base URL of a policy, `/classify` answers with the policy's action as the label.
"""

import time
from typing import Annotated, Any, Literal, cast

from fastapi import Request, Response
from pydantic import Discriminator, Field, Tag

from nunatak_contract.enums import AggregationStrategy, FunctionToApply, HeadKind, OnLong
from nunatak_contract.requests import Input, Message, Parameters, Query, Some, Text, field_names
from nunatak_server.compat.openai import Usage
from nunatak_server.compat.translation import (
    ModelName,
    Texts,
    router_of,
    span_of,
    texts_of,
    usage_of,
)
from nunatak_server.errors import DeadlineExceededError, invalid_request
from nunatak_server.http.access import caller_of, request_id_of
from nunatak_server.http.endpoints import Routed, ask_task, runtime_of
from nunatak_server.http.replies import reply, timing_headers
from nunatak_server.outputs.entities import Entity
from nunatak_server.outputs.outputs import DocumentScore, LabelScore
from nunatak_server.predict.types import Handling, TaskPrediction
from nunatak_server.scheduler.turns import within


class PoolingRequest(Message):
    """The fields of every pooling request that have a meaning here."""

    model: ModelName
    user: str | None = Field(None, description="no effect, as in vLLM")
    use_activation: bool | None = Field(None, description="false = logits")
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="-1 = cut longer texts; null = the task version's own treatment"
    )

    @property
    def options(self) -> Parameters:
        function = FunctionToApply.NONE if self.use_activation is False else None
        return Parameters(
            function_to_apply=function,
            on_long=None if self.truncate_prompt_tokens is None else OnLong.CUT,
        )


class ClassifyRequest(PoolingRequest):
    """Texts to classify."""

    input: Text | Texts
    add_special_tokens: Literal[True] = True


class UnnamedRequest(Message):
    """A text for the one task of the key, as vLLM semantic-router's `http_classify` sends it."""

    inputs: Text


class GuardRequest(Message):
    """A text to judge, as NeMo Guardrails' `hf_classifier` sends it."""

    model: str = Field(description="no effect, because the address names the policy")
    input: Text


class ScoreTexts(PoolingRequest):
    """Pairs of texts to score: one text with each of the others, or one by one."""

    text_1: Text | Texts
    text_2: Text | Texts


class ScoreData(PoolingRequest):
    """Pairs of texts to score, under vLLM's second names."""

    data_1: Text | Texts
    data_2: Text | Texts


class ScoreDocuments(PoolingRequest):
    """Queries with documents to score."""

    queries: Text | Texts
    documents: Text | Texts


class ScoreItems(PoolingRequest):
    """Queries with items to score."""

    queries: Text | Texts
    items: Text | Texts


class Document(Message):
    """A document, as Jina's and Cohere's older clients send it."""

    text: Text


class RerankRequest(PoolingRequest):
    """A query, and the documents to order."""

    query: Text
    documents: Some[Text | Document]
    top_n: Annotated[int, Field(ge=0)] | None = Field(None, description="null and 0 = all")
    return_documents: bool = True
    max_tokens_per_doc: None = Field(None, description="null, as LangChain sends")


class ClassifyItem(Message):
    """The scores of one text, in the order of the task's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoreItem(Message):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class Ranked(Message):
    """A document by its index in the request."""

    index: int
    relevance_score: float
    document: Document | None = None


class PoolingResponse(Message):
    """The fields of every answer."""

    id: str
    model: str
    usage: Usage


class ClassifyResponse(PoolingResponse):
    """The scores of each text."""

    object: Literal["list"]
    created: int
    data: list[ClassifyItem]


class GuardResponse(Message):
    """The action of the policy as a label with the probability 1."""

    model: str
    data: list[dict[str, Any]]


class ScoreResponse(PoolingResponse):
    """The score of each pair."""

    object: Literal["list"]
    created: int
    data: list[ScoreItem]


class RerankResponse(PoolingResponse):
    """The documents, best first."""

    results: list[Ranked]


class UnnamedItem(Message):
    """A label with its score; a found span also has its place and its text."""

    label: str
    score: float
    start: int | None = None
    end: int | None = None
    text: str | None = None


ClassifyBody = Annotated[
    Annotated[ClassifyRequest, Tag("input")] | Annotated[UnnamedRequest, Tag("inputs")],
    Discriminator(lambda value: "inputs" if "inputs" in field_names(value) else "input"),
]
ScoreBody = Annotated[
    Annotated[ScoreTexts, Tag("text_1")]
    | Annotated[ScoreData, Tag("data_1")]
    | Annotated[ScoreDocuments, Tag("documents")]
    | Annotated[ScoreItems, Tag("items")],
    Discriminator(
        lambda value: min(field_names(value) & {"data_1", "documents", "items"}, default="text_1")
    ),
]

router = router_of("vLLM, Jina and Cohere")


@router.ask(
    "/classify", answer=ClassifyResponse | list[UnnamedItem], response_model_exclude_none=True
)
async def classify(request: Request, handling: Routed, body: ClassifyBody) -> Response:
    """Classify texts. The request `{"inputs": text}` asks the one task of the key."""
    if isinstance(body, UnnamedRequest):
        return await _answer_unnamed(request, body.inputs, handling)
    result, headers = await ask_task(
        request, handling, body.model, texts_of(body.input), body.options
    )
    if result.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        raise invalid_request(
            f"this route is for sequence classification, and {result.task} is a task for "
            f"{result.head.replace('_', ' ')}; ask it at /v1/tasks/{result.task}/predict"
        )
    rows = cast("list[list[LabelScore]]", result.outputs)
    data = [_classified(index, row, result.labels) for index, row in enumerate(rows)]
    return reply(_listed(request, "classify", result, data), headers=headers)


@router.ask("/v1/verdicts/{policy}/classify", answer=GuardResponse)
async def classify_by_policy(
    request: Request, handling: Routed, policy: str, body: GuardRequest
) -> Response:
    """Judge a text; the label is the action of the policy."""
    judgement = await runtime_of(request).judge.judge(policy, (body.input,), handling)
    data = [{"label": judgement.action, "probs": [1.0]}]
    fields = {"model": judgement.published.reference, "data": data}
    return reply(fields, headers=timing_headers(judgement.timings))


@router.ask("/score", "/v1/score", answer=ScoreResponse)
async def score(request: Request, handling: Routed, body: ScoreBody) -> Response:
    """Score pairs of texts with a ranking task."""
    # The fields of its own that each form of the request has.
    first, second = (it for name, it in body if name not in PoolingRequest.model_fields)
    queries = _queries(first, second)
    result, headers = await ask_task(request, handling, body.model, queries, body.options)
    ranked = cast("list[list[DocumentScore]]", result.outputs)
    scores = [it["score"] for one in ranked for it in sorted(one, key=lambda it: it["index"])]
    data = [{"index": index, "object": "score", "score": it} for index, it in enumerate(scores)]
    return reply(_listed(request, "score", result, data), headers=headers)


@router.ask(
    "/rerank", "/v1/rerank", "/v2/rerank", answer=RerankResponse, response_model_exclude_none=True
)
async def rerank(request: Request, handling: Routed, body: RerankRequest) -> Response:
    """Order documents for a query, best first."""
    documents = tuple(it if isinstance(it, str) else it.text for it in body.documents)
    query = Query(query=body.query, documents=documents)
    result, headers = await ask_task(request, handling, body.model, (query,), body.options)
    (ranked,) = cast("list[list[DocumentScore]]", result.outputs)
    results = [{"index": it["index"], "relevance_score": it["score"]} for it in ranked]
    if body.return_documents:
        texts = [{"document": {"text": documents[it["index"]]}} for it in ranked]
        results = [{**it, **text} for it, text in zip(results, texts, strict=True)]
    shown = results[: body.top_n or None]
    return reply({**_fields(request, "rerank", result), "results": shown}, headers=headers)


async def _answer_unnamed(request: Request, text: str, handling: Handling) -> Response:
    caller = caller_of(request.scope)
    look_up = runtime_of(request).facts.names(caller.name, tasks=caller.tasks)
    tasks = await within(handling.deadline_s, look_up, late=DeadlineExceededError)
    if len(tasks) != 1:
        raise invalid_request(
            f"the request names no task, and this key has {len(tasks)} tasks; use a key "
            "for one task, or send model and input"
        )
    (task,), options = tasks, Parameters(aggregation_strategy=AggregationStrategy.SIMPLE)
    result, headers = await ask_task(request, handling, task, (text,), options)
    (found,) = result.outputs
    if result.head is HeadKind.TOKEN_CLASSIFICATION:
        entities = cast("list[Entity]", found)
        spans = [{**span_of(it, text), "score": it["score"]} for it in entities]
        return reply(spans, headers=headers)
    return reply(found, headers=headers)


def _queries(first: str | list[str], second: str | list[str]) -> tuple[Input, ...]:
    queries, documents = texts_of(first), texts_of(second)
    if len(queries) == 1:
        return (Query(query=queries[0], documents=documents),)
    if len(queries) != len(documents):
        raise invalid_request(
            f"the first side must have one text, or as many as the second side; got "
            f"{len(queries)} and {len(documents)} texts"
        )
    return tuple(
        Query(query=query, documents=(document,))
        for query, document in zip(queries, documents, strict=True)
    )


def _listed(
    request: Request, kind: str, result: TaskPrediction, data: list[dict[str, Any]]
) -> dict[str, Any]:
    listed = {"object": "list", "created": int(time.time()), "data": data}
    return {**_fields(request, kind, result), **listed}


def _fields(request: Request, kind: str, result: TaskPrediction) -> dict[str, Any]:
    return {
        "id": f"{kind}-{request_id_of(request.scope)}",
        "model": result.reference,
        "usage": usage_of(sum(extent.num_tokens for extent in result.extents)),
    }


def _classified(index: int, row: list[LabelScore], labels: tuple[str, ...]) -> dict[str, Any]:
    scores = {it["label"]: it["score"] for it in row}
    probs = [scores[label] for label in labels]
    return {"index": index, "label": row[0]["label"], "probs": probs, "num_classes": len(labels)}

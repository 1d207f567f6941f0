"""The runtime contract of vLLM semantic-router: `classify`, `rerank` and `embeddings`.

The router attaches to the base URL `/srun`. A task is a model with one head of the same name, and
the backbone is a model for embeddings. The contract is
src/model-runtime/vllm_srun/api/openapi.yaml 2.3.0 of vllm-project/semantic-router. The surface
`decisions` is not offered, and no card names it: its questions come with the request, and tasks
answer the questions that they were trained for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from fastapi import Request, Response

from nunatak_contract.enums import AggregationStrategy, FunctionToApply, HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input, Parameters, Query
from nunatak_contract.wire import COMPUTE_HEADER, QUEUE_HEADER, TOKENIZE_HEADER
from nunatak_server.compat.runtime_contract import (
    API_VERSION,
    MAX_BUNDLE_TASKS,
    OVERFLOWS,
    BundleRequest,
    BundleTask,
    ClassifyRequest,
    EmbeddingsRequest,
    Options,
    RerankRequest,
    card_of,
    classify_kind,
    embedding_card,
    is_served,
)
from nunatak_server.compat.translation import (
    as_router,
    base64_of,
    embed_texts,
    find_task,
    router_of,
    span_of,
    usage_of,
)
from nunatak_server.errors import DeadlineExceededError, invalid_request
from nunatak_server.http.access import request_id_of
from nunatak_server.http.endpoints import Routed, Unrouted, ask_task, catalog_of, runtime_of
from nunatak_server.http.problems import problem_of
from nunatak_server.http.replies import TASK_VERSION_HEADER, inputs_of, reply
from nunatak_server.outputs.entities import EntityGroup
from nunatak_server.outputs.outputs import DocumentScore, LabelScore, apply_function
from nunatak_server.predict.types import Embeddings, Handling, TaskPrediction
from nunatak_server.scheduler.turns import within

Answer = tuple[dict[str, Any], dict[str, str]]
"""The fields of an answer, and its headers."""
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
ITEM_ERRORS: Final = {
    "too_many_tokens": "max_length_exceeded",
    "text_too_long": "max_length_exceeded",
    "empty_text": "invalid_input",
    "invalid_text": "invalid_input",
    "deadline_exceeded": "deadline_exceeded",
    "deadline_too_short": "deadline_exceeded",
}
"""The errors of one input. Every other error fails the request."""
LATE: Final = frozenset({"deadline_exceeded", "deadline_too_short"})
"""The errors of all inputs together."""

router = router_of("vLLM semantic-router", prefix="/srun")


@router.ask("/v1/classify", answer=dict[str, Any])
async def classify(request: Request, handling: Routed, body: ClassifyRequest) -> Response:
    """Run the head of a task; a failed input carries its own error."""
    return await _timed(_classify(request, body, handling))


@router.ask("/v1/rerank", answer=dict[str, Any])
async def rerank(request: Request, handling: Routed, body: RerankRequest) -> Response:
    """Order documents for a query, best first."""
    return await _timed(_rerank(request, body, handling))


@router.ask("/v1/embeddings", answer=dict[str, Any])
async def embeddings(request: Request, handling: Unrouted, body: EmbeddingsRequest) -> Response:
    """Embed texts with the backbone; a failed text carries its own error."""
    return await _timed(embed(request, body, handling))


@router.ask("/v1/bundle", answer=dict[str, Any])
async def bundle(request: Request, handling: Routed, body: BundleRequest) -> Response:
    """Answer several requests; each has the status that it would have alone."""
    return await _timed(_bundle(request, body, with_deadline(handling, body.options.deadline_ms)))


async def _bundle(request: Request, body: BundleRequest, handling: Handling) -> Answer:
    for task in body.tasks:
        if sum(it is not None for it in (task.classify, task.rerank, task.embeddings)) != 1:
            raise invalid_request(
                "each task of a bundle must have one of classify, rerank and embeddings"
            )
    results = await asyncio.gather(*(_bundled(request, task, handling) for task in body.tasks))
    return {"results": results}, {}


@router.read("/v1/models", answer=dict[str, Any])
async def models(request: Request) -> Response:
    """Describe the backbones, and the caller's tasks that the contract can ask."""
    runtime = runtime_of(request)
    cards = [card_of(it, runtime) for it in await _served(request)]
    cards += [embedding_card(it, runtime) for it in runtime.backbones]
    most_bytes = runtime.settings.max_body_bytes
    limits = {"max_bundle_tasks": MAX_BUNDLE_TASKS, "max_request_bytes": most_bytes}
    listed = {"object": "list", "api_version": API_VERSION, "data": cards, "limits": limits}
    return reply(listed)


@router.read("/health", answer=dict[str, Any])
async def health(request: Request) -> Response:
    """Name the backbones and the caller's tasks while the server accepts requests."""
    runtime_of(request).readiness.check_ready()
    backbones = runtime_of(request).backbones
    names = [*(it.name for it in backbones), *(it.task for it in await _served(request))]
    served = {it: {"status": "ready"} for it in names}
    return reply({"api_version": API_VERSION, "status": "ready", "models": served})


@router.show("/health/live", answer=dict[str, Any])
async def live() -> Response:
    """Answer 200 while the event loop runs."""
    return reply({"api_version": API_VERSION, "status": "alive"})


async def _bundled(request: Request, task: BundleTask, handling: Handling) -> dict[str, Any]:
    try:
        if task.classify is not None:
            surface, (fields, _) = "classify", await _classify(request, task.classify, handling)
        elif task.embeddings is not None:
            surface, (fields, _) = "embeddings", await embed(request, task.embeddings, handling)
        else:
            wanted = cast("RerankRequest", task.rerank)
            surface, (fields, _) = "rerank", await _rerank(request, wanted, handling)
    except NunatakError as error:
        problem = problem_of(error, request_id=request_id_of(request.scope))
        return {"id": task.id, "status": problem["status"], **as_router(problem)}
    return {"id": task.id, "status": 200, surface: fields}


async def _classify(request: Request, body: ClassifyRequest, handling: Handling) -> Answer:
    inputs = inputs_of(body.input if isinstance(body.input, str) else [*body.input])
    own = with_deadline(handling, body.options.deadline_ms)
    options = Parameters(
        aggregation_strategy=AggregationStrategy.SIMPLE,
        on_long=OVERFLOWS[body.options.overflow] if body.options.overflow else None,
    )

    reference = body.model

    async def ask(part: tuple[Input, ...]) -> tuple[TaskPrediction, dict[str, str]]:
        return await ask_task(request, own, reference, part, options)

    async def find() -> TaskManifest:
        look_up = find_task(request, body.model)
        return await within(own.deadline_s, look_up, late=DeadlineExceededError)

    async def pin() -> dict[str, str]:
        nonlocal reference
        reference = (await find()).reference
        return {TASK_VERSION_HEADER: reference}

    found, headers = await ask_each(ask, inputs, pin=pin)
    results = [
        {"index": index, **_result(one, place, item, body)}
        for index, ((one, place), item) in enumerate(zip(found, inputs, strict=True))
    ]
    known = next((one for one, _ in found if isinstance(one, TaskPrediction)), None)
    if known is None:
        manifest = await find()
        task, head, labels = manifest.task, manifest.head, manifest.head.labels
        kind = classify_kind(head.kind, head.problem_type)
    else:
        task, labels = known.task, known.labels
        kind = classify_kind(known.head, known.problem_type)
    _check(task, kind, body)
    read = (one.extents[it].num_tokens for one, it in found if isinstance(one, TaskPrediction))
    fields = {
        "model": body.model,
        "head": task,
        "kind": kind,
        "labels": list(labels),
        "results": results,
        "usage": {"input_tokens": sum(read), "output_tokens": 0},
    }
    return with_meta(fields, body.options, headers), headers


async def _rerank(request: Request, body: RerankRequest, handling: Handling) -> Answer:
    query = Query(query=body.query, documents=tuple(body.documents))
    on_long = OVERFLOWS[body.options.overflow or "reject"]
    options = Parameters(function_to_apply=FunctionToApply.NONE, on_long=on_long)
    own = with_deadline(handling, body.options.deadline_ms)
    result, headers = await ask_task(request, own, body.model, (query,), options)
    (ranked,) = cast("list[list[DocumentScore]]", result.outputs)
    results = [_ranked(it, body) for it in ranked]
    usage = {"input_tokens": result.extents[0].num_tokens, "output_tokens": 0}
    fields = {"model": body.model, "results": results[: body.top_n], "usage": usage}
    return with_meta(fields, body.options, headers), headers


def _check(task: str, kind: str | None, body: ClassifyRequest) -> None:
    if kind is None:
        raise invalid_request(f"classify cannot ask {task}; see its card in /v1/models")
    if body.head not in {None, task}:
        raise invalid_request(f"the head of this model is {task}")
    reads_tokens = kind == "token"
    if reads_tokens and body.options.overflow not in {None, "window"}:
        raise invalid_request("overflow of token heads is window: texts are read whole")
    if not reads_tokens and body.options.threshold is not None:
        raise invalid_request("threshold is an option of token heads")


def _result(
    found: TaskPrediction | str, place: int, item: Input, body: ClassifyRequest
) -> dict[str, Any]:
    if isinstance(found, str):
        return {"error": found}
    extent, limit = found.extents[place], body.options.max_tokens
    if limit is not None and extent.num_tokens + extent.num_left_out > limit:
        if extent.is_cut:
            raise invalid_request(
                f"overflow truncate cuts at the {extent.num_tokens} tokens of the model; "
                "leave max_tokens out"
            )
        return {"error": "scan_budget_exceeded" if extent.is_windowed else "max_length_exceeded"}
    usage = {
        "input": {
            "tokens": extent.num_tokens + extent.num_left_out,
            "processed_tokens": extent.num_tokens,
            "truncated": extent.is_cut,
        }
    }
    output = found.outputs[place]
    if found.head is HeadKind.TOKEN_CLASSIFICATION:
        least, text = body.options.threshold or 0.0, cast("str", item)
        groups = cast("list[EntityGroup]", output)
        spans = [
            {**span_of(it, text), "probability": it["score"]}
            for it in groups
            if it["score"] >= least
        ]
        return {"spans": spans, **usage}
    scores = {it["label"]: it["score"] for it in cast("list[LabelScore]", output)}
    values = [scores[label] for label in found.labels]
    predicted = found.predicted[place] if found.predicted else None
    if found.problem_type is ProblemType.MULTI_LABEL:
        return {"scores": values, "selected": predicted, **usage}
    return {"label": predicted, "probabilities": values, **usage}


def _ranked(found: DocumentScore, body: RerankRequest) -> dict[str, Any]:
    # The router's client needs the logit, and takes any other answer for a broken model.
    (score,) = apply_function(FunctionToApply.SIGMOID, [found["score"]])
    fields = {"index": found["index"], "relevance_score": score, "logit": found["score"]}
    shown = {"document": body.documents[found["index"]]} if body.return_documents else {}
    return {**fields, **shown}


async def _timed(answer: Awaitable[Answer]) -> Response:
    """Answer with the header `Server-Timing`, in milliseconds."""
    started = time.perf_counter()
    fields, headers = await answer
    parts = {"tokenize": TOKENIZE_HEADER, "queue": QUEUE_HEADER, "forward": COMPUTE_HEADER}
    known = [f"{part};dur={headers[name]}" for part, name in parts.items() if name in headers]
    total = f"total;dur={(time.perf_counter() - started) * 1000:.3f}"
    timing = ", ".join([*known, total])
    return reply(fields, headers={**headers, "server-timing": timing})


async def _served(request: Request) -> list[TaskManifest]:
    tasks = (it.manifest for it in await catalog_of(request).tasks())
    backbones = runtime_of(request).backbones
    return [it for it in tasks if backbones.serves(it) and is_served(it)]


async def ask_each(
    ask: Callable[[tuple[ItemT, ...]], Awaitable[tuple[AnswerT, dict[str, str]]]],
    items: tuple[ItemT, ...],
    *,
    pin: Callable[[], Awaitable[dict[str, str]]] | None = None,
) -> tuple[list[tuple[AnswerT | str, int]], dict[str, str]]:
    """Ask about all items at once, or about each item alone if one item fails all others.

    `pin` lets one version answer from then on, and returns its headers. Returns for each item an
    answer and the item's place in it, or the item's error; and headers.
    """

    async def ask_alone(item: ItemT) -> AnswerT | str:
        try:
            return (await ask((item,)))[0]
        except NunatakError as error:
            if error.code not in ITEM_ERRORS:
                raise
            return ITEM_ERRORS[error.code]

    try:
        whole, headers = await ask(items)
    except NunatakError as error:
        if error.code not in ITEM_ERRORS:
            raise
        if len(items) == 1 or error.code in LATE:
            return [(ITEM_ERRORS[error.code], 0)] * len(items), {}
        # A canary or a promotion would answer some of the items by another version.
        headers = await pin() if pin else {}
        return [(it, 0) for it in await asyncio.gather(*map(ask_alone, items))], headers
    return [(whole, place) for place in range(len(items))], headers


async def embed(request: Request, body: EmbeddingsRequest, handling: Handling) -> Answer:
    own = with_deadline(handling, body.options.deadline_ms)
    backbone = runtime_of(request).backbones.named(body.model)
    layer, width = backbone.config.num_layers, backbone.config.hidden_width
    if body.layer not in {None, layer} or body.dimensions not in {None, width}:
        raise invalid_request(f"layer must be {layer} and dimensions must be {width}, or absent")

    async def ask(part: tuple[str, ...]) -> tuple[Embeddings, dict[str, str]]:
        cuts = body.options.overflow == "truncate"
        return await embed_texts(request, own, part, truncates=cuts, backbone=backbone)

    items = [body.input] if isinstance(body.input, str) else body.input
    texts = tuple(it if isinstance(it, str) else it.text for it in items)
    found, headers = await ask_each(ask, texts)
    encode = base64_of if body.encoding_format == "base64" else list[float]
    data = [
        {
            "object": "embedding",
            "index": index,
            **({"error": it} if isinstance(it, str) else {"embedding": encode(it.vectors[place])}),
        }
        for index, (it, place) in enumerate(found)
    ]
    answers = {id(it): it for it, _ in found if not isinstance(it, str)}
    num_tokens = sum(it.num_tokens for it in answers.values())
    fields = {"object": "list", "data": data, "model": backbone.name, "usage": usage_of(num_tokens)}
    space = {"model_sha256": backbone.digest, "layer": layer, "dimension": width}
    meta = {
        "model_id": backbone.name,
        "representation": {**space, "normalized": True, "modality": "text"},
    }
    return with_meta(fields, body.options, headers, **meta), headers


def with_deadline(handling: Handling, deadline_ms: float | None) -> Handling:
    known = [handling.own_deadline_s, None if deadline_ms is None else deadline_ms / 1000]
    earliest = min((it for it in known if it is not None), default=None)
    return replace(handling, own_deadline_s=earliest)


def with_meta(
    fields: dict[str, Any], options: Options, headers: dict[str, str], **more: object
) -> dict[str, Any]:
    if not options.return_meta:
        return fields
    times = {
        "queue_ms": float(headers.get(QUEUE_HEADER, 0)),
        "compute_ms": float(headers.get(COMPUTE_HEADER, 0)),
    }
    served = headers.get(TASK_VERSION_HEADER)
    return {**fields, "meta": {"model_id": served, "profile": "exact", **times, **more}}

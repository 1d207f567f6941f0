"""text-embeddings-inference: `/predict`, `/rerank` and `/embed`, with `/info` and `/health`.

A TEI server holds one model, so each base URL here stands for one model:

    /tei/tasks/{task}              a classification or ranking task: `name` or `name@alias`
    /tei/tasks/{task}/{version}    one version of the task
    /tei/backbone                  the backbone, for embeddings
"""

from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Annotated, Any, Literal, cast

from fastapi import Request, Response
from pydantic import Field

from nunatak_contract.enums import FunctionToApply, HeadKind, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Message, Parameters, Query, Some, Text
from nunatak_contract.wire import Score
from nunatak_server.compat.failures import router_of
from nunatak_server.compat.translation import Texts, embed_texts, find_task, texts_of
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed, Unrouted, ask_task, reference_text, runtime_of
from nunatak_server.http.replies import reply
from nunatak_server.outputs.scores import DocumentScore
from nunatak_server.runtime import Runtime

Words = Annotated[list[Text], Field(min_length=1, max_length=2)]
"""A text, or a pair of texts."""
Batch = Some[Words]
MODEL_KINDS = {HeadKind.SEQUENCE_CLASSIFICATION: "classifier", HeadKind.RANKING: "reranker"}
Direction = Literal["right", "Right"]
"""Texts are cut only at the end."""


class Truncating(Message):
    """The fields of every request."""

    truncate: bool | None = False
    truncation_direction: Direction = "right"

    def options(self, function: FunctionToApply | None) -> Parameters:
        on_long = OnLong.CUT if self.truncate else OnLong.REFUSE
        return Parameters(function_to_apply=function, on_long=on_long)


class TeiPredictRequest(Truncating):
    """A text, a pair `[a, b]`, or a batch `[[a], [a, b], ...]`."""

    inputs: Text | Words | Batch
    raw_scores: bool = False


class TeiRerankRequest(Truncating):
    """A query, and the texts to order."""

    query: Text
    texts: Texts
    raw_scores: bool = False
    return_text: bool = False


class TeiEmbedRequest(Truncating):
    """Texts to embed. The backbone has no prompts and no shorter vectors."""

    inputs: Text | Texts
    normalize: bool = True
    prompt_name: None = None
    dimensions: None = None


class TeiRank(Message):
    """A text by its index in the request."""

    index: int
    score: float
    text: str | None = None


class TeiInfo(Message):
    """The task or the backbone of a base URL."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None


router = router_of("text-embeddings-inference", prefix="/tei")
PredictResponse = list[Score] | list[list[Score]]


@router.ask("/tasks/{task}/predict", "/tasks/{task}/{version}/predict", answer=PredictResponse)
async def predict(
    request: Request,
    handling: Routed,
    task: str,
    body: TeiPredictRequest,
    version: str | None = None,
) -> Response:
    """Classify; raw scores are logits."""
    function = FunctionToApply.NONE if body.raw_scores else None
    reference, inputs = reference_text(task, version), _inputs(body.inputs)
    result, headers = await ask_task(request, handling, reference, inputs, body.options(function))
    if result.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        raise _no_such_model(result.task, result.head)
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    outputs = list(result.outputs) if is_batch else result.outputs[0]
    return reply(outputs, headers=headers)


@router.ask(
    "/tasks/{task}/rerank",
    "/tasks/{task}/{version}/rerank",
    answer=list[TeiRank],
    response_model_exclude_none=True,
)
async def rerank(
    request: Request,
    handling: Routed,
    task: str,
    body: TeiRerankRequest,
    version: str | None = None,
) -> Response:
    """Rank texts for a query, best first."""
    function = FunctionToApply.NONE if body.raw_scores else FunctionToApply.SIGMOID
    reference = reference_text(task, version)
    query = Query(query=body.query, documents=tuple(body.texts))
    result, headers = await ask_task(request, handling, reference, (query,), body.options(function))
    (ranked,) = cast("list[list[DocumentScore]]", result.outputs)
    ranks = [{**it, "text": body.texts[it["index"]]} if body.return_text else it for it in ranked]
    return reply(ranks, headers=headers)


@router.ask("/backbone", "/backbone/embed", answer=list[list[float]])
async def embed(request: Request, handling: Unrouted, body: TeiEmbedRequest) -> Response:
    """Embed texts, always as a list of vectors."""
    texts, cuts = texts_of(body.inputs), bool(body.truncate)
    found, headers = await embed_texts(
        request, handling, texts, truncates=cuts, normalises=body.normalize
    )
    return reply(found.vectors, headers=headers)


@router.read("/tasks/{task}/info", "/tasks/{task}/{version}/info", answer=TeiInfo)
async def task_info(request: Request, task: str, version: str | None = None) -> Response:
    """Return the facts about a task, in the form for a model."""
    runtime = runtime_of(request)
    manifest = await find_task(request, task, version)
    head = manifest.head
    if head.kind not in MODEL_KINDS:
        raise _no_such_model(manifest.task, head.kind)
    labels = {
        "id2label": {str(index): label for index, label in enumerate(head.labels)},
        "label2id": {label: index for index, label in enumerate(head.labels)},
    }
    kind = {MODEL_KINDS[head.kind]: labels}
    return reply(_info(runtime, manifest.reference, None, kind, manifest.max_length))


@router.read("/backbone/info", answer=TeiInfo)
async def backbone_info(request: Request) -> Response:
    """Return the facts about the backbone."""
    runtime = runtime_of(request)
    backbone = runtime.backbone
    kind = {"embedding": {"pooling": str(backbone.pooling)}}
    return reply(
        _info(runtime, backbone.name, backbone.digest, kind, backbone.max_embedding_tokens)
    )


@router.read(
    "/tasks/{task}/health", "/tasks/{task}/{version}/health", answer=None, response_class=Response
)
async def task_health(request: Request, task: str, version: str | None = None) -> Response:
    """Answer 200 while the server accepts requests and the task exists."""
    runtime_of(request).readiness.check_ready()
    await find_task(request, task, version)
    return Response()


@router.show("/backbone/health", answer=None, response_class=Response)
async def backbone_health(request: Request) -> Response:
    """Answer 200 while the server accepts requests."""
    runtime_of(request).readiness.check_ready()
    return Response()


def _inputs(inputs: str | Words | Batch) -> tuple[str | tuple[str, str], ...]:
    if isinstance(inputs, str):
        return (inputs,)
    words = [it for it in inputs if isinstance(it, list)]
    if words:
        return tuple(map(_input, words))
    return (_input([it for it in inputs if isinstance(it, str)]),)


def _input(words: Sequence[str]) -> str | tuple[str, str]:
    return words[0] if len(words) == 1 else (words[0], words[1])


def _no_such_model(task: str, kind: HeadKind) -> NunatakError:
    return invalid_request(
        f"text-embeddings-inference has no route for {kind.replace('_', ' ')}; "
        f"ask {task} at /v1/tasks/{task}/predict"
    )


def _info(
    runtime: Runtime, model: str, digest: str | None, kind: dict[str, Any], max_tokens: int
) -> dict[str, Any]:
    settings = runtime.settings
    ranks = "reranker" in kind
    return {
        "model_id": model,
        "model_sha": digest,
        "model_dtype": str(runtime.backbone.dtype).removeprefix("torch."),
        "model_type": kind,
        "max_concurrent_requests": settings.max_queued_requests,
        "max_input_length": max_tokens,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_requests": settings.max_batch_rows,
        "max_client_batch_size": settings.max_documents if ranks else settings.max_inputs,
        "auto_truncate": False,
        "tokenization_workers": settings.tokenizer_threads,
        "version": version_of("nunatak"),
        "sha": None,
        "docker_label": None,
    }

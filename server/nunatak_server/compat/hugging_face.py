"""The shapes of Hugging Face: Inference and text-embeddings-inference (TEI).

Their clients take a URL as the model, so each base URL here stands for one model. The first is for
`huggingface_hub.InferenceClient`, the second for clients of a TEI server:

    /hf/tasks/{task}               /tei/tasks/{task}               a task: `name` or `name@alias`
    /hf/tasks/{task}/{version}     /tei/tasks/{task}/{version}     one version of the task
    /hf/backbone                   /tei/backbone                   the backbone

The head of the task decides the shape of the answer of Inference, as in huggingface_hub 2.4. TEI
classifies and ranks. The backbone compares sentences, and TEI embeds texts with it. TEI also has
`/info` and `/health`.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version as version_of
from operator import mul
from typing import Annotated, Any, Final, Literal, cast

from fastapi import Request, Response
from pydantic import Field

from nunatak_contract.enums import AggregationStrategy, FunctionToApply, HeadKind, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Inputs, Message, Parameters, Query, Some, Text
from nunatak_contract.wire import Score
from nunatak_server.compat.tensors import NOTHING
from nunatak_server.compat.translation import Texts, embed_texts, find_task, router_of, texts_of
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import PathReference, Routed, Unrouted, ask_task, runtime_of
from nunatak_server.http.replies import inputs_of, reply
from nunatak_server.outputs.entities import AnswerScore
from nunatak_server.outputs.outputs import DocumentScore
from nunatak_server.predict.types import TaskPrediction, as_sent
from nunatak_server.runtime import Runtime

PARAMETERS: Final[Mapping[HeadKind, frozenset[str]]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: frozenset({"top_k", "function_to_apply", "on_long"}),
    HeadKind.TOKEN_CLASSIFICATION: frozenset({"aggregation_strategy", "ignore_labels", "stride"}),
    HeadKind.QUESTION_ANSWERING: frozenset(
        {"top_k", "max_answer_len", "handle_impossible_answer", "align_to_words", "doc_stride"}
    ),
}
"""The parameters of each kind of head. Other parameters are refused."""


class HfParameters(Parameters):
    """The native parameters. Entities are grouped by default, as by Hugging Face.

    The lengths that a task reads belong to its version.
    """

    max_seq_len: None = None
    max_question_len: None = None

    aggregation_strategy: Annotated[AggregationStrategy, Field(strict=False)] = (
        AggregationStrategy.SIMPLE
    )


class HfRequest(Message):
    """One or more inputs for one task."""

    inputs: Inputs
    parameters: HfParameters = HfParameters.model_validate({})


class Sentences(Message):
    """A sentence, and the sentences to compare it with."""

    source_sentence: Text
    sentences: Texts


class NoParameters(Message):
    """The parameters of a request that has none."""


class SimilarityRequest(Message):
    """Sentences to compare."""

    inputs: Sentences
    parameters: NoParameters | None = None


router = router_of("Hugging Face", prefix="/hf")


@router.ask("/tasks/{task}", "/tasks/{task}/{version}", answer=Any)
async def ask(
    request: Request, handling: Routed, reference: PathReference, body: HfRequest
) -> Response:
    """Ask a task; the head of the task decides the shape of the answer."""
    inputs = inputs_of(body.inputs)
    result, headers = await ask_task(request, handling, reference, inputs, body.parameters)
    return reply(_answer(result, body), headers=headers)


@router.ask("/backbone", answer=list[float])
async def compare(request: Request, handling: Unrouted, body: SimilarityRequest) -> Response:
    """Return the cosine similarity of the first sentence with each of the others."""
    sentences = (body.inputs.source_sentence, *body.inputs.sentences)
    found, headers = await embed_texts(request, handling, sentences)
    source, *others = found.vectors
    dots = [sum(map(mul, source, other)) for other in others]
    return reply(dots, headers=headers)


def _answer(result: TaskPrediction, body: HfRequest) -> Any:  # noqa: ANN401 - one shape for each head
    if result.head not in PARAMETERS:
        raise invalid_request(
            f"InferenceClient has no call for {result.head}; ask {result.task} at /rerank"
        )
    known = PARAMETERS[result.head]
    if body.parameters.model_fields_set - known:
        raise invalid_request(
            f"parameters of {result.head.replace('_', ' ')} may be: {', '.join(sorted(known))}"
        )
    match result.head:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return list(result.outputs)
        case HeadKind.QUESTION_ANSWERING if body.parameters.top_k in {None, 1}:
            rows = cast("Sequence[list[AnswerScore]]", result.outputs)
            return as_sent([row[0] if row else NOTHING for row in rows], body.inputs)
        case _:
            return as_sent(result.outputs, body.inputs)


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
    top_n: Annotated[int, Field(ge=1)] | None = Field(None, description="as LiteLLM sends")


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


tei = router_of("text-embeddings-inference", prefix="/tei")
PredictResponse = list[Score] | list[list[Score]]


@tei.ask("/tasks/{task}/predict", "/tasks/{task}/{version}/predict", answer=PredictResponse)
async def predict(
    request: Request, handling: Routed, reference: PathReference, body: TeiPredictRequest
) -> Response:
    """Classify; raw scores are logits."""
    function = FunctionToApply.NONE if body.raw_scores else None
    inputs, options = _tei_inputs(body.inputs), body.options(function)
    result, headers = await ask_task(request, handling, reference, inputs, options)
    if result.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        raise _no_such_model(result.task, result.head)
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    outputs = list(result.outputs) if is_batch else result.outputs[0]
    return reply(outputs, headers=headers)


@tei.ask(
    "/tasks/{task}/rerank",
    "/tasks/{task}/{version}/rerank",
    answer=list[TeiRank],
    response_model_exclude_none=True,
)
async def rerank(
    request: Request, handling: Routed, reference: PathReference, body: TeiRerankRequest
) -> Response:
    """Rank texts for a query, best first."""
    function = FunctionToApply.NONE if body.raw_scores else FunctionToApply.SIGMOID
    query = Query(query=body.query, documents=tuple(body.texts))
    result, headers = await ask_task(request, handling, reference, (query,), body.options(function))
    (ranked,) = cast("list[list[DocumentScore]]", result.outputs)
    ranks = [{**it, "text": body.texts[it["index"]]} if body.return_text else it for it in ranked]
    return reply(ranks[: body.top_n], headers=headers)


@tei.ask("/backbone", "/backbone/embed", answer=list[list[float]])
async def embed(request: Request, handling: Unrouted, body: TeiEmbedRequest) -> Response:
    """Embed texts, always as a list of vectors."""
    texts, cuts = texts_of(body.inputs), bool(body.truncate)
    found, headers = await embed_texts(
        request, handling, texts, truncates=cuts, normalises=body.normalize
    )
    return reply(found.vectors, headers=headers)


@tei.read("/tasks/{task}/info", "/tasks/{task}/{version}/info", answer=TeiInfo)
async def task_info(request: Request, reference: PathReference) -> Response:
    """Return the facts about a task, in the form for a model."""
    runtime = runtime_of(request)
    manifest = await find_task(request, reference)
    head = manifest.head
    if head.kind not in MODEL_KINDS:
        raise _no_such_model(manifest.task, head.kind)
    labels = {
        "id2label": {str(index): label for index, label in enumerate(head.labels)},
        "label2id": {label: index for index, label in enumerate(head.labels)},
    }
    kind = {MODEL_KINDS[head.kind]: labels}
    return reply(_tei_info(runtime, manifest.reference, None, kind, manifest.max_length))


@tei.read("/backbone/info", answer=TeiInfo)
async def backbone_info(request: Request) -> Response:
    """Return the facts about the backbone."""
    runtime = runtime_of(request)
    backbone = runtime.backbone
    kind = {"embedding": {"pooling": str(backbone.pooling)}}
    return reply(
        _tei_info(runtime, backbone.name, backbone.digest, kind, backbone.max_embedding_tokens)
    )


@tei.read(
    "/tasks/{task}/health", "/tasks/{task}/{version}/health", answer=None, response_class=Response
)
async def task_health(request: Request, reference: PathReference) -> Response:
    """Answer 200 while the server accepts requests and the task exists."""
    runtime_of(request).readiness.check_ready()
    await find_task(request, reference)
    return Response()


@tei.show("/backbone/health", answer=None, response_class=Response)
async def backbone_health(request: Request) -> Response:
    """Answer 200 while the server accepts requests."""
    runtime_of(request).readiness.check_ready()
    return Response()


def _tei_inputs(inputs: str | Words | Batch) -> tuple[str | tuple[str, str], ...]:
    if isinstance(inputs, str):
        return (inputs,)
    batch = [it for it in inputs if isinstance(it, list)]
    one = [it for it in inputs if isinstance(it, str)]
    return tuple(it[0] if len(it) == 1 else (it[0], it[1]) for it in batch or [one])


def _no_such_model(task: str, kind: HeadKind) -> NunatakError:
    return invalid_request(
        f"text-embeddings-inference has no route for {kind.replace('_', ' ')}; "
        f"ask {task} at /v1/tasks/{task}/predict"
    )


def _tei_info(
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

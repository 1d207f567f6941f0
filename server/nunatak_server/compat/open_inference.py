"""KServe's protocols: version 1, and version 2 (Open Inference), which Triton has too.

A task is a model. Tensors of version 2 are JSON, or binary as in the extension of that name: the
header `inference-header-content-length` is the length of the JSON part, and the tensors follow.

Version 1 has no fixed form of predictions. The probabilities of a sequence classification have the
form of KServe's own Hugging Face server with `--return_probabilities`, which NeMo Guardrails reads:
one object of labels. Other tasks answer as the native routes do.
"""

import math
from collections.abc import Set as AbstractSet
from importlib.metadata import version as version_of
from typing import Annotated, Any, Final, Literal, cast

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.types import Scope as AsgiScope

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import MAX_ITEMS, Item, Message, Parameters, Some, Text
from nunatak_server.compat.tensors import (
    ALL_BINARY,
    BINARY,
    PARAMETERS,
    SIZE,
    InputName,
    InputParameters,
    OutputName,
    OutputParameters,
    RequestParameters,
    Scalar,
    Tensor,
    input_metadata,
    inputs_in,
    output_metadata,
    output_tensors,
    with_binary_data,
)
from nunatak_server.compat.translation import TranslatedRoute, find_task, router_of
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import headers_of
from nunatak_server.http.endpoints import (
    PathReference,
    Routed,
    ask_task,
    catalog_of,
    parse_json,
    runtime_of,
)
from nunatak_server.http.middleware import media_type_of
from nunatak_server.http.replies import inputs_of, reply
from nunatak_server.outputs.outputs import LabelScore
from nunatak_server.predict.types import TaskPrediction

Size = Annotated[int, Field(ge=1, le=MAX_ITEMS)]
Column = Some[Text]
Single = Annotated[list[Text], Field(min_length=1, max_length=1)]
Rows = Some[Single]


class OpenInferenceRoute(TranslatedRoute):
    def parse(self, scope: AsgiScope, body: bytes) -> object:
        if media_type_of(scope) not in MEDIA_TYPES:
            raise NunatakError("unsupported_media_type")
        declared = headers_of(scope).get(JSON_LENGTH.encode())
        if declared is None:
            return parse_json(body)
        length = int(declared[:20]) if declared.isdigit() else 0
        if not 0 < length <= len(body):
            raise invalid_request(
                f"the header {JSON_LENGTH} must be the length of the JSON part in bytes"
            )
        return with_binary_data(parse_json(body[:length]), body[length:])


JSON_LENGTH: Final = "inference-header-content-length"
BINARY_TYPE: Final = "application/octet-stream"
MEDIA_TYPES: Final = frozenset({b"", b"application/json", BINARY_TYPE.encode()})
"""The media types of requests; Triton's own client declares none."""


class InputTensor(Message):
    """Texts, as BYTES of shape [n] or [n, 1]."""

    name: InputName
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    parameters: InputParameters | None = None
    data: Column | Rows


class WantedOutput(Message):
    """A wanted output. Without any, all outputs are wanted."""

    name: OutputName
    parameters: OutputParameters | None = None


class InferRequest(Message):
    """Named tensors for one task."""

    id: str | None = None
    parameters: RequestParameters | None = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=2)]
    outputs: Annotated[list[WantedOutput], Field(min_length=1, max_length=4)] | None = None


class TensorMetadata(Message):
    """The description of a tensor, without data."""

    name: str
    datatype: str
    shape: list[int]


class OutputTensor(TensorMetadata):
    """A tensor, with its data row after row."""

    data: list[str] | list[float] | list[int]


class InferResponse(Message):
    """Named tensors from the answering version."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class ServerMetadata(Message):
    """The facts about this server."""

    name: str
    version: str
    extensions: list[str]


class ModelMetadata(Message):
    """The inputs and outputs of a task."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(Message):
    """Whether a task is ready."""

    name: str
    ready: bool


class Live(Message):
    """The answer of a live process."""

    live: bool


class Ready(Message):
    """Whether the server accepts requests."""

    ready: bool


WITH_BINARY: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}

router = router_of("Open Inference Protocol", prefix="/v2", route_class=OpenInferenceRoute)


@router.read("", answer=ServerMetadata)
async def server_metadata() -> Response:
    """Return the facts about this server."""
    return reply(
        {"name": "nunatak", "version": version_of("nunatak"), "extensions": ["binary_tensor_data"]}
    )


@router.show("/health/live", answer=Live)
async def live() -> Response:
    """Answer 200 while the event loop runs."""
    return reply({"live": True})


@router.show("/health/ready", answer=Ready)
async def ready(request: Request) -> Response:
    """Answer 200 while the server accepts requests."""
    runtime_of(request).readiness.check_ready()
    return reply({"ready": True})


@router.read("/models/{task}", "/models/{task}/versions/{version}", answer=ModelMetadata)
async def model_metadata(request: Request, reference: PathReference) -> Response:
    """Return the inputs and outputs of a task; `{task}` may name an alias."""
    manifest = await find_task(request, reference)
    summary = await catalog_of(request).task(manifest.task)
    head = manifest.head
    return reply(
        {
            "name": manifest.task,
            "versions": [str(it) for it in summary.versions],
            "platform": "nunatak",
            "inputs": input_metadata(head.kind, manifest.reads),
            "outputs": output_metadata(head.kind, len(head.labels)),
        }
    )


@router.read("/models/{task}/ready", "/models/{task}/versions/{version}/ready", answer=ModelReady)
async def model_ready(request: Request, reference: PathReference) -> Response:
    """Answer 200 while a task can be asked. A request loads a task that is not in memory."""
    runtime_of(request).readiness.check_ready()
    manifest = await find_task(request, reference)
    return reply({"name": manifest.task, "ready": True})


@router.ask(
    "/models/{task}/infer",
    "/models/{task}/versions/{version}/infer",
    answer=InferResponse,
    responses=WITH_BINARY,
)
async def infer(
    request: Request, handling: Routed, reference: PathReference, body: InferRequest
) -> Response:
    """Ask a task."""
    columns = _columns(body.inputs)
    inputs, options = inputs_in(columns), _options(body.parameters or {}, frozenset(columns))
    result, headers = await ask_task(request, handling, reference, inputs, options)
    tensors = _wanted(output_tensors(result.head, result.outputs), body.outputs)
    answer = {"model_name": result.task, "model_version": str(result.version)}
    if body.id is not None:
        answer["id"] = body.id
    return _reply(answer, tensors, _binary_names(body, tensors), headers)


def _binary_names(body: InferRequest, tensors: list[Tensor]) -> set[str]:
    default = (body.parameters or {}).get(ALL_BINARY, False)
    own = {it.name: (it.parameters or {}).get(BINARY, default) for it in body.outputs or ()}
    return {it.name for it in tensors if own.get(it.name, default) is True}


def _reply(
    answer: dict[str, Any], tensors: list[Tensor], binary: set[str], headers: dict[str, str]
) -> Response:
    if not binary:
        return reply({**answer, "outputs": [it.fields for it in tensors]}, headers=headers)
    raw = {it.name: it.raw for it in tensors if it.name in binary}
    outputs = [
        {**it.metadata, "parameters": {SIZE: len(raw[it.name])}} if it.name in raw else it.fields
        for it in tensors
    ]
    head = orjson.dumps({**answer, "outputs": outputs})
    return Response(
        head + b"".join(raw.values()),
        media_type=BINARY_TYPE,
        headers={**headers, JSON_LENGTH: str(len(head))},
    )


def _columns(tensors: list[InputTensor]) -> dict[str, list[str]]:
    columns = {tensor.name: _texts(tensor) for tensor in tensors}
    if len(columns) < len(tensors):
        raise invalid_request("every input tensor must occur once; remove the repetitions")
    return columns


def _texts(tensor: InputTensor) -> list[str]:
    _refuse_unknown(tensor.parameters or {}, known=frozenset(), flag=BINARY, values={False})
    texts = [it if isinstance(it, str) else it[0] for it in tensor.data]
    if math.prod(tensor.shape) != len(texts) or tensor.shape[0] != len(texts):
        raise invalid_request(
            f"a tensor of {len(texts)} texts has shape [{len(texts)}] or [{len(texts)}, 1], got "
            f"{tensor.shape}"
        )
    return texts


def _options(parameters: dict[str, Scalar], columns: frozenset[str]) -> Parameters:
    _refuse_unknown(parameters, known=PARAMETERS[columns], flag=ALL_BINARY)
    heeded = {name: value for name, value in parameters.items() if name != ALL_BINARY}
    try:
        return Parameters.model_validate(heeded)
    except ValidationError as error:
        raise RequestValidationError(
            [{**it, "loc": ("parameters", *it["loc"])} for it in error.errors()]
        ) from None


def _refuse_unknown(
    parameters: dict[str, Scalar],
    *,
    known: frozenset[str],
    flag: str,
    values: AbstractSet[bool] = frozenset({True, False}),
) -> None:
    """Refuse parameters other than the known ones and one flag with its possible values."""
    for name, value in parameters.items():
        if name == flag and not (isinstance(value, bool) and value in values):
            possible = " or ".join(sorted(str(it).lower() for it in values))
            raise invalid_request(f"{flag} here must be {possible}")
        if name not in known | {flag}:
            allowed = ", ".join(sorted(known)) or "none"
            raise invalid_request(f"parameters here may be: {allowed}")


def _wanted(tensors: list[Tensor], wanted: list[WantedOutput] | None) -> list[Tensor]:
    if wanted is None:
        return tensors
    named = {tensor.name: tensor for tensor in tensors}
    for output in wanted:
        _refuse_unknown(output.parameters or {}, known=frozenset(), flag=BINARY)
        if output.name not in named:
            raise invalid_request(f"outputs here are: {', '.join(named)}")
    if len({it.name for it in wanted}) < len(wanted):
        raise invalid_request("every output must occur once; remove the repetitions")
    return [named[output.name] for output in wanted]


class KServeRequest(Message):
    """Inputs for one task."""

    instances: Some[Item]


class KServeResponse(Message):
    """One prediction for each input, in order."""

    predictions: list[Any]


kserve_1 = router_of("KServe 1")


@kserve_1.ask("/v1/models/{task}:predict", answer=KServeResponse)
async def predict(request: Request, handling: Routed, task: str, body: KServeRequest) -> Response:
    """Ask a task; `{task}` is `name` or `name@alias`."""
    result, headers = await ask_task(request, handling, task, inputs_of(body.instances))
    return reply({"predictions": _predictions(result)}, headers=headers)


def _predictions(result: TaskPrediction) -> list[Any]:
    if result.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        return list(result.outputs)
    rows = cast("list[list[LabelScore]]", result.outputs)
    if result.problem_type is ProblemType.REGRESSION:
        return [row[0]["score"] for row in rows]
    return [{it["label"]: it["score"] for it in row} for row in rows]

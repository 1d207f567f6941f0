"""Shared parts of the translators: fields, calls, forms, and failures in the shapes of others."""

import asyncio
import logging
import struct
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import WithJsonSchema
from starlette.types import Scope

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Message, Some, Text
from nunatak_model import Backbone
from nunatak_server.http.access import request_id_of
from nunatak_server.http.endpoints import Router, catalog_of, runtime_of
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.pages import WHOLE_REFERENCE
from nunatak_server.http.problems import headers_of, problem_of
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.outputs.entities import Entity
from nunatak_server.predict.types import EmbeddingRequest, Embeddings, Handling

Texts = Some[Text]
ModelName = Annotated[str, WithJsonSchema(WHOLE_REFERENCE)]
"""The field that names a task: `name`, `name@alias` or `name/3`."""


async def find_task(request: Request, reference: str) -> TaskManifest:
    manifest = await catalog_of(request).resolve(TaskReference.parse(reference))
    runtime_of(request).backbones.of(manifest)
    return manifest


async def embed_texts(
    request: Request,
    handling: Handling,
    texts: tuple[str, ...],
    *,
    truncates: bool = False,
    normalises: bool = True,
    backbone: Backbone | None = None,
) -> tuple[Embeddings, dict[str, str]]:
    """Embed texts with a backbone, or else the default backbone."""
    runtime = runtime_of(request)
    embeddings = await runtime.service.embed(
        EmbeddingRequest(
            inputs=texts,
            truncates=truncates,
            normalises=normalises,
            handling=handling,
            backbone=(backbone or runtime.backbone).digest,
        )
    )
    read = read_headers(embeddings.num_tokens, is_cut=embeddings.is_cut)
    return embeddings, {**timing_headers(embeddings.timings), **read}


def texts_of(texts: str | list[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def usage_of(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def span_of(entity: Entity, text: str) -> dict[str, Any]:
    start, end = entity["start"], entity["end"]
    label = entity["entity_group"] if "entity_group" in entity else entity["entity"]
    return {"label": label, "start": start, "end": end, "text": text[start:end]}


def base64_of(vector: list[float]) -> str:
    """Return a vector as base64 of little-endian float32."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


Problem = Mapping[str, Any]
Shape = Callable[[Problem], dict[str, Any]]

logger = logging.getLogger(__name__)


def explained(problem: Problem) -> str:
    """Return a problem as one line, for protocols without a list of fields."""
    fields = "; ".join(f"{it['location']}: {it['message']}" for it in problem.get("errors", ()))
    return f"the request does not follow its schema: {fields}" if fields else problem["detail"]


def _kind(problem: Problem, kinds: Mapping[int, str], *, refused: str, failed: str) -> str:
    """Return the protocol's word for a status: one of its own, or that of all refusals or failures.

    An error of the server is a failure, and all others are refusals.
    """
    return kinds.get(problem["status"], failed if problem["status"] >= 500 else refused)


class LineProblem(Message):
    """An error as one line."""

    error: str


def as_line(problem: Problem) -> dict[str, Any]:
    return {"error": explained(problem)}


class OpenAIError(Message):
    """The content of an error of OpenAI."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIProblem(Message):
    """An error in the shape for OpenAI's clients."""

    error: OpenAIError


def as_openai(problem: Problem) -> dict[str, Any]:
    kinds = {429: "rate_limit_error"}
    kind = _kind(problem, kinds, refused="invalid_request_error", failed="server_error")
    fields = {"type": kind, "param": None, "code": problem["code"]}
    return {"error": {"message": explained(problem), **fields}}


class DetectorProblem(Message):
    """An error of a detector; `code` is the status."""

    code: int
    message: str


def as_detector(problem: Problem) -> dict[str, Any]:
    return {"code": problem["status"], "message": explained(problem)}


class TeiProblem(Message):
    """An error in the shape for clients of text-embeddings-inference."""

    error: str
    error_type: Literal["unhealthy", "overloaded", "backend", "validation", "empty"]


def as_tei(problem: Problem) -> dict[str, Any]:
    kinds = {429: "overloaded", 503: "unhealthy"}
    kind = _kind(problem, kinds, refused="validation", failed="backend")
    return {**as_line(problem), "error_type": "empty" if problem["code"] == "empty_text" else kind}


class VllmError(Message):
    """The content of an error of vLLM; `code` is the status."""

    message: str
    type: str
    param: str | None
    code: int


class VllmProblem(Message):
    """An error in the shape for vLLM's clients."""

    error: VllmError


VLLM_TYPES: Final = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}


def as_vllm(problem: Problem) -> dict[str, Any]:
    kind = _kind(problem, VLLM_TYPES, refused="BadRequestError", failed="InternalServerError")
    fields = {"type": kind, "param": None, "code": problem["status"]}
    return {"error": {"message": explained(problem), **fields}}


class RouterError(Message):
    """The content of an error of the contract."""

    code: str
    message: str


class RouterProblem(Message):
    """An error in the shape of the contract."""

    error: RouterError


ROUTER_CODES: Final = {
    404: "model_not_found",
    413: "request_too_large",
    429: "overloaded",
    503: "not_ready",
    504: "deadline_exceeded",
}


def as_router(problem: Problem) -> dict[str, Any]:
    code = _kind(problem, ROUTER_CODES, refused="invalid_request", failed="internal_error")
    return {"error": {"code": code, "message": explained(problem)}}


def as_portkey(problem: Problem) -> dict[str, Any]:
    return {"verdict": False, "data": {"reason": explained(problem), "code": problem["code"]}}


def as_litellm(problem: Problem) -> dict[str, Any]:
    return {"action": "BLOCKED", "blocked_reason": explained(problem), "texts": None}


SYSTEM_ONE_TYPES: Final = {
    401: "authentication_error",
    403: "authentication_error",
    404: "not_found",
    429: "rate_limit_error",
}


def as_system_one(problem: Problem) -> dict[str, Any]:
    """Return a problem as FastAPI shows a body that is not valid, or by its type and message."""
    if problem["status"] == HTTPStatus.UNPROCESSABLE_ENTITY or problem["code"] == "invalid_json":
        found = problem.get("errors") or [{"location": "body", "message": problem["detail"]}]
        return {
            "detail": [
                {"loc": it["location"].split("."), "msg": it["message"], "type": problem["code"]}
                for it in found
            ]
        }
    kind = _kind(problem, SYSTEM_ONE_TYPES, refused="api_usage_error", failed="server_error")
    return {"detail": {"error_type": kind, "message": problem["detail"], "code": problem["code"]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    shape: Shape = as_line
    model: type[Message] | None = LineProblem
    """The schema of `shape`."""
    verdict: Shape | None = None
    """For a gateway's guard: the verdict that stops a call.

    A gateway may let a call go on if its guard fails, and the call itself can cause a failure. So a
    failure is a verdict with the status of a success.
    """
    statuses: Mapping[str, int] = field(default_factory=dict[str, int])
    """The statuses of errors for which the protocol has others."""
    errors: frozenset[int] = frozenset()
    """The statuses that stay errors of a guard, because no call can cause them.

    Many calls can fill the queue, spend a quota or make the server late, so 429 and 504 are none.
    """

    def response(self, problem: Problem, *, headers: Mapping[str, str]) -> Response:
        status = self.statuses.get(problem["code"], problem["status"])
        protects = self.verdict is not None and problem["status"] not in self.errors
        shape = self.verdict if self.verdict is not None and protects else self.shape
        return Response(
            orjson.dumps(shape(problem)),
            status_code=HTTPStatus.OK if protects else status,
            media_type="application/json",
            headers=dict(headers),
        )


FAILURES: Final = {
    "FMS Guardrails Orchestrator": Failures(shape=as_detector, model=DetectorProblem),
    "Hugging Face": Failures(),
    "KServe 1": Failures(),
    "LiteLLM": Failures(verdict=as_litellm, errors=frozenset({401, 403, 404, 503})),
    "Open Inference Protocol": Failures(),
    "OpenAI": Failures(shape=as_openai, model=OpenAIProblem),
    "Portkey": Failures(verdict=as_portkey, model=None),
    "System One": Failures(
        shape=as_system_one, model=None, statuses={"invalid_json": HTTPStatus.UNPROCESSABLE_ENTITY}
    ),
    "text-embeddings-inference": Failures(shape=as_tei, model=TeiProblem),
    "vLLM semantic-router": Failures(shape=as_router, model=RouterProblem),
    "vLLM, Jina and Cohere": Failures(shape=as_vllm, model=VllmProblem),
}
"""The failures of each protocol, by the tag of its routes."""


class TranslatedRoute(StrictRoute):
    """A route whose failures have the shape of its protocol."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_shape(request: Request) -> Response:
            try:
                return await handle(request)
            except BaseException as error:
                # A panic of a native library is no `Exception`, and a failure inside can look like
                # a cancellation.
                if _ends_the_request(error):
                    raise
                return self.answer_failure(request.scope, error)

        return handle_in_shape

    def check_query(self, request: Request) -> None:
        """Accept all query parameters, as the other servers do."""

    def answer_failure(self, scope: Scope, error: BaseException) -> Response:
        """Answer an error in the other server's shape, and log an unforeseen one."""
        request_id = request_id_of(scope)
        if not isinstance(error, (NunatakError, RequestValidationError)):
            logger.error("request %s failed (%s)", request_id, type(error).__name__, exc_info=error)
        (protocol,) = self.tags
        problem = problem_of(error, request_id=request_id)
        return FAILURES[str(protocol)].response(problem, headers=headers_of(error))


def _ends_the_request(error: BaseException) -> bool:
    """Return whether an error comes from outside: the caller has gone, or the process ends."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def router_of(
    protocol: str, *, prefix: str = "", route_class: type[TranslatedRoute] = TranslatedRoute
) -> Router:
    model = FAILURES[protocol].model
    described: dict[int | str, dict[str, Any]] = {"default": {"description": "A refusal"}}
    if model is not None:
        refusal = {"description": "A refusal", "model": model}
        described = {"default": refusal, 422: refusal}
    return Router(prefix=prefix, route_class=route_class, tags=[protocol], responses=described)

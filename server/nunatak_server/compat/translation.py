"""Shared parts of the translators: routes, failures in the other server's shape, common calls."""

import asyncio
import logging
import struct
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, ClassVar, Final

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, WithJsonSchema
from starlette.types import Scope

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import MAX_ITEMS, Message, Text
from nunatak_model import Backbone
from nunatak_server.http.access import caller_of
from nunatak_server.http.endpoints import (
    RequestOptions,
    catalog_of,
    reference_text,
    runtime_of,
)
from nunatak_server.http.limits import StrictRoute
from nunatak_server.http.pages import WHOLE_REFERENCE
from nunatak_server.http.problems import (
    headers_of,
    problem_of,
    problem_of_invalid,
    problem_of_unforeseen,
)
from nunatak_server.http.replies import read_headers, timing_headers
from nunatak_server.http.state import request_id_of
from nunatak_server.predict.types import EmbeddingRequest, Embeddings

logger = logging.getLogger(__name__)

Problem = Mapping[str, Any]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
ModelName = Annotated[str, WithJsonSchema(WHOLE_REFERENCE)]
"""The field that names a task: `name`, `name@alias` or `name/3`."""


class TranslatedRoute(StrictRoute):
    """A route whose failures have the shape for the other server's clients."""

    @classmethod
    def shape(cls, problem: Problem) -> dict[str, Any]:
        """Return a problem in the other server's shape."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler of the base class."""
        handle = super().get_route_handler()

        async def handle_in_shape(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                problem = problem_of_invalid(error, request_id=request_id_of(request.scope))
                return self._shaped(problem, headers={})
            except NunatakError as error:
                return self.answer_failure(request.scope, error)
            except BaseException as error:
                # A panic of a native library is no `Exception`, and a failure inside can look like
                # a cancellation.
                if _ends_the_request(error):
                    raise
                return self._answer_unforeseen(request.scope, error)

        return handle_in_shape

    def _answer_unforeseen(self, scope: Scope, error: BaseException) -> Response:
        """Log an unexpected failure once, and answer it in the other server's shape."""
        request_id = request_id_of(scope)
        logger.error("request %s failed (%s)", request_id, type(error).__name__, exc_info=error)
        return self._shaped(problem_of_unforeseen(request_id=request_id), headers={})

    def check_query(self, request: Request) -> None:
        """Accept all query parameters, as the other servers do."""

    def answer_failure(self, scope: Scope, error: NunatakError) -> Response:
        """Answer a request with an error of Nunatak, in the other server's shape."""
        problem = problem_of(error, request_id=request_id_of(scope))
        return self._shaped(problem, headers=headers_of(error))

    def _shaped(self, problem: Problem, *, headers: Mapping[str, str]) -> Response:
        return Response(
            orjson.dumps(self.shape(problem)),
            status_code=problem["status"],
            media_type="application/json",
            headers=headers,
        )


def _ends_the_request(error: BaseException) -> bool:
    """Return whether an error comes from outside: the caller has gone, or the process ends."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


class LineProblem(Message):
    """An error as one line."""

    error: str


class LineRoute(TranslatedRoute):
    """A route whose failures are one line, as in several protocols."""

    @classmethod
    def shape(cls, problem: Problem) -> dict[str, Any]:
        """Return a problem as one line."""
        return {"error": explained(problem)}


class GuardRoute(LineRoute):
    """A route of a gateway's guard, whose failures are the verdict that protects.

    A gateway may let a call go on if its guard fails, and the call itself can cause a failure. So
    a failure is a verdict with the status of a success.
    """

    errors: ClassVar[frozenset[int]] = frozenset()
    """The statuses that stay errors, because no call can cause them."""

    @classmethod
    def refusal(cls, problem: Problem) -> dict[str, Any]:
        """Return the verdict that stops a call, with a problem as its reason."""
        raise NotImplementedError

    def _shaped(self, problem: Problem, *, headers: Mapping[str, str]) -> Response:
        if problem["status"] in self.errors:
            return super()._shaped(problem, headers=headers)
        verdict = orjson.dumps(self.refusal(problem))
        return Response(verdict, media_type="application/json", headers=dict(headers))


LINE_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": LineProblem},
    422: {"model": LineProblem},
}


def explained(problem: Problem) -> str:
    """Return a problem as one line, for protocols without a list of fields."""
    fields = "; ".join(f"{it['location']}: {it['message']}" for it in problem.get("errors", ()))
    return f"the request does not follow its schema: {fields}" if fields else problem["detail"]


async def find_task(request: Request, task: str, version: str | None) -> TaskManifest:
    """Return the manifest of the version that a path means.

    Raises:
        NunatakError: no such task, version or alias, or the store cannot be read.
        NunatakError: `backbone_mismatch`, the server has no backbone for the version.
    """
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    runtime_of(request).backbones.of(manifest)
    return manifest


async def embed_texts(
    request: Request,
    texts: tuple[str, ...],
    *,
    truncates: bool,
    normalises: bool,
    handling: RequestOptions,
    backbone: Backbone | None = None,
) -> tuple[Embeddings, dict[str, str]]:
    """Embed texts with a backbone, or else the default backbone.

    Returns vectors and the headers of the answer.

    Raises:
        NunatakError: the service cannot answer.
    """
    runtime = runtime_of(request)
    embeddings = await runtime.service.embed(
        EmbeddingRequest(
            inputs=texts,
            truncates=truncates,
            normalises=normalises,
            deadline_s=handling.deadline_s(runtime.settings),
            backbone=(backbone or runtime.backbone).digest,
            caller=caller_of(request.scope).name,
            priority=handling.priority,
        )
    )
    read = read_headers(embeddings.num_tokens, is_cut=embeddings.is_cut)
    return embeddings, {**timing_headers(embeddings.timings), **read}


def base64_of(vector: list[float]) -> str:
    """Return a vector as base64 of little-endian float32."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

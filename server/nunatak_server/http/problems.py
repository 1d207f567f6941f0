"""Errors as HTTP answers: one table of statuses, and one shape of a problem."""

import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

import nunatak_artifact as artifact
import nunatak_model as model
import nunatak_registry as registry
from nunatak_contract import errors as contract
from nunatak_contract.requests import Message
from nunatak_contract.wire import REQUEST_ID_HEADER
from nunatak_server import errors as server
from nunatak_server.failures import KNOWN_ERRORS, KnownError
from nunatak_server.http.state import request_id_of

PROBLEM_TYPE: Final = "application/problem+json"
MAX_ERROR_ITEMS: Final = 10
PARAMETER_PLACES: Final = frozenset({"path", "query", "header"})
TAGS: Final = frozenset({"body", "text", "pair", "list"})
"""Most levels of the tags of inputs, with the body itself."""
RETRY_AFTER_S: Final = (1, 3)
"""Bounds of a random delay, so that callers who were refused together return at different times."""

STATUS_OF: Mapping[type[Exception], HTTPStatus] = {
    contract.ContractError: HTTPStatus.INTERNAL_SERVER_ERROR,
    contract.InvalidNameError: HTTPStatus.UNPROCESSABLE_ENTITY,
    registry.RegistryError: HTTPStatus.INTERNAL_SERVER_ERROR,
    registry.InvalidManifestError: HTTPStatus.SERVICE_UNAVAILABLE,
    registry.InvalidArtifactError: HTTPStatus.SERVICE_UNAVAILABLE,
    registry.TaskNotFoundError: HTTPStatus.NOT_FOUND,
    registry.VersionNotFoundError: HTTPStatus.NOT_FOUND,
    registry.AliasNotFoundError: HTTPStatus.NOT_FOUND,
    registry.AliasConflictError: HTTPStatus.CONFLICT,
    registry.NoPreviousVersionError: HTTPStatus.CONFLICT,
    registry.VersionInUseError: HTTPStatus.CONFLICT,
    registry.InvalidCandidateError: HTTPStatus.UNPROCESSABLE_ENTITY,
    registry.CandidateNotFoundError: HTTPStatus.NOT_FOUND,
    registry.CandidateConflictError: HTTPStatus.CONFLICT,
    registry.CorruptBlobError: HTTPStatus.SERVICE_UNAVAILABLE,
    registry.StoreUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    registry.StoreReadOnlyError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.ModelError: HTTPStatus.INTERNAL_SERVER_ERROR,
    model.BackboneNotFoundError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.UnsupportedBackboneError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.CorruptBackboneError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.InvalidMethodError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.InvalidHeadError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.ParameterMismatchError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.NonFiniteParameterError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.InvalidTensorsError: HTTPStatus.SERVICE_UNAVAILABLE,
    model.LayerNotHeldError: HTTPStatus.CONFLICT,
    artifact.ArtifactError: HTTPStatus.INTERNAL_SERVER_ERROR,
    artifact.BackboneMismatchError: HTTPStatus.CONFLICT,
    artifact.UnservableTaskError: HTTPStatus.SERVICE_UNAVAILABLE,
    artifact.NoEffectError: HTTPStatus.SERVICE_UNAVAILABLE,
    artifact.ProbeFailedError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.ServerError: HTTPStatus.INTERNAL_SERVER_ERROR,
    server.InvalidSettingsError: HTTPStatus.INTERNAL_SERVER_ERROR,
    server.KeyFileError: HTTPStatus.INTERNAL_SERVER_ERROR,
    server.AccessError: HTTPStatus.FORBIDDEN,
    server.UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    server.InsufficientScopeError: HTTPStatus.FORBIDDEN,
    server.CrossSiteError: HTTPStatus.FORBIDDEN,
    server.RequestError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.InvalidHttpError: HTTPStatus.BAD_REQUEST,
    server.InvalidJsonError: HTTPStatus.BAD_REQUEST,
    server.InvalidRequestError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.BodyTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    server.ReceiveTimeoutError: HTTPStatus.REQUEST_TIMEOUT,
    server.UnsupportedMediaTypeError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    server.TooManyInputsError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.TooManyTasksError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.RequestTooLargeError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.TextTooLongError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.TooManyTokensError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.EmptyTextError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.InvalidTextError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.ModelNotFoundError: HTTPStatus.NOT_FOUND,
    server.WrongInputKindError: HTTPStatus.UNPROCESSABLE_ENTITY,
    server.UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.OverloadedError: HTTPStatus.TOO_MANY_REQUESTS,
    server.ShareExceededError: HTTPStatus.TOO_MANY_REQUESTS,
    server.DeadlineExceededError: HTTPStatus.GATEWAY_TIMEOUT,
    server.DeadlineTooShortError: HTTPStatus.GATEWAY_TIMEOUT,
    server.NotReadyError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.DrainingError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.OutOfMemoryError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.BackboneUnhealthyError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.EngineFailedError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.TaskError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.TaskUnhealthyError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.TaskDoesNotFitError: HTTPStatus.SERVICE_UNAVAILABLE,
    server.TaskInUseError: HTTPStatus.CONFLICT,
    server.TaskPinnedError: HTTPStatus.CONFLICT,
}

UNREAD_REST: Final = (
    server.BodyTooLargeError,
    server.InvalidHttpError,
    server.ReceiveTimeoutError,
)
CODE_OF_STATUS: Mapping[int, str] = {
    HTTPStatus.NOT_FOUND: "route_not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
}

logger = logging.getLogger(__name__)


def problem_of(error: KnownError, *, request_id: str | None) -> dict[str, Any]:
    """Describe an error of Nunatak; its message goes to the caller."""
    return _problem(error.code, STATUS_OF[type(error)], _detail(error), request_id)


def problem_of_invalid(error: RequestValidationError, *, request_id: str | None) -> dict[str, Any]:
    """Describe a request that does not follow its schema."""
    problem = _problem(
        server.InvalidRequestError.code,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "the request does not follow its schema; see `errors`, and /docs for the schema",
        request_id,
    )
    return {**problem, "errors": error_items(error.errors())}


def problem_response(scope: Scope, error: KnownError) -> Response:
    """Answer the request of a scope with an error of Nunatak."""
    problem = problem_of(error, request_id=request_id_of(scope))
    return _response(problem, headers=headers_of(error))


def _detail(error: KnownError) -> str:
    if isinstance(error, contract.InvalidNameError):
        # The value is no name and may be anything, so the message does not repeat it.
        return f"{error.kind} must be {error.expected}"
    return str(error)


async def _answer_known(request: Request, error: KnownError) -> Response:
    return problem_response(request.scope, error)


async def _answer_invalid(request: Request, error: RequestValidationError) -> Response:
    return _response(problem_of_invalid(error, request_id=request_id_of(request.scope)))


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    code = CODE_OF_STATUS.get(status, "http_error")
    detail = f"{status.phrase}; /docs lists the routes"
    problem = _problem(code, status, detail, request_id_of(request.scope))
    return _response(problem, headers=error.headers)


async def _answer_unforeseen(request: Request, error: Exception) -> Response:
    """Answer an unexpected failure; the transport logs its origin.

    The framework calls this function outside of all layers, and sends nothing if an answer has
    begun.
    """
    request_id = request_id_of(request.scope)
    logger.error("request %s failed (%s)", request_id, type(error.__cause__ or error).__name__)
    detail = "the server failed; its log has details under the request id"
    problem = _problem("internal_error", HTTPStatus.INTERNAL_SERVER_ERROR, detail, request_id)
    return _response(problem, headers={REQUEST_ID_HEADER: request_id} if request_id else None)


ANSWERS: Final[dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]]] = {
    RequestValidationError: _answer_invalid,
    HTTPException: _answer_http_error,
    **dict.fromkeys(KNOWN_ERRORS, _answer_known),
    Exception: _answer_unforeseen,
}
"""The framework's handlers, which answer each failure with a problem."""


def error_items(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the wrong fields and the reasons, and never the values."""
    return [
        {"location": _location(error["loc"]), "message": str(error["msg"])[:200]}
        for error in errors[:MAX_ERROR_ITEMS]
    ]


def _location(path: Sequence[str | int]) -> str:
    if path[0] in PARAMETER_PLACES:
        # Outside of the body, only parameters of the route are checked.
        return ".".join(map(str, path))
    return ".".join(map(_step_in_body, path))


def _step_in_body(step: str | int) -> str:
    # Keys of the body are also the caller's text, so only our own names are repeated.
    return str(step) if isinstance(step, int) or step in _our_names() else "?"


@cache
def _our_names() -> frozenset[str]:
    """Return the names that a message may repeat: the body, the tags of inputs, and all fields."""
    messages = [Message]
    for message in messages:
        messages += message.__subclasses__()
    fields = (name for message in messages for name in message.model_fields)
    return TAGS.union(fields)


def _problem(code: str, status: HTTPStatus, detail: str, request_id: str | None) -> dict[str, Any]:
    return {
        "type": f"urn:nunatak:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": int(status),
        "detail": detail,
        "code": code,
        "request_id": request_id,
    }


def headers_of(error: KnownError) -> dict[str, str]:
    """Return the headers for the caller's transport: the time of a retry, the connection's end."""
    if isinstance(error, server.OverloadedError):
        return {"retry-after": str(error.retry_after_s)}
    if STATUS_OF[type(error)] is HTTPStatus.SERVICE_UNAVAILABLE:
        return {"retry-after": str(random.randint(*RETRY_AFTER_S))}  # noqa: S311 - no secret
    if isinstance(error, server.AccessError):
        # Refused before the body was read. The rest of the body must not keep the connection busy.
        return _challenge(error) | {"connection": "close"}
    if isinstance(error, UNREAD_REST):
        # The rest of the request is never read, so the connection cannot be used again.
        return {"connection": "close"}
    return {}


def _challenge(error: server.AccessError) -> dict[str, str]:
    """Return the header that asks for a key, if a key would help (RFC 6750, section 3)."""
    realm = 'Bearer realm="nunatak"'
    match error:
        case server.InsufficientScopeError(scope=scope):
            return {"www-authenticate": f'{realm}, error="insufficient_scope", scope="{scope}"'}
        case server.UnauthenticatedError(was_presented=True):
            return {"www-authenticate": f'{realm}, error="invalid_token"'}
        case server.UnauthenticatedError():
            return {"www-authenticate": realm}
        case _:
            return {}


def _response(problem: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(problem),
        status_code=problem["status"],
        media_type=PROBLEM_TYPE,
        headers=dict(headers or {}),
    )

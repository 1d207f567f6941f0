"""From errors to HTTP: the one shape of a problem."""

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

from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.problems import REASONS, names_of
from nunatak_contract.record import message_text
from nunatak_contract.requests import Message
from nunatak_contract.wire import REQUEST_ID_HEADER
from nunatak_server.http.access import request_id_of, sharing_headers

PROBLEM_TYPE: Final = "application/problem+json"
MAX_ERROR_ITEMS: Final = 10
PARAMETER_PLACES: Final = frozenset({"path", "query", "header"})
TAGS: Final = frozenset({"body", "text", "pair", "list"})
"""Most levels of the tags of inputs, with the body itself."""
RETRY_AFTER_S: Final = (1, 3)
"""Bounds of a random delay, so that callers who were refused together return at different times."""

CLOSING: Final = frozenset(
    {
        "unauthenticated",
        "invalid_token",
        "insufficient_scope",
        "cross_site",
        "body_too_large",
        "invalid_http",
        "receive_timeout",
    }
)
"""The rest of these requests is never read, so their connection cannot be used again."""
CODE_OF_STATUS: Mapping[int, str] = {404: "route_not_found", 405: "method_not_allowed"}

logger = logging.getLogger(__name__)


def problem_of(error: BaseException, *, request_id: str | None) -> dict[str, Any]:
    """Return what a caller learns of an error; of an unforeseen one only where to look."""
    match error:
        case NunatakError():
            problem = _problem(error.code, REASONS[error.code].status, _detail(error), request_id)
            return problem if error.position is None else {**problem, "position": error.position}
        case RequestValidationError():
            detail = (
                "the request does not follow its schema; see `errors`, and /docs for the schema"
            )
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            problem = _problem("invalid_request", status, detail, request_id)
            return {**problem, "errors": error_items(error.errors())}
        case _:
            detail = "the server failed; its log has details under the request id"
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return _problem("internal_error", status, detail, request_id)


def problem_response(scope: Scope, error: Exception) -> Response:
    request_id = request_id_of(scope)
    if isinstance(error, NunatakError) and error.code == "store_unavailable":
        logger.warning("request %s: %s", request_id, error)
    return _response(problem_of(error, request_id=request_id), headers=headers_of(error))


def code_of(error: Exception) -> str:
    """Return the code of the problem that answers an error."""
    return problem_of(error, request_id=None)["code"]


def _detail(error: NunatakError) -> str:
    if isinstance(error, InvalidNameError):
        # The value is no name and may be anything, so the message does not repeat it.
        return f"{error.kind} must be {error.expected}"
    if error.code == "store_unavailable":
        # The driver's reason names host, user and address of the database.
        return "the registry cannot be read or written now; the server's log has the reason"
    return str(error)


async def _answer_known(request: Request, error: NunatakError | RequestValidationError) -> Response:
    return problem_response(request.scope, error)


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    code = CODE_OF_STATUS.get(status, "http_error")
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    told = f"this route accepts {headers['Allow']}" if "Allow" in headers else status.phrase
    problem = _problem(
        code, status, f"{told}; /docs lists the routes", request_id_of(request.scope)
    )
    return _response(problem, headers=headers)


async def _answer_unforeseen(request: Request, error: Exception) -> Response:
    """Answer an unexpected failure; the transport logs its origin.

    The framework calls this function outside of all layers, and sends nothing if an answer has
    begun.
    """
    request_id = request_id_of(request.scope)
    logger.error("request %s failed (%s)", request_id, type(error.__cause__ or error).__name__)
    problem = problem_of(error, request_id=request_id)
    named = {REQUEST_ID_HEADER: request_id} if request_id else {}
    return _response(problem, headers={**named, **sharing_headers(request.scope)})


ANSWERS: Final[dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]]] = {
    RequestValidationError: _answer_known,
    HTTPException: _answer_http_error,
    NunatakError: _answer_known,
    Exception: _answer_unforeseen,
}
"""The framework's handlers, which answer each failure with a problem."""


def error_items(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the wrong fields and the reasons, and never the values."""
    return [
        {"location": _location(error["loc"]), "message": message_text(error)[:200]}
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
        **names_of(code),
        "status": int(status),
        "detail": detail,
        "code": code,
        "request_id": request_id,
    }


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers for the caller's transport: the time of a retry, the connection's end."""
    if not isinstance(error, NunatakError):
        return {}
    if "retry_after_s" in error.fields:
        wait_s = error.fields["retry_after_s"]
        return {} if wait_s is None else {"retry-after": str(wait_s)}
    if REASONS[error.code].status is HTTPStatus.SERVICE_UNAVAILABLE:
        return {"retry-after": str(random.randint(*RETRY_AFTER_S))}  # noqa: S311 - no secret
    if error.code in CLOSING:
        return {**_challenge(error), "connection": "close"}
    return {}


def _challenge(error: NunatakError) -> dict[str, str]:
    """Return the header that asks for a key, if a key would help (RFC 6750, section 3)."""
    realm = 'Bearer realm="nunatak"'
    match error.code:
        case "insufficient_scope":
            scope = error.fields["scope"]
            return {"www-authenticate": f'{realm}, error="insufficient_scope", scope="{scope}"'}
        case "invalid_token":
            reason = error.fields["reason"]
            described = f'error="invalid_token", error_description="{reason}"'
            return {"www-authenticate": f"{realm}, {described}"}
        case "unauthenticated" if error.fields["was_presented"]:
            return {"www-authenticate": f'{realm}, error="invalid_token"'}
        case "unauthenticated":
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

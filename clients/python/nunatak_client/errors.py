"""Errors of the client; every class derives from `NunatakClientError`.

- `InvalidInputError`: an argument that cannot be sent; nothing was sent.
- `ConnectionFailedError`: no answer: refused, reset, unreachable or timed out.
- `InvalidResponseError`: the answer does not follow the contract.
- `WrongHeadError`: the answer of this kind of task does not have the wanted part.
- `ApiError`: the server refused the request; `code` is its stable name for the reason.
  - `AuthenticationError`, 401: no API key, or an invalid key.
  - `PermissionDeniedError`, 403: the key does not allow the request.
  - `InvalidRequestError`, 400, 405, 413, 415, 422: the request has an error.
  - `NotFoundError`, 404: no such task, version or alias.
  - `ConflictError`, 409: the state differs from the request's expectation.
  - `OverloadedError`, 429: too many requests; see `retry_after_s`.
  - `UnavailableError`, 503: not available now; see `retry_after_s`.
  - `DeadlineExceededError`, 504: the deadline passed before the answer was ready.
"""

from collections.abc import Mapping

from nunatak_contract.errors import NunatakError


class NunatakClientError(NunatakError):
    """Base of every error this package raises on purpose."""


class InvalidInputError(NunatakClientError):
    """An argument that cannot be sent; nothing was sent."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_input", problem=problem)


class ConnectionFailedError(NunatakClientError):
    """No answer arrived: the connection was refused, broke or timed out."""

    def __init__(self, problem: str) -> None:
        super().__init__("connection_failed", problem=problem)


class InvalidResponseError(NunatakClientError):
    """The answer does not follow the contract: another server, or a proxy in between."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_response", problem=problem)


class WrongHeadError(NunatakClientError):
    """The answer of this kind of task does not have the wanted part."""

    def __init__(self, head: str, wanted: str) -> None:
        super().__init__("wrong_head", head=head, wanted=wanted)


class ApiError(NunatakClientError):
    """The server refused the request and gave the reason.

    Attributes:
        code: The server's stable name for the reason, such as `task_not_found`.
        status: The HTTP status.
        detail: The reason in words.
        request_id: The id of the request in the server's log.
        retry_after_s: Seconds after which the server suggests another attempt.
    """

    def __init__(
        self,
        *,
        code: str,
        status: int,
        detail: str,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # Only an error of the server needs the server's log.
        trail = f" (request {request_id})" if request_id and status >= 500 else ""
        super().__init__("api_error", detail=detail, trail=trail)
        self.code = code
        self.status = status
        self.detail = detail
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequestError(ApiError):
    """The request has an error; another attempt will not help."""


class AuthenticationError(ApiError):
    """The server needs an API key, and got none or an invalid key."""


class PermissionDeniedError(ApiError):
    """The API key is valid, but does not allow the request."""


class NotFoundError(ApiError):
    """No such task, version or alias."""


class ConflictError(ApiError):
    """The state of the server differs from the request's expectation; read the state again."""


class OverloadedError(ApiError):
    """The server is overloaded; `retry_after_s` suggests the next attempt."""


class UnavailableError(ApiError):
    """The server, or this task, cannot answer now."""


class DeadlineExceededError(ApiError):
    """The deadline passed before the answer was ready."""


_CLASS_OF_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    405: InvalidRequestError,
    409: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def error_class(status: int) -> type[ApiError]:
    """The class of error of an HTTP status."""
    return _CLASS_OF_STATUS.get(status, ApiError)

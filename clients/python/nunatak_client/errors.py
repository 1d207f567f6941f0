"""Errors of the client.

NunatakClientError
+-- InvalidInputError           an argument that cannot be sent; nothing was sent
+-- ConnectionFailedError       no answer: refused, reset, unreachable or timed out
+-- InvalidResponseError        an answer that is not the one the contract promises
+-- WrongHeadError              a part of an answer that a task of this kind does not give
+-- ApiError                    the server refused; `code` is its stable name for the reason
    +-- AuthenticationError     401: no API key, or none that is valid
    +-- PermissionDeniedError   403: the key is not for this
    +-- InvalidRequestError     400, 405, 413, 415, 422: the request itself is at fault
    +-- NotFoundError           404: no such task, version or alias
    +-- ConflictError           409: the state is not what the request expects
    +-- OverloadedError         429: too much at once; see `retry_after_s`
    +-- UnavailableError        503: not now; see `retry_after_s` where the server knows
    +-- DeadlineExceededError   504: the deadline passed before the answer was ready
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
    """No answer came: the connection was refused, broke or timed out."""

    def __init__(self, problem: str) -> None:
        super().__init__("connection_failed", problem=problem)


class InvalidResponseError(NunatakClientError):
    """The answer does not follow the contract: another server, or a proxy in between."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_response", problem=problem)


class WrongHeadError(NunatakClientError):
    """A part of an answer was read that a task of this kind does not give."""

    def __init__(self, head: str, wanted: str) -> None:
        super().__init__("wrong_head", head=head, wanted=wanted)


class ApiError(NunatakClientError):
    """The server refused the request and said why.

    Attributes:
        code: The server's stable name for the reason, such as `task_not_found`.
        status: The HTTP status.
        detail: The reason in words.
        request_id: What to search for in the server's log.
        retry_after_s: Seconds after which the server suggests another try.
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
        # Only a fault of the server needs its log; a fault of the caller explains itself.
        trail = f" (request {request_id})" if request_id and status >= 500 else ""
        super().__init__("api_error", detail=detail, trail=trail)
        self.code = code
        self.status = status
        self.detail = detail
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequestError(ApiError):
    """The request itself is at fault; sending it again will not help."""


class AuthenticationError(ApiError):
    """The server wants an API key, and got none or one that is not valid now."""


class PermissionDeniedError(ApiError):
    """The API key is valid, but not for this."""


class NotFoundError(ApiError):
    """No such task, version or alias."""


class ConflictError(ApiError):
    """The state of the server is not what the request expects; look again, then decide."""


class OverloadedError(ApiError):
    """The server has too much to do; `retry_after_s` says when to come back."""


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
    """The class of error that an HTTP status stands for."""
    return _CLASS_OF_STATUS.get(status, ApiError)

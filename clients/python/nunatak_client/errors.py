"""Errors of the client; every class derives from `NunatakClientError`."""

from collections.abc import Mapping

from nunatak_contract.enums import HeadKind
from nunatak_contract.errors import NunatakError, place_of_input


class NunatakClientError(NunatakError):
    """Base of every error this package raises on purpose."""


class InvalidInputError(NunatakClientError):
    """An argument that cannot be sent; nothing was sent."""

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__("invalid_input", problem=problem, position=position)


class ConnectionFailedError(NunatakClientError):
    """No answer arrived: the connection was refused, broke or timed out."""

    def __init__(self, problem: str) -> None:
        super().__init__("connection_failed", problem=problem)


class InvalidResponseError(NunatakClientError):
    """The answer does not follow the contract: another server, or a proxy in between."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_response", problem=problem)


PROPERTIES: Mapping[HeadKind, str] = {
    HeadKind.SEQUENCE_CLASSIFICATION: "predicted",
    HeadKind.TOKEN_CLASSIFICATION: "entities",
    HeadKind.QUESTION_ANSWERING: "answers",
    HeadKind.RANKING: "ranking",
}
"""The property of an answer that holds what a task of each kind says."""


class WrongHeadError(NunatakClientError):
    """The answer of this kind of task does not have the wanted part."""

    def __init__(self, head: str, wanted: str) -> None:
        super().__init__("wrong_head", head=head, wanted=wanted, instead=PROPERTIES[HeadKind(head)])


class ApiError(NunatakClientError):
    """The server refused the request and gave the reason.

    Attributes:
        code: The server's stable name for the reason, such as `task_not_found`.
        status: The HTTP status.
        detail: The reason in words.
        position: The place of the refused input among the inputs, from 0.
        request_id: The id of the request in the server's log.
        retry_after_s: Seconds after which the server suggests another attempt.
    """

    def __init__(
        self,
        *,
        code: str,
        status: int,
        detail: str,
        position: int | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # Only an error of the server needs the server's log.
        trail = f" (request {request_id})" if request_id and status >= 500 else ""
        detail = detail.removeprefix(place_of_input(position))
        super().__init__("api_error", detail=detail, trail=trail, position=position)
        self.code = code
        self.status = status
        self.detail = detail
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequestError(ApiError):
    """400, 405, 413, 415, 422: the request has an error; another attempt will not help."""


class AuthenticationError(ApiError):
    """401: the server needs an API key, and got none or an invalid key."""


class PermissionDeniedError(ApiError):
    """403: the API key is valid, but does not allow the request."""


class NotFoundError(ApiError):
    """404: no such task, version or alias."""


class ConflictError(ApiError):
    """409: the state of the server differs from the request's expectation; read the state again."""


class OverloadedError(ApiError):
    """429: the server is overloaded; `retry_after_s` suggests the next attempt."""


class UnavailableError(ApiError):
    """503: the server, or this task, cannot answer now."""


class DeadlineExceededError(ApiError):
    """504: the deadline passed before the answer was ready."""


_CLASS_OF_STATUS: Mapping[int, type[ApiError]] = {
    **dict.fromkeys((400, 405, 413, 415, 422), InvalidRequestError),
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def error_class(status: int) -> type[ApiError]:
    """The class of error of an HTTP status."""
    return _CLASS_OF_STATUS.get(status, ApiError)

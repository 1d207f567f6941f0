"""Errors of what a caller sent."""

from collections.abc import Sequence

from nunatak_server.errors.base import ServerError


class RequestError(ServerError):
    """Base: what the caller sent cannot be answered as it stands."""

    code = "invalid_request"


class InvalidHttpError(RequestError):
    """What came cannot be read as a request, or its head is beyond the limits."""

    code = "invalid_http"

    def __init__(self, *, max_headers: int, max_head_bytes: int) -> None:
        self.max_headers = max_headers
        self.max_head_bytes = max_head_bytes
        super().__init__(
            "this cannot be read as an HTTP/1.1 request with a head of at most "
            f"{max_headers} headers and {max_head_bytes} bytes; the connection is closed"
        )


class InvalidJsonError(RequestError):
    """The body is not strict JSON in UTF-8."""

    code = "invalid_json"

    def __init__(self) -> None:
        super().__init__(
            "the body must be JSON in UTF-8 (RFC 8259: no NaN, no Infinity, no lone surrogates), "
            "and no object may name a field twice"
        )


class InvalidRequestError(RequestError):
    """A well-formed request with an impossible value."""


class BodyTooLargeError(RequestError):
    """More bytes than the server takes, whether declared or counted."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the body may have at most {limit_bytes} bytes; send fewer texts")


class ReceiveTimeoutError(RequestError):
    """The body did not arrive in time."""

    code = "receive_timeout"

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"the body must arrive within {limit_s:g} seconds")


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"

    def __init__(self) -> None:
        super().__init__("the body must be declared as 'content-type: application/json'")


class TooManyInputsError(RequestError):
    """More texts than one request may carry."""

    code = "too_many_inputs"

    def __init__(self, count: int, limit: int) -> None:
        self.count = count
        self.limit = limit
        super().__init__(
            f"a request carries at most {limit} inputs, documents of queries included, "
            f"got {count}; split it"
        )


class TooManyTasksError(RequestError):
    """More tasks than one request may name."""

    code = "too_many_tasks"

    def __init__(self, count: int, limit: int) -> None:
        self.count = count
        self.limit = limit
        super().__init__(f"a request names at most {limit} tasks, got {count}; split it")


class RequestTooLargeError(RequestError):
    """More work than one request may bring: no queue would leave room for others beside it."""

    code = "request_too_large"

    def __init__(self, num_tokens: float, limit: float, *, holder: str) -> None:
        self.num_tokens = num_tokens
        self.limit = limit
        super().__init__(
            f"the rows of one request for one {holder} may take {limit:.0f} tokens of the queue, "
            f"got {num_tokens:.0f}; ask fewer texts or fewer tasks at a time"
        )


class TextTooLongError(RequestError):
    """More characters than one text may have; checked before any tokenization."""

    code = "text_too_long"

    def __init__(self, position: int, num_chars: int, limit_chars: int) -> None:
        self.position = position
        self.num_chars = num_chars
        self.limit_chars = limit_chars
        super().__init__(
            f"input {position} has {num_chars} characters, at most {limit_chars} are read; "
            "send the part that matters"
        )


class TooManyTokensError(RequestError):
    """A text of more tokens than are read at once, where long texts are refused."""

    code = "too_many_tokens"

    def __init__(self, position: int, num_tokens: int, limit: int) -> None:
        self.position = position
        self.num_tokens = num_tokens
        self.limit = limit
        super().__init__(
            f"text {position} has {num_tokens} tokens, at most {limit} are read at once, and "
            "on_long is refuse; shorten the text, or ask for on_long windows or cut, or for "
            "truncation, where the route offers it"
        )


class EmptyTextError(RequestError):
    """A text with nothing to read in it."""

    code = "empty_text"

    def __init__(self, position: int) -> None:
        self.position = position
        super().__init__(f"input {position} is empty or only white space; leave it out")


class InvalidTextError(RequestError):
    """A text that no tokenizer can take."""

    code = "invalid_text"

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"input {position} contains {reason}; remove it")


class ModelNotFoundError(RequestError):
    """An embedding model other than the backbone."""

    code = "model_not_found"

    def __init__(self, served: str) -> None:
        self.served = served
        super().__init__(
            f"the one embedding model here is {served!r}; tasks are asked at /v1/tasks"
        )


class WrongInputKindError(RequestError):
    """An input of a kind that the task's head does not answer; other tasks of the request may."""

    code = "wrong_input_kind"

    def __init__(self, position: int, kind: str, *, head: str, wanted: Sequence[str]) -> None:
        self.position = position
        self.kind = kind
        self.head = head
        self.wanted = tuple(wanted)
        super().__init__(
            f"input {position} is a {kind}, a {head.replace('_', ' ')} task answers "
            f"{' or '.join(wanted)}; send what it reads, or ask another task"
        )

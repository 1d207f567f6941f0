"""The errors of the server, in three branches below `ServerError`.

- `AccessError`: the key of the caller does not allow the request.
- `RequestError`: the request itself cannot be answered.
- `UnavailableError` and `TaskError`: the server, or one task version, cannot serve now.

Each error has a stable `code`. Messages may go to callers.

    ServerError
        InvalidSettingsError
        KeyFileError
        AccessError
            UnauthenticatedError
            InsufficientScopeError
            CrossSiteError
        RequestError
            InvalidHttpError
            InvalidJsonError
            InvalidRequestError
            BodyTooLargeError
            ReceiveTimeoutError
            UnsupportedMediaTypeError
            TooManyInputsError
            TooManyTasksError
            RequestTooLargeError
            TextTooLongError
            TooManyTokensError
            EmptyTextError
            InvalidTextError
            ModelNotFoundError
            WrongInputKindError
        UnavailableError
            OverloadedError
                ShareExceededError
            DeadlineExceededError
                DeadlineTooShortError
            NotReadyError
            DrainingError
            EngineFailedError
            OutOfMemoryError
            BackboneUnhealthyError
        TaskError
            TaskUnhealthyError
            TaskDoesNotFitError
            TaskInUseError
            TaskPinnedError
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class ServerError(Exception):
    """Base of every error that this package raises."""

    code: ClassVar[str] = "server_error"


class InvalidSettingsError(ServerError):
    """The settings contradict each other or do not fit the machine."""

    code = "invalid_settings"


class KeyFileError(ServerError):
    """The file of API keys cannot be read, trusted or changed."""

    code = "invalid_key_file"

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the file of API keys {path}: {reason}")


class AccessError(ServerError):
    """Base: the caller has no permission for the request."""

    code = "access_denied"


class UnauthenticatedError(AccessError):
    """The key is missing or invalid. The message is the same for every reason."""

    code = "unauthenticated"

    def __init__(self, *, was_presented: bool) -> None:
        self.was_presented = was_presented
        super().__init__(
            "the request needs a valid API key; send it as 'Authorization: Bearer KEY' "
            "(the client and the command read NUNATAK_API_KEY)"
        )


class InsufficientScopeError(AccessError):
    """The key is valid, but lacks a scope or tasks for the request."""

    code = "insufficient_scope"

    def __init__(self, scope: str, *, spans_tasks: bool) -> None:
        self.scope = scope
        self.spans_tasks = spans_tasks
        tasks = " and with all tasks" if spans_tasks else ""
        super().__init__(
            f"the request needs a key with the scope '{scope}'{tasks}; ask the operator of the "
            "server"
        )


class CrossSiteError(AccessError):
    """A browser sent the request for a page of another site."""

    code = "cross_site"

    def __init__(self) -> None:
        super().__init__(
            "pages of other sites have no access to this server; send the request from a "
            "program, or from a page of this server"
        )


class RequestError(ServerError):
    """Base: the request itself cannot be answered."""

    code = "invalid_request"


class InvalidHttpError(RequestError):
    """The bytes are no HTTP request, or the head is above the limits."""

    code = "invalid_http"

    def __init__(self, *, max_headers: int, max_head_bytes: int) -> None:
        self.max_headers = max_headers
        self.max_head_bytes = max_head_bytes
        super().__init__(
            "the bytes are no HTTP/1.1 request with a head of at most "
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
    """A well-formed request has an invalid value."""


class BodyTooLargeError(RequestError):
    """The body has more bytes than the server accepts, as declared or as counted."""

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
    """The request has too many inputs."""

    code = "too_many_inputs"

    def __init__(self, count: int, limit: int) -> None:
        self.count = count
        self.limit = limit
        super().__init__(
            f"a request carries at most {limit} inputs, documents of queries included, "
            f"got {count}; split it"
        )


class TooManyTasksError(RequestError):
    """The request names too many tasks."""

    code = "too_many_tasks"

    def __init__(self, count: int, limit: int) -> None:
        self.count = count
        self.limit = limit
        super().__init__(f"a request names at most {limit} tasks, got {count}; split it")


class RequestTooLargeError(RequestError):
    """The request has too much work: it would leave no room in the queue for other requests."""

    code = "request_too_large"

    def __init__(self, num_tokens: float, limit: float, *, holder: str) -> None:
        self.num_tokens = num_tokens
        self.limit = limit
        super().__init__(
            f"the rows of one request for one {holder} may take {limit:.0f} tokens of the queue, "
            f"got {num_tokens:.0f}; ask fewer texts or fewer tasks at a time"
        )


class TextTooLongError(RequestError):
    """A text has too many characters; checked before tokenization."""

    code = "text_too_long"

    def __init__(self, position: int, num_chars: int, limit_chars: int) -> None:
        self.position = position
        self.num_chars = num_chars
        self.limit_chars = limit_chars
        super().__init__(
            f"input {position} has {num_chars} characters, at most {limit_chars} are read; send a "
            "part of it"
        )


class TooManyTokensError(RequestError):
    """A text has more tokens than the task reads at once, and `on_long` is `refuse`."""

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
    """A text is empty or only white space."""

    code = "empty_text"

    def __init__(self, position: int) -> None:
        self.position = position
        super().__init__(f"input {position} is empty or only white space; leave it out")


class InvalidTextError(RequestError):
    """A text has characters that no tokenizer accepts."""

    code = "invalid_text"

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"input {position} contains {reason}; remove it")


class ModelNotFoundError(RequestError):
    """The request names an embedding model other than the backbone."""

    code = "model_not_found"

    def __init__(self, served: str) -> None:
        self.served = served
        super().__init__(
            f"the one embedding model here is {served!r}; tasks are asked at /v1/tasks"
        )


class WrongInputKindError(RequestError):
    """The head of the task cannot answer this kind of input; other tasks may."""

    code = "wrong_input_kind"

    def __init__(self, position: int, kind: str, *, head: str, wanted: Sequence[str]) -> None:
        self.position = position
        self.kind = kind
        self.head = head
        self.wanted = tuple(wanted)
        super().__init__(
            f"input {position} is a {kind}, a {head.replace('_', ' ')} task answers "
            f"{' or '.join(wanted)}; send one of these, or ask another task"
        )


class UnavailableError(ServerError):
    """Base: the request is valid, but the server cannot answer it now."""

    code = "unavailable"


class OverloadedError(UnavailableError):
    """The queue is full, so the server refuses the request at once."""

    code = "overloaded"

    def __init__(self, resource: str, limit: int, *, retry_after_s: int) -> None:
        self.resource = resource
        self.limit = limit
        self.retry_after_s = retry_after_s
        super().__init__(
            f"the queue is full ({limit} {resource}); retry after {retry_after_s} seconds"
        )


class ShareExceededError(OverloadedError):
    """The caller, or one task of the caller, holds its share of the queue."""

    code = "share_exceeded"

    def __init__(self, resource: str, limit: int, *, holder: str, retry_after_s: int) -> None:
        super().__init__(resource, limit, retry_after_s=retry_after_s)
        self.holder = holder
        message = (
            f"this {holder} holds its share of the queue ({limit} {resource} for all); wait for "
            f"answers, or retry after {retry_after_s} seconds"
        )
        self.args = (message,)


class DeadlineExceededError(UnavailableError):
    """The deadline passed before the answer; rows that still waited are never computed."""

    code = "deadline_exceeded"

    def __init__(
        self, message: str = "the deadline passed before the answer; allow more time or send less"
    ) -> None:
        super().__init__(message)


class DeadlineTooShortError(DeadlineExceededError):
    """The deadline would pass while the request waits, so the server refuses it at once."""

    code = "deadline_too_short"

    def __init__(self, *, deadline_s: float, wait_s: float) -> None:
        self.deadline_s = deadline_s
        self.wait_s = wait_s
        super().__init__(
            f"the queued work before it takes about {1000 * wait_s:.0f} ms, the deadline is "
            f"{1000 * deadline_s:.0f} ms; allow more time or retry later"
        )


class NotReadyError(UnavailableError):
    """The server is starting, or its engine has stopped."""

    code = "not_ready"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the server is not ready: {reason}")


class DrainingError(UnavailableError):
    """The server is shutting down: it answers accepted requests and accepts no new ones."""

    code = "draining"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send the request to another one")


class EngineFailedError(UnavailableError):
    """The process cannot serve any more, for example because its device is lost."""

    code = "engine_failed"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the server has failed ({reason}); restart it")


class OutOfMemoryError(UnavailableError):
    """The device or the host has no memory left for a batch or a load."""

    code = "out_of_memory"

    def __init__(self) -> None:
        super().__init__(
            "the server had no memory left for the request; retry later, or lower "
            "NUNATAK_MAX_BATCH_TOKENS or NUNATAK_TASK_MEMORY_BYTES"
        )


class BackboneUnhealthyError(UnavailableError):
    """The forward pass of the backbone alone fails, or its outputs are not finite."""

    code = "backbone_unhealthy"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the backbone {reason}; see the log, or try another NUNATAK_DTYPE")


class TaskError(ServerError):
    """Base: one task version cannot be served; other versions can."""

    code = "task_error"


class TaskUnhealthyError(TaskError):
    """The forward pass of a version fails, or its outputs are not finite."""

    code = "task_unhealthy"

    def __init__(self, task: str, version: int, reason: str) -> None:
        self.task = task
        self.version = version
        self.reason = reason
        super().__init__(f"{task}/{version} {reason}; roll it back")


class TaskDoesNotFitError(TaskError):
    """A version needs more memory than pinned versions leave of the budget."""

    code = "task_does_not_fit"

    def __init__(
        self, task: str, version: int, *, needed_bytes: int, budget_bytes: int, pinned_bytes: int
    ) -> None:
        self.task = task
        self.version = version
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.pinned_bytes = pinned_bytes
        super().__init__(
            f"{task}/{version} needs {needed_bytes} bytes; of {budget_bytes} for task versions "
            f"{pinned_bytes} are pinned; raise NUNATAK_TASK_MEMORY_BYTES or unpin others"
        )


class TaskInUseError(TaskError):
    """A version cannot be evicted while it answers requests."""

    code = "task_in_use"

    def __init__(self, task: str, version: int, num_leases: int) -> None:
        self.task = task
        self.version = version
        self.num_leases = num_leases
        super().__init__(
            f"{task}/{version} is answering {num_leases} requests; retry when they are done"
        )


class TaskPinnedError(TaskError):
    """A version cannot be evicted while it is pinned."""

    code = "task_pinned"

    def __init__(self, task: str, version: int) -> None:
        self.task = task
        self.version = version
        super().__init__(f"{task}/{version} is pinned; unpin it before it is evicted")

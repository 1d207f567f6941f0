"""Errors of the server.

ServerError
+-- InvalidSettingsError      the settings contradict each other or the machine
+-- RequestError              what the caller sent cannot be answered as it stands
|   +-- InvalidJsonError          the body is not strict UTF-8 JSON
|   +-- InvalidRequestError       a well-formed request with an impossible value
|   +-- BodyTooLargeError         more bytes than the server takes
|   +-- ReceiveTimeoutError       the body did not arrive in time
|   +-- UnsupportedMediaTypeError the body is not declared as JSON
|   +-- TooManyInputsError        more texts than one request may carry
|   +-- TooManyTasksError         more tasks than one request may name
|   +-- TextTooLongError          more characters than one text may have
|   +-- TooManyTokensError        more tokens than are read, from a caller who wants nothing cut
|   +-- EmptyTextError            a text with nothing to read in it
|   +-- InvalidTextError          a text that no tokenizer can take
|   +-- ModelNotFoundError        an embedding model that this server does not have
|   +-- WrongInputKindError       an input of a kind that the task's head does not answer
+-- UnavailableError          the request is fine, the server cannot serve it now
|   +-- OverloadedError           too much is queued already
|   +-- DeadlineExceededError     the deadline passed first
|   +-- NotReadyError             the server is starting or its engine has stopped
|   +-- DrainingError             the server is shutting down
|   +-- EngineFailedError         the device or the engine is lost: the process must be restarted
+-- TaskError                 one task version cannot be served; its neighbours can
    +-- TaskUnhealthyError        the version computes no finite logits
    +-- TaskDoesNotFitError       the version needs more memory than there ever is for it
    +-- TaskInUseError            an eviction of a version that answers requests right now
    +-- TaskPinnedError           an eviction of a version that was pinned
"""

from collections.abc import Sequence
from typing import ClassVar


class ServerError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "server_error"


class InvalidSettingsError(ServerError):
    """The settings contradict each other or the machine they run on."""

    code = "invalid_settings"


class RequestError(ServerError):
    """Base: what the caller sent cannot be answered as it stands."""

    code = "invalid_request"


class InvalidJsonError(RequestError):
    """The body is not strict JSON in UTF-8."""

    code = "invalid_json"

    def __init__(self) -> None:
        super().__init__(
            "the body must be JSON in UTF-8 (RFC 8259: no NaN, no Infinity, no lone surrogates)"
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
    """A text of more tokens than are read, while its caller wants nothing cut."""

    code = "too_many_tokens"

    def __init__(self, position: int, limit: int) -> None:
        self.position = position
        self.limit = limit
        super().__init__(
            f"text {position} has more than {limit} tokens; shorten it, or ask for truncation "
            "where the route offers it"
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


class UnavailableError(ServerError):
    """Base: the request is fine, the server cannot serve it now."""

    code = "unavailable"


class OverloadedError(UnavailableError):
    """Too much is queued already: refused at once rather than answered late."""

    code = "overloaded"

    def __init__(self, resource: str, limit: int, *, retry_after_s: int) -> None:
        self.resource = resource
        self.limit = limit
        self.retry_after_s = retry_after_s
        super().__init__(
            f"the queue is full ({limit} {resource}); retry after {retry_after_s} seconds"
        )


class DeadlineExceededError(UnavailableError):
    """The deadline passed before the answer; rows still queued were never computed."""

    code = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the answer; allow more time or send less")


class NotReadyError(UnavailableError):
    """The server is still starting, or its engine has stopped."""

    code = "not_ready"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the server is not ready: {reason}")


class DrainingError(UnavailableError):
    """The server finishes what it has accepted and takes nothing new."""

    code = "draining"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send the request to another one")


class EngineFailedError(UnavailableError):
    """The device or the engine is lost; only a new process can serve again."""

    code = "engine_failed"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the engine has failed ({reason}); restart the server")


class TaskError(ServerError):
    """Base: one task version cannot be served; its neighbours can."""

    code = "task_error"


class TaskUnhealthyError(TaskError):
    """A version whose forward pass fails or gives logits that are not finite."""

    code = "task_unhealthy"

    def __init__(self, task: str, version: int, reason: str) -> None:
        self.task = task
        self.version = version
        self.reason = reason
        super().__init__(f"{task}/{version} {reason}; roll it back")


class TaskDoesNotFitError(TaskError):
    """A version that needs more memory than the budget has beside what is pinned."""

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
    """An eviction of a version that answers requests right now."""

    code = "task_in_use"

    def __init__(self, task: str, version: int, num_leases: int) -> None:
        self.task = task
        self.version = version
        self.num_leases = num_leases
        super().__init__(
            f"{task}/{version} is answering {num_leases} requests; retry when they are done"
        )


class TaskPinnedError(TaskError):
    """An eviction of a version that an operator wants to stay."""

    code = "task_pinned"

    def __init__(self, task: str, version: int) -> None:
        self.task = task
        self.version = version
        super().__init__(f"{task}/{version} is pinned; unpin it before it is evicted")

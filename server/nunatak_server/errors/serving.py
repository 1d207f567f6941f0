"""Errors of what cannot be served: nothing now, or one task version."""

from nunatak_server.errors.base import ServerError


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


class ShareExceededError(OverloadedError):
    """Too much of one caller, or of its requests for one task, is queued; others find room."""

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
    """The deadline passed before the answer; rows still queued were never computed."""

    code = "deadline_exceeded"

    def __init__(
        self, message: str = "the deadline passed before the answer; allow more time or send less"
    ) -> None:
        super().__init__(message)


class DeadlineTooShortError(DeadlineExceededError):
    """The deadline would pass while what is queued already is computed: refused at once."""

    code = "deadline_too_short"

    def __init__(self, *, deadline_s: float, wait_s: float) -> None:
        self.deadline_s = deadline_s
        self.wait_s = wait_s
        super().__init__(
            f"what is queued before it takes about {1000 * wait_s:.0f} ms, the deadline is "
            f"{1000 * deadline_s:.0f} ms; allow more time or retry later"
        )


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
    """What every answer needs is lost, such as the device; only a new process can serve again."""

    code = "engine_failed"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the server has failed ({reason}); restart it")


class OutOfMemoryError(UnavailableError):
    """The device, or the host, had no memory left for a batch, or to load a version."""

    code = "out_of_memory"

    def __init__(self) -> None:
        super().__init__(
            "the server had no memory left for this; retry later, or lower "
            "NUNATAK_MAX_BATCH_TOKENS or NUNATAK_TASK_MEMORY_BYTES"
        )


class BackboneUnhealthyError(UnavailableError):
    """A backbone whose forward pass fails, or gives outputs that are not finite, by itself."""

    code = "backbone_unhealthy"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the backbone {reason}; see the log, or try another NUNATAK_DTYPE")


class TaskError(ServerError):
    """Base: one task version cannot be served; its neighbours can."""

    code = "task_error"


class TaskUnhealthyError(TaskError):
    """A version whose forward pass fails or gives outputs that are not finite."""

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

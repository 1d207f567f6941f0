"""Errors of the server that code catches; all others are a `NunatakError` with another code."""

from pathlib import Path
from typing import Final

from nunatak_contract.errors import NunatakError

START_AGAIN: Final = 75
"""Exit status of the server after `EngineFailedError` (`EX_TEMPFAIL`)."""
WRONG_SETTINGS: Final = 78
"""Exit status of a server with an impossible setting, which no new start helps (`EX_CONFIG`)."""


class KeyFileError(NunatakError):
    """The file of API keys cannot be read, trusted or changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__("invalid_key_file", path=path, reason=reason)


class TooManyTokensError(NunatakError):
    """A text has more tokens than the task reads at once, and `on_long` is `refuse`."""

    def __init__(self, position: int, num_tokens: int, limit: int) -> None:
        super().__init__("too_many_tokens", position=position, num_tokens=num_tokens, limit=limit)


class OverloadedError(NunatakError):
    """The queue is full; or `holder`, the caller or a task of the caller, holds its share of it."""

    def __init__(
        self, resource: str, limit: int, *, holder: str | None = None, retry_after_s: int
    ) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(
            "overloaded" if holder is None else "share_exceeded",
            resource=resource,
            limit=limit,
            holder=holder,
            retry_after_s=retry_after_s,
        )


class UnknownSignerError(NunatakError):
    """No known key has signed the token: the keys of the issuer must be read, or read again."""

    def __init__(self, *, has_keys: bool) -> None:
        super().__init__(
            "invalid_token" if has_keys else "issuer_unavailable",
            reason="the issuer has no such key",
        )


class DeadlineExceededError(NunatakError):
    """The deadline passed before the answer; rows that still waited are never computed."""

    def __init__(
        self, problem: str = "the deadline passed before the answer; allow more time or send less"
    ) -> None:
        super().__init__("deadline_exceeded", problem=problem)


class DeadlineTooShortError(DeadlineExceededError):
    """The deadline would pass while the request waits, so the server refuses it at once."""

    def __init__(self, *, deadline_s: float, wait_s: float) -> None:
        NunatakError.__init__(
            self, "deadline_too_short", wait_ms=1000 * wait_s, deadline_ms=1000 * deadline_s
        )


class EngineFailedError(NunatakError):
    """The process cannot serve any more, for example because its device is lost."""

    def __init__(self, reason: str) -> None:
        super().__init__("engine_failed", reason=reason)


class OutOfMemoryError(NunatakError):
    """The device or the host has no memory left for a batch or a load."""

    def __init__(self) -> None:
        super().__init__("out_of_memory")


class TaskError(NunatakError):
    """Base: one task version cannot be served; other versions can."""


class TaskUnhealthyError(TaskError):
    """The forward pass of a version fails, or its outputs are not finite."""

    def __init__(self, task: str, version: int, reason: str) -> None:
        self.reason = reason
        super().__init__("task_unhealthy", task=task, version=version, reason=reason)


class TaskDoesNotFitError(TaskError):
    """A version needs more memory than pinned versions leave of the budget."""

    def __init__(
        self, task: str, version: int, *, needed_bytes: int, budget_bytes: int, pinned_bytes: int
    ) -> None:
        super().__init__(
            "task_does_not_fit",
            task=task,
            version=version,
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
            pinned_bytes=pinned_bytes,
        )


def invalid_request(problem: str) -> NunatakError:
    return NunatakError("invalid_request", problem=problem)

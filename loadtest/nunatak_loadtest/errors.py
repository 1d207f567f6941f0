"""Errors of the load test.

LoadTestError +-- InvalidSettingsError      the settings of a run contradict each other, or are out
of range +-- ProcessNotFoundError      there is no process to watch +-- ServerStartError a server
process ended before it was ready
"""

from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError


class LoadTestError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "load_test_error"


class InvalidSettingsError(LoadTestError):
    """The settings of a run contradict each other, or are out of range."""

    code = "invalid_settings"


def first_problem(error: ValidationError) -> str:
    """The first error in outside values, in one line."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}"


class ProcessNotFoundError(LoadTestError):
    """There is no process to watch."""

    code = "process_not_found"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        super().__init__(f"no process {pid} on this machine; give the pid of the server")


class ServerStartError(LoadTestError):
    """A server process ended before it was ready."""

    code = "server_start_failed"

    def __init__(self, exit_code: int, log: Path | None) -> None:
        self.exit_code = exit_code
        where = "its messages above say why" if log is None else f"{log.name} says why"
        super().__init__(f"the server ended with code {exit_code} before it was ready; {where}")

"""Errors of the command itself; every other package has its own errors.

CliError +-- MissingExtraError         an optional part of the installation is missing +--
RegistryMissingError      there is no registry at the given place +-- InvalidOptionError        the
values of options contradict each other +-- TaskFileError             a task file breaks the format
"""

from pathlib import Path
from typing import ClassVar


class CliError(Exception):
    """Base of every error that this package raises on purpose."""

    code: ClassVar[str] = "cli_error"


class MissingExtraError(CliError):
    """An optional part of the installation is missing."""

    code = "missing_extra"

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"this command needs {module!r}, which is not installed; "
            f"run: pip install 'nunatak[{extra}]'"
        )


class RegistryMissingError(CliError):
    """There is no registry at the given place."""

    code = "registry_missing"

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"no registry at {location}; publish a first task with `nunatak train`, or name "
            "another place with --registry or NUNATAK_REGISTRY"
        )


class InvalidOptionError(CliError):
    """The values of options contradict each other, or are malformed."""

    code = "invalid_option"


class TaskFileError(CliError):
    """A task file breaks the format."""

    code = "invalid_task_file"

    def __init__(self, path: Path, place: str, problem: str) -> None:
        self.path = path
        self.place = place
        self.problem = problem
        super().__init__(f"{path}: {place}: {problem}; docs/training.md shows the format")

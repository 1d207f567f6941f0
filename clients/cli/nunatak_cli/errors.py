"""Errors of the command itself; all other packages raise their own.

CliError
+-- MissingExtraError         an optional part of the installation is missing
+-- RegistryMissingError      no registry at the place to read from
+-- InvalidOptionError        options whose values make no sense
+-- TaskFileError             a file of tasks that breaks the format
"""

from pathlib import Path
from typing import ClassVar


class CliError(Exception):
    """Base of every error this package raises on purpose."""

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
    """No registry at the place to read from."""

    code = "registry_missing"

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"no registry at {location}; publish a first task with `nunatak train`, or name "
            "another place with --registry or NUNATAK_REGISTRY"
        )


class InvalidOptionError(CliError):
    """Options whose values make no sense."""

    code = "invalid_option"


class TaskFileError(CliError):
    """A file of tasks that breaks the format."""

    code = "invalid_task_file"

    def __init__(self, path: Path, place: str, problem: str) -> None:
        self.path = path
        self.place = place
        self.problem = problem
        super().__init__(f"{path}: {place}: {problem}; docs/training.md shows the format")

"""The one error that Nunatak raises on purpose: its code says why, `problems` has all codes.

A subclass exists only where code catches it, or where callers of the client may.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from nunatak_contract.problems import REASONS


class NunatakError(Exception):
    """An error with a stable code; its message may go to a caller and to the log.

    Attributes:
        code: The name of the reason, such as `task_not_found`.
        fields: The values in the message, by name.
        position: The place of the refused input among the inputs, from 0, if it is one.
    """

    def __init__(self, code: str, **fields: object) -> None:
        self.code = code
        self.fields = fields
        self.position = cast("int | None", fields.get("position"))
        super().__init__(REASONS[code].message.format_map(fields))

    def __str__(self) -> str:
        return f"{place_of_input(self.position)}{super().__str__()}"

    @property
    def problem(self) -> str:
        """The message without the place of the input."""
        return super().__str__()

    def __reduce__(self) -> tuple[object, ...]:
        """Let an error travel between processes, also one whose class has other arguments."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


def place_of_input(position: int | None) -> str:
    """Return how the message about an input begins."""
    return "" if position is None else f"input {position}: "


def invalid_option(problem: str) -> NunatakError:
    """An option or argument of the caller that cannot be followed."""
    return NunatakError("invalid_option", problem=problem)


def invalid_settings(problem: str) -> NunatakError:
    """Settings of a program that cannot be followed together, or here."""
    return NunatakError("invalid_settings", problem=problem)


class InvalidNameError(NunatakError):
    """A task name, alias or reference that breaks the grammar of `names`."""

    def __init__(self, kind: str, value: str, expected: str) -> None:
        self.kind = kind
        self.expected = expected
        super().__init__("invalid_name", kind=kind, value=value[:80], expected=expected)


class MissingExtraError(NunatakError):
    """An optional part of the installation is missing."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__("missing_extra", extra=extra, module=module)


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Name the extra to install when an import in this block does not find its module.

    Raises:
        MissingExtraError: a module of another project is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not module or module.startswith("nunatak"):
            raise
        raise MissingExtraError(extra, module) from error

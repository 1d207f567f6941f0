"""The one place where errors become lines: `error [code]: message` on standard error, exit 1.

Errors of our own trees are told by their package and their `code`, without importing the packages.
Anything else is a bug and keeps its traceback. Tracebacks, warnings and remarks of other packages
go through the console that spells out control characters, too.
"""

import logging
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager

import typer
from rich.text import Text
from typer.core import TyperGroup

from nunatak_cli.errors import MissingExtraError
from nunatak_cli.output import error_console, plain

OUR_PACKAGES = frozenset(
    {
        "nunatak_artifact",
        "nunatak_cli",
        "nunatak_client",
        "nunatak_contract",
        "nunatak_loadtest",
        "nunatak_model",
        "nunatak_registry",
        "nunatak_server",
        "nunatak_training",
    }
)


_format_warning = warnings.formatwarning


class Program(typer.Typer):
    """The command as a program, which answers for all that its process writes to standard error.

    Usage errors stay with typer: they quote only what the reader has typed.
    """

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run, and leave with status 1 after the traceback of an error that nobody foresaw."""
        warnings.formatwarning = plain_warning
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PlainFormatter())
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            error_console().print(trace, end="", soft_wrap=True)
            raise SystemExit(1) from error


class PlainFormatter(logging.Formatter):
    """Writes what packages log that have no handler of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of an event."""
        return plain(super().format(record))


def plain_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return the lines of a warning, as `warnings.formatwarning` does."""
    return plain(_format_warning(message, category, filename, lineno, line))


class FailureGroup(TyperGroup):
    """A command group that turns our own errors into one line."""

    # Typer hands in a typer.Context, but names its own private base class here.
    def invoke(self, ctx: typer.Context) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            code = error_code(error)
            if code is None:
                raise
            print_failure(code, str(error))
            raise typer.Exit(1) from error


def error_code(error: Exception) -> str | None:
    """The stable code of one of our errors; `None` for any other."""
    code: object = getattr(error, "code", None)
    package = type(error).__module__.partition(".")[0]
    return code if package in OUR_PACKAGES and isinstance(code, str) else None


def print_failure(code: str, message: str) -> None:
    """Print one line, whatever the message holds."""
    line = Text.assemble(("error", "bold red"), f" [{code}]: {plain(' '.join(message.split()))}")
    error_console().print(line, soft_wrap=True)


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Say which extra to install when an import in this block finds a module missing.

    Raises:
        MissingExtraError: a third-party module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not module or module in OUR_PACKAGES:
            raise
        raise MissingExtraError(extra, module) from error

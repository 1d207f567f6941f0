"""Errors become one line, `error [code]: message`, on standard error, with exit status 1.

Any other error than an error of Nunatak is a bug and keeps its traceback. Tracebacks, warnings and
log lines of other packages also go through the console that spells out control characters.
"""

import errno
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from pydantic import ValidationError
from rich.text import Text
from typer.core import TyperGroup

from nunatak_cli.output import remark
from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import visible_lines
from nunatak_contract.record import problems_of

_format_warning = warnings.formatwarning
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = FULL | frozenset({errno.EFBIG, errno.EIO, errno.EPIPE})
"""Errors of an output that is full, too long for a limit (`ulimit -f`), or closed."""


class Program(typer.Typer):
    """Run the command as a program, with standard error made safe for a terminal.

    Typer prints usage errors, because such errors quote only the user's own text.
    """

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the command; an error that is a bug prints its traceback and exits with status 1."""
        warnings.formatwarning = plain_warning
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal of another encoding shows a character that it lacks by its number.
                stream.reconfigure(errors="backslashreplace")
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PlainFormatter())
        try:
            with _flushed():
                return super().__call__(*args, **kwargs)
        except Exception as error:
            if isinstance(error, OSError) and (error.filename or error.errno in UNWRITABLE):
                _drop_output()
                place = f"{error.filename}: " if error.filename else ""
                remedy = "; make room, and repeat the command" * (error.errno in FULL)
                problem = f"{place}{error.strerror}{remedy}"
                failure = NunatakError("output_failed", problem=problem)
                print_failure(failure.code, str(failure))
                raise SystemExit(1) from error
            trace = "".join(traceback.format_exception(error))
            remark(trace.rstrip())
            raise SystemExit(1) from error


@contextmanager
def _flushed() -> Generator[None]:
    """Flush standard output at the end, where its errors can still be told."""
    try:
        yield
    finally:
        if sys.stdout is not None:  # closed by the caller of the command
            sys.stdout.flush()


def _drop_output() -> None:
    """Let the interpreter's last flush succeed, because the output takes no more text."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PlainFormatter(logging.Formatter):
    """Formats the log events of packages without a handler."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


def plain_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return the lines of a warning like `warnings.formatwarning`, control characters spelt out."""
    return visible_lines(_format_warning(message, category, filename, lineno, line))


class FailureGroup(TyperGroup):
    """A command group that prints an error of Nunatak as one line."""

    # Typer hands in a typer.Context, but names its own private base class here.
    def invoke(self, ctx: typer.Context) -> object:  # pyrefly: ignore[bad-override] - see above
        try:
            return super().invoke(ctx)
        except NunatakError as error:
            print_failure(error.code, str(error))
            raise typer.Exit(1) from error
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):  # whose words typer repeats
                error.message = visible_lines(problems_of(error.__cause__)[0][1])
            raise
        except KeyboardInterrupt as error:
            remark("interrupted: the command did not end; repeat it")
            raise typer.Exit(130) from error


def print_failure(code: str, message: str) -> None:
    """Print an error as one line, even if its message has several lines."""
    told = visible_lines(" ".join(message.split()))
    line = Text.assemble(("error", "bold red"), f" [{code}]: {told}")
    remark(line)


@contextmanager
def content_of(path: Path, code: str) -> Generator[None]:
    """Turn the errors of a file's content into one error with this code, at the first place."""
    try:
        yield
    except ValidationError as error:
        (place, problem), *others = problems_of(error)
        more = "".join(f"; {where}: {what}" for where, what in others)
        raise NunatakError(
            code, path=path, place=place or "file", problem=problem + more
        ) from error
    except ValueError as error:
        raise NunatakError(code, path=path, place="file", problem=str(error)) from error

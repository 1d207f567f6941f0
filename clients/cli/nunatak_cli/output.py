"""Output: tables and JSON go to standard output, remarks and errors to standard error.

No other file of this package prints. This file spells out control characters in every text, because
the text may come from a model's author, a data file or a server; also in tracebacks, warnings and
log lines of other packages.

Errors become one line, `error [code]: message`, with exit status 1. An error that is neither one of
Nunatak nor of a full machine is a bug and keeps its traceback.
"""

import errno
import io
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251 - prints here
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from nunatak_cli import INTERRUPTED
from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import counted, visible_json, visible_lines
from nunatak_contract.record import problems_of
from nunatak_rows import RowFormat

PIPE_WIDTH: Final = 10_000
"""Width of a table in a pipe, so that each row is one line for the program that reads it."""


class PlainConsole(Console):
    """A console that reads no markup in texts and spells out their control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - the signature of the base class
        return super().render_str(visible_lines(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything; only the console's own control segments reach the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else _plain_segment(segment)


def print_part(part: RenderableType) -> None:
    """Print a line or a table to standard output."""
    _print(PlainConsole(), part)


def remark(part: RenderableType) -> None:
    """Print a line or a table to standard error."""
    _print(PlainConsole(stderr=True), part)


def print_outcome(
    document: Mapping[str, object], *parts: RenderableType, as_json: bool, empty: str = ""
) -> None:
    """Print an outcome: the document for programs, or tables and lines for people.

    A table without rows is left out. `empty` is the remark if nothing is left.
    """
    if as_json:
        print_json(document)
        return
    shown = [part for part in parts if not isinstance(part, Table) or part.row_count]
    for part in shown:
        print_part(part)
    if empty and not shown:
        remark(empty)


def plain_table(*headings: str, right: Iterable[str] = ()) -> Table:
    """Return a table without lines; the columns of `right` end at the same place."""
    table = Table(box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def facts_table(facts: Mapping[str, RenderableType]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def wire_json(kind: type[BaseModel], found: object) -> dict[str, Any]:
    """Return a value in the shape that a server gives it."""
    return kind.model_validate(found).model_dump(mode="json")


def json_value(value: object) -> Any:  # noqa: ANN401 - any value of JSON
    return TypeAdapter[object](object).dump_python(value, mode="json")


def print_json(value: Mapping[str, object]) -> None:
    print(_json(value, indent=2))  # noqa: T201 - rich would wrap lines


def print_json_line(value: Mapping[str, object]) -> None:
    """Print one JSON document on one line, and flush, so that a pipe gets the line at once."""
    print(_json(value, indent=None), flush=True)  # noqa: T201 - rich would wrap lines


def print_text(value: str) -> None:
    print(visible_lines(value), end="")  # noqa: T201 - rich would wrap lines


def tell_rejected(spelt: RowFormat) -> None:
    if spelt.rejected is not None and spelt.rejected.exists():
        num_rows = len(spelt.rejected.read_bytes().splitlines())
        told = f"left out {counted(num_rows, 'row')}; the reasons are in {spelt.rejected}"
        remark(told)


def _print(out: PlainConsole, part: RenderableType) -> None:
    if isinstance(part, Table) and not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    # The terminal breaks a long line, so that a copy of the line and a pipe have it whole.
    out.print(part, soft_wrap=isinstance(part, str | Text))


def _plain_segment(segment: Segment) -> Segment:
    style = segment.style
    # The title of a panel always reads markup, and markup may hold links.
    if style is not None and style.link is not None:
        style = style.update_link(None)
    return Segment(visible_lines(segment.text), style)


def _json(value: Mapping[str, object], *, indent: int | None) -> str:
    # Other encodings lack characters, which JSON can spell out.
    is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    document = json.dumps(value, indent=indent, ensure_ascii=not is_unicode, default=_members)
    return visible_json(document)


def _members(value: object) -> object:
    # The time of a record has its offset, and not the letter Z.
    return value.isoformat() if isinstance(value, datetime) else json_value(value)


_format_warning = warnings.formatwarning
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = FULL | frozenset({errno.EFBIG, errno.EIO, errno.EPIPE})
"""Errors of an output that is full, too long for a limit (`ulimit -f`), or closed."""
NO_MEMORY = re.compile(r"OutOfMemory|MemoryError|t allocate memory|t start new thread")


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
            try:
                return super().__call__(*args, **kwargs)
            finally:
                if sys.stdout is not None:  # closed by the caller of the command
                    sys.stdout.flush()  # here, its errors can still be told
        except Exception as error:
            _tell(error)
            raise SystemExit(1) from error


def _tell(error: Exception) -> None:
    if isinstance(error, OSError) and (error.filename or error.errno in UNWRITABLE):
        _drop_output()
        place = f"{error.filename}: " if error.filename else ""
        remedy = "; make room, and repeat the command" * (error.errno in FULL)
        failure = NunatakError("output_failed", problem=f"{place}{error.strerror}{remedy}")
    elif NO_MEMORY.search(repr(error)):
        failure = NunatakError("machine_exhausted", problem=repr(error))
    else:
        remark("".join(traceback.format_exception(error)).rstrip())
        return
    print_failure(failure.code, str(failure))


def _drop_output() -> None:
    """Let the interpreter's last flush succeed, because the output takes no more text."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class PlainFormatter(logging.Formatter):
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
            remark(INTERRUPTED)
            raise typer.Exit(130) from error


def print_failure(code: str, message: str) -> None:
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

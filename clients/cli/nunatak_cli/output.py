"""Output: tables and JSON go to standard output, remarks and errors to standard error.

No other file of this package prints. This file spells out control characters in every text, because
the text may come from a model's author, a data file or a server.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251 - prints here
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from nunatak_contract.plain_text import counted, visible_json, visible_lines
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

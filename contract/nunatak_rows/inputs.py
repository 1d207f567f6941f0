"""The columns of rows: their names in a file, and the inputs that rows make."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input, Query, Question
from nunatak_rows.files import FileRow, unreadable

INPUTS: Final = (
    frozenset({"query", "documents"}),
    frozenset({"query", "document"}),
    frozenset({"question", "context"}),
    frozenset({"tokens"}),
    frozenset({"text"}),
)
"""The columns of each kind of input; a text may have the column `text_pair` too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """How files spell rows, where they differ from the default, and what becomes of bad rows."""

    text: str | None = None
    """The column that holds the text; absent: `text`."""
    label: str | None = None
    """The column that holds the label or the list of labels; absent: `label` or `labels`."""
    pair: str | None = None
    """The column that holds the second text; absent: `text_pair`, if there is one."""
    delimiter: str | None = None
    """The separator of fields in CSV and TSV files; absent: found in the header line."""
    rejected: Path | None = None
    """The file of JSON lines that takes the bad rows of examples; absent: a bad row is an error."""
    is_taught: bool = False
    """Whether the column `probabilities` holds what a teacher says, and a label may be absent."""

    @property
    def renamed(self) -> dict[str, str]:
        """The names of columns, by their usual names, where they differ."""
        named = {"text": self.text, "label": self.label, "text_pair": self.pair}
        return {usual: name for usual, name in named.items() if name is not None}

    @property
    def inputs(self) -> frozenset[str]:
        """All columns that an input may be read from."""
        return frozenset({"text_pair"}.union(*INPUTS, self.renamed.values()))

    def usual(self, row: FileRow) -> FileRow:
        """Return a row with the usual column names; its other columns keep their names."""
        renamed = self.renamed
        if not renamed or row.problem is not None:
            return row
        check_columns(renamed.values(), row.values, row.header or row.where)
        left_out = {*renamed.values(), *renamed}
        if self.label is not None:
            left_out.add("labels")
        values = {name: it for name, it in row.values.items() if name not in left_out}
        values |= {usual: row.values[name] for usual, name in renamed.items()}
        return replace(row, values=values, columns=renamed)

    def check(self, columns: Collection[str], where: str) -> None:
        """Return if rows with these columns can be inputs."""
        check_columns(self.renamed.values(), columns, where)
        if self.text is None and not any(it.issubset(columns) for it in INPUTS):
            raise unreadable(where, _no_input(columns))


def check_columns(wanted: Iterable[str], found: Collection[str], where: str) -> None:
    """Return if the wanted columns are there."""
    for column in wanted:
        if column not in found:
            shown = ", ".join(map(repr, list(found)[:20])) or "none"
            raise bad_row(where, f"has no column {column!r}; found {shown}")


def row_input(row: FileRow, spelt: RowFormat) -> Input:
    """Return the input that the columns of a row make; other columns are ignored."""
    row = spelt.usual(row)
    match row.values:
        case _ if spelt.text is not None:
            return _text_input(row)
        case {"query": _, "documents": _}:
            return Query(query=_text(row, "query"), documents=_texts(row, "documents"))
        case {"query": _, "document": _}:
            return Query(query=_text(row, "query"), documents=(_text(row, "document"),))
        case {"question": _, "context": _}:
            return Question(question=_text(row, "question"), context=_text(row, "context"))
        case {"tokens": _}:
            return " ".join(_texts(row, "tokens"))
        case {"text": _}:
            return _text_input(row)
        case _:
            raise bad_row(row.where, _no_input(row.values))


def bad_row(where: str, problem: str) -> NunatakError:
    return NunatakError("invalid_row", where=where, problem=problem)


def _no_input(columns: Iterable[str]) -> str:
    return (
        "expected the columns text (and text_pair), question and context, query and documents, or "
        f"tokens; got {', '.join(map(repr, columns)) or 'none'}; --text-column names another column"
    )


def _text_input(row: FileRow) -> Input:
    pair = row.values.get("text_pair")
    return (_text(row, "text"), _text(row, "text_pair")) if pair is not None else _text(row, "text")


def _text(row: FileRow, column: str) -> str:
    return _checked(row.values[column], row, column)


def _texts(row: FileRow, column: str) -> tuple[str, ...]:
    values = row.values[column]
    if not isinstance(values, list) or not values:
        raise bad_row(row.where, f"{row.called(column)!r} must be a list of texts")
    return tuple(_checked(value, row, column) for value in cast("list[object]", values))


def _checked(value: object, row: FileRow, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "an empty text" if isinstance(value, str) else kind_of(value)
        raise bad_row(row.where, f"{row.called(column)!r} must be a text, got {found}")
    return value


def kind_of(value: object) -> str:
    return "nothing" if value is None else type(value).__name__

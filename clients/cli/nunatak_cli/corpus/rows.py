"""The rows of files: JSON lines (plain or gzip), CSV, TSV, Parquet and plain text, one by one.

A row that cannot be read is a row with a problem, and the reader goes on with the next row. The
reader stops only where the rest of a file cannot be trusted: the file is damaged, or a quote of a
CSV file stays open over several lines.
"""

# ruff: noqa: PLC0415 - only Parquet files need pyarrow
# pyarrow ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import csv
import gzip
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self, cast

from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.inputs import Input, Query, Question, delimiter_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

READ_ROWS: Final = 1024
"""Rows of a Parquet file that are decoded at once."""


class InputFormat(StrEnum):
    """Formats of files of inputs, by file suffix."""

    JSONL = "jsonl"
    JSONL_GZ = "jsonl.gz"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    TXT = "txt"

    @property
    def family(self) -> str:
        """Formats of one family hold the same values."""
        return {"jsonl.gz": "jsonl", "tsv": "csv"}.get(self.value, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOfRows:
    """A file of inputs, and how it is read."""

    path: Path
    name: str
    """The name of the file in messages."""
    kind: InputFormat
    delimiter: str | None = None
    """Between the fields of CSV and TSV files; None: found in the header line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRow:
    """One row of a file, or the reason why it cannot be read."""

    file: str
    number: int
    """The first line of the row, or in Parquet files the row, from 1."""
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    """The columns; of a Parquet file only the columns of inputs."""
    problem: str | None = None
    batch: "RecordBatch | None" = None
    """The rows of a Parquet file around this row, with all columns."""
    index: int = 0
    """The place of the row in `batch`."""
    end: int = 0
    """The number of bytes of the file up to the end of the row; an estimate in Parquet files."""

    @property
    def where(self) -> str:
        """The place of the row for messages: `texts.csv:17`."""
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The columns that hold texts, where they have other names than usual."""

    text: str | None = None
    pair: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """All columns that an input may be read from."""
        own = {name for name in (self.text, self.pair) if name is not None}
        return frozenset(own.union(*INPUTS, {"text_pair"}))

    def usual(self, row: CorpusRow) -> Mapping[str, object]:
        """Return the values of a row under the usual names.

        Raises:
            NunatakError: `invalid_input_file`, the row lacks a named column.
        """
        if self.text is None and self.pair is None:
            return row.values
        self._check_named(row.values, row.where)
        named = {"text": self.text or "text", "text_pair": self.pair or "text_pair"}
        return {name: row.values[it] for name, it in named.items() if it in row.values}

    def check(self, columns: Collection[str], where: str) -> None:
        """Return if rows with these columns can be inputs.

        Raises:
            NunatakError: `invalid_input_file`, a column is missing.
        """
        self._check_named(columns, where)
        if self.text is None and not any(it.issubset(columns) for it in INPUTS):
            raise _unreadable(where, no_input(columns))

    def _check_named(self, columns: Collection[str], where: str) -> None:
        for column in (self.text, self.pair):
            if column is not None and column not in columns:
                raise _unreadable(where, f"has no column {column!r}")


USUAL: Final = InputColumns()
INPUTS: Final = (
    frozenset({"query", "documents"}),
    frozenset({"query", "document"}),
    frozenset({"question", "context"}),
    frozenset({"tokens"}),
    frozenset({"text"}),
)
"""The columns of each kind of input; a text may have the column `text_pair` too."""


def no_input(columns: Iterable[str]) -> str:
    """Return why rows with these columns are no inputs."""
    return (
        "expected the columns text (and text_pair), question and context, query and documents, or "
        f"tokens; got {', '.join(map(repr, columns)) or 'none'}"
    )


def format_of(file: str, name: str) -> InputFormat:
    """Return the format that the suffix of a file tells.

    Raises:
        NunatakError: `invalid_input_file`, the suffix tells no format.
    """
    for kind in InputFormat:
        if file.endswith(f".{kind}"):
            return kind
    raise NunatakError(
        "invalid_input_file",
        where=name,
        problem=f"the suffix tells no format; expected one of {', '.join(InputFormat)}",
    )


def read_rows(
    file: FileOfRows, *, columns: frozenset[str], source: BinaryIO | None = None
) -> Iterator[CorpusRow]:
    """Return the rows of a file, in order. Blank lines are no rows.

    `columns` are the columns of a Parquet file that become values. `source` is read in place of
    the file.

    Raises:
        NunatakError: `invalid_input_file`, the rest of the file cannot be read or trusted.
        MissingExtraError: a Parquet file needs the extra `training`.
    """
    if file.kind is InputFormat.PARQUET:
        with needs_extra("training"):
            import_module("pyarrow")  # a missing package is an error before any work
        return _parquet_rows(file, columns)
    return _text_rows(file, source)


def _text_rows(file: FileOfRows, source: BinaryIO | None) -> Iterator[CorpusRow]:
    try:
        with nullcontext(source) if source else file.path.open("rb") as stored:
            lines = _Lines(stored, is_packed=file.kind is InputFormat.JSONL_GZ)
            if file.kind in {InputFormat.CSV, InputFormat.TSV}:
                yield from _delimited_rows(lines, file)
            else:
                yield from _line_rows(lines, file)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _unreadable(file.name, f"cannot be read: {reason}") from error


def fixed_columns(file: FileOfRows) -> list[str] | None:
    """Return the columns of all rows of a file; None for JSON lines, whose rows may differ.

    Raises:
        NunatakError: `invalid_input_file`, the file cannot be read or has no header line.
    """
    match file.kind:
        case InputFormat.CSV | InputFormat.TSV:
            try:
                with file.path.open("rb") as stored:
                    reader = _Lines(stored, is_packed=False)
                    return _header_of(reader, file)[1]
            except OSError as error:
                raise _unreadable(file.name, f"cannot be read: {error.strerror}") from error
        case InputFormat.PARQUET:
            return list(parquet_schema(file).names)
        case _:
            return None


def parquet_schema(file: FileOfRows) -> "Schema":
    """Return the columns of a Parquet file with their types.

    Raises:
        NunatakError: `invalid_input_file`, the file cannot be read.
        MissingExtraError: pyarrow is missing.
    """
    with needs_extra("training"):
        from pyarrow import ArrowException, parquet
    try:
        return parquet.read_schema(file.path).remove_metadata()
    except (OSError, ArrowException) as error:
        raise _unreadable(file.name, f"not a readable Parquet file: {error}") from error


def row_input(values: Mapping[str, object], where: str) -> Input:
    """Return the input that the columns of a row make; other columns are ignored.

    Raises:
        NunatakError: `invalid_input_file`, the columns make no input.
    """
    match values:
        case {"query": query, "documents": documents}:
            texts = _texts(documents, "documents", where)
            return Query(query=_text(query, "query", where), documents=texts)
        case {"query": query, "document": document}:
            texts = (_text(document, "document", where),)
            return Query(query=_text(query, "query", where), documents=texts)
        case {"question": question, "context": context}:
            return Question(
                question=_text(question, "question", where),
                context=_text(context, "context", where),
            )
        case {"tokens": tokens}:
            return " ".join(_texts(tokens, "tokens", where))
        case {"text": text, "text_pair": str() as pair}:
            return _text(text, "text", where), _text(pair, "text_pair", where)
        case {"text": text}:
            return _text(text, "text", where)
        case _:
            raise _unreadable(where, no_input(values))


class _Lines:
    """The lines of a file as text, with the number of the last line.

    An iterator and no generator, because a line that is not UTF-8 must not end the file.
    """

    def __init__(self, stored: BinaryIO, *, is_packed: bool) -> None:
        self._stored = stored
        unpacked: Iterable[bytes] = gzip.GzipFile(fileobj=stored) if is_packed else stored
        self._lines = iter(unpacked)
        self.number = 0

    @property
    def position(self) -> int:
        """The number of bytes that were read; 0 if the source does not know it."""
        return self._stored.tell() if self._stored.seekable() else 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        # A byte order mark is no part of the first line.
        return line.decode("utf-8-sig" if self.number == 1 else "utf-8")


def _line_rows(lines: _Lines, file: FileOfRows) -> Iterator[CorpusRow]:
    while True:
        values: Mapping[str, object] = {}
        problem = None
        try:
            line = next(lines).rstrip("\r\n")
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            problem = _not_utf8(error)
        else:
            if not line.strip():
                continue
            if file.kind is InputFormat.TXT:
                values = {"text": line}
            else:
                values, problem = _json_object(line)
        yield CorpusRow(
            file=file.name,
            number=lines.number,
            values=values,
            problem=problem,
            end=lines.position,
        )


def _json_object(line: str) -> tuple[Mapping[str, object], str | None]:
    """Return the object that a line holds, or no columns and the problem."""
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"not a JSON object: {error}"
    if not isinstance(row, dict):
        return {}, f"expected a JSON object, got {type(row).__name__}"
    return cast("Mapping[str, object]", row), None


def _delimited_rows(lines: _Lines, file: FileOfRows) -> Iterator[CorpusRow]:
    reader, header = _header_of(lines, file)
    while True:
        first, fields, problem = lines.number + 1, list[str](), None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            problem = str(error) if isinstance(error, csv.Error) else _not_utf8(error)
            if lines.number > first:
                # The lines between may be rows of their own, which must not be lost.
                raise _unreadable(
                    f"{file.name}:{first}",
                    f"a quote stays open until line {lines.number} ({problem}); close or double it",
                ) from error
            problem = f"broken row: {problem}"
        else:
            if not fields:
                continue
            if len(fields) != len(header):
                problem = f"expected {len(header)} fields as in the header, got {len(fields)}"
        yield CorpusRow(
            file=file.name,
            number=first,
            values={} if problem else dict(zip(header, fields, strict=True)),
            problem=problem,
            end=lines.position,
        )


def _header_of(lines: _Lines, file: FileOfRows) -> "tuple[Iterator[list[str]], list[str]]":
    """Return the reader of the rows below the header line, and the columns."""
    usual = "," if file.kind is InputFormat.CSV else "\t"
    try:
        line = next((it for it in lines if it.strip()), "")
        delimiter = file.delimiter or delimiter_of(line, usual)
        reader = csv.reader(chain([line], lines), delimiter=delimiter, strict=True)
        header = next(reader, [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(f"{file.name}:1", f"the header line is broken: {error}") from error
    if not header:
        raise _unreadable(file.name, "the file is empty; expected a header line")
    if len(set(header)) != len(header):
        raise _unreadable(f"{file.name}:1", "a column name occurs twice in the header line")
    return reader, header


def _parquet_rows(file: FileOfRows, columns: frozenset[str]) -> Iterator[CorpusRow]:
    from pyarrow import ArrowException, parquet

    try:
        size = file.path.stat().st_size
        with parquet.ParquetFile(file.path) as stored:
            num_rows, number = stored.metadata.num_rows, 0
            read = [name for name in stored.schema_arrow.names if name in columns]
            for batch in stored.iter_batches(batch_size=READ_ROWS):
                found = cast("list[dict[str, object]]", batch.select(read).to_pylist())
                for index, values in enumerate(found):
                    number += 1
                    yield CorpusRow(
                        file=file.name,
                        number=number,
                        values=values,
                        batch=batch,
                        index=index,
                        end=size * number // num_rows,
                    )
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(file.name, f"not a readable Parquet file: {error}") from error


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "an empty text" if isinstance(value, str) else type(value).__name__
        raise _unreadable(where, f"{column!r} must be a text, got {found}")
    return value


def _texts(values: object, column: str, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not values:
        raise _unreadable(where, f"{column!r} must be a list of texts")
    return tuple(_text(value, column, where) for value in cast("list[object]", values))


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 ({error.reason}); convert the file to UTF-8"


def _unreadable(where: str, problem: str) -> NunatakError:
    return NunatakError("invalid_input_file", where=where, problem=problem)

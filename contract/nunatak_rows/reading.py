"""The one reader of files of rows: Parquet, JSON lines (plain or gzip), CSV, TSV and plain text.

A row of a text file that cannot be read is a row with a problem, and the reader goes on with the
next row. The reader stops only where the rest of a file cannot be trusted: the file is damaged, a
line is too long, or a quote of a CSV file stays open at the end of a line.
"""

# ruff: noqa: PLC0415 - only Parquet files need pyarrow

import csv
import gzip
import json
import math
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, Self, cast

from nunatak_contract.errors import needs_extra
from nunatak_rows.files import (
    BOMB,
    MAX_ROW_BYTES,
    FileFormat,
    FileOfRows,
    FileRow,
    check_header,
    is_bomb,
    unreadable,
)

if TYPE_CHECKING:
    from pyarrow import Array, Schema
    from pyarrow.parquet import FileMetaData

READ_ROWS: Final = 128
"""Rows that are decoded at once: few, because a small file may hold huge values."""
DELIMITED: Final = (FileFormat.CSV, FileFormat.TSV)
DELIMITERS: Final = (",", "\t", ";")
"""Between which the header line of a CSV or TSV file decides."""
EXCEL_PREFIX: Final = "sep="
CR_ALONE: Final = "lines end with CR alone; save the file with LF or CRLF"
MAX_DEPTH: Final = 500
"""Of lists and objects in a row; Python reads deeper ones, but cannot always write them again."""
MARKS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')
"""Strings, and the brackets outside of strings."""


def read_rows(file: FileOfRows, *, columns: Collection[str] | None = None) -> Iterator[FileRow]:
    """Return the rows of a file, in order. Blank lines are no rows.

    `columns` are the columns of a Parquet file that become values, and its rows then keep their
    batch; None: all columns, without batches.

    Raises:
        NunatakError: `unreadable_file`, the rest of the file cannot be read or trusted.
        MissingExtraError: a Parquet file needs the extra `training`.
    """
    if file.kind is FileFormat.PARQUET:
        with needs_extra("training"):
            import_module("pyarrow")  # a missing package is an error before any work
        return _table_rows(file, columns)
    return _text_rows(file)


def fixed_columns(file: FileOfRows) -> list[str] | None:
    """Return the columns of all rows of a file; None for JSON lines, whose rows may differ."""
    if file.kind in DELIMITED:
        return header_of(file)[0]
    return list(table_schema(file).names) if file.kind is FileFormat.PARQUET else None


def _table_rows(file: FileOfRows, columns: Collection[str] | None) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file, with the values of these columns; None: of all columns."""
    from pyarrow import parquet

    with _refused(file):
        size, unpacked, number = file.path.stat().st_size, 0, 0
        with parquet.ParquetFile(file.path) as stored:
            schema = stored.schema_arrow
            check_header(list(schema.names), file.name)
            _check_size(stored.metadata, file)
            read = [it for it in schema.names if columns is None or it in columns]
            names = class_names(schema, file.name)
            for batch in stored.iter_batches(batch_size=READ_ROWS):
                found = [_values(batch.column(it), it, file) for it in read]
                # A batch holds a text of a dictionary once, and its values hold the text each time.
                texts = sum(len(it) for own in found for it in own if isinstance(it, str))
                unpacked += max(batch.nbytes, texts)
                if is_bomb(unpacked, size):
                    raise unreadable(file.name, BOMB)
                found = [named(own, names.get(it)) for it, own in zip(read, found, strict=True)]
                for index in range(batch.num_rows):
                    number += 1
                    yield FileRow(
                        file=file.name,
                        number=number,
                        values={it: own[index] for it, own in zip(read, found, strict=True)},
                        header=file.name,
                        batch=None if columns is None else batch,
                        index=index,
                        end=size * number // stored.metadata.num_rows,
                    )


def table_schema(file: FileOfRows) -> "Schema":
    """Return the columns of a Parquet file with their types."""
    with needs_extra("training"):
        from pyarrow import parquet
    with _refused(file):
        schema = parquet.read_schema(file.path).remove_metadata()
    check_header(list(schema.names), file.name)
    return schema


def class_names(schema: "Schema", where: str) -> dict[str, list[object]]:
    """Return the names of class numbers by column, as `datasets` stores them next to a table."""
    stored = (schema.metadata or {}).get(b"huggingface", b"{}").decode(errors="replace")
    told, problem = _json_object(stored)
    if problem is not None:
        raise unreadable(where, f"the names of its classes cannot be read: {problem}")
    match cast("Any", told):
        case {"info": {"features": dict() as features}}:
            found = {name: _names_of(it) for name, it in features.items()}
            return {name: it for name, it in found.items() if it is not None}
        case _:
            return {}


def _names_of(feature: Any) -> list[object] | None:  # noqa: ANN401 - any JSON value
    match feature:
        case {"_type": "ClassLabel", "names": list() as names}:
            return names
        case {"feature": inner} | [inner]:
            return _names_of(inner)
        case _:
            return None


def named(value: Any, names: list[object] | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value, or values, with names in place of class numbers."""
    if names is None:
        return value
    if isinstance(value, list):
        return [named(it, names) for it in value]
    if not isinstance(value, int):
        return value
    # Unlabelled rows carry the class -1.
    return names[value] if 0 <= value < len(names) else None


@contextmanager
def _refused(file: FileOfRows) -> Generator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        raise unreadable(file.name, f"not a readable Parquet file: {error}") from error


def _check_size(metadata: "FileMetaData", file: FileOfRows) -> None:
    """Refuse pages that unpack to too many bytes before they are unpacked."""
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        for number in range(group.num_columns):
            chunk = group.column(number)
            if is_bomb(chunk.total_uncompressed_size, chunk.total_compressed_size):
                raise unreadable(file.name, f"the column {chunk.path_in_schema!r} {BOMB}")


def _values(column: "Array", name: str, file: FileOfRows) -> list[object]:
    """Return the values of a column as JSON has them: no NaN, and times as texts."""
    import pyarrow as pa

    if pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    try:
        values = cast("list[Any]", column.to_pylist())
    except (ValueError, OverflowError) as error:
        raise unreadable(file.name, f"the column {name!r} cannot be read: {error}") from error
    if pa.types.is_floating(column.type):
        # A number that is not equal to itself is NaN.
        return [it if it == it else None for it in values]  # noqa: PLR0124
    return values


def _text_rows(file: FileOfRows) -> Iterator[FileRow]:
    """Yield the rows of a text file. Blank lines, and rows of empty fields, are no rows."""
    with _opened(file) as lines:
        if file.kind in DELIMITED:
            yield from _delimited_rows(lines, file)
        else:
            yield from _line_rows(lines, file)


def header_of(file: FileOfRows) -> tuple[list[str], str, bool]:
    """Return the columns of a CSV or TSV file, its delimiter, and whether it has a mark (BOM)."""
    with _opened(file) as lines:
        _, header, delimiter = _header_of(lines, file)
        return header, delimiter, lines.has_mark


@contextmanager
def _opened(file: FileOfRows) -> "Generator[_Lines]":
    try:
        with nullcontext(file.source) if file.source else file.path.open("rb") as stored:
            yield _Lines(stored, file)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise unreadable(file.name, f"cannot be read: {reason}") from error


class _Lines:
    """The lines of a file as text, with the number of the last line.

    An iterator and no generator, because a line that is not UTF-8 must not end the file.
    """

    def __init__(self, stored: BinaryIO, file: FileOfRows) -> None:
        self._stored = stored
        self._name = file.name
        self._is_packed = file.kind is FileFormat.JSONL_GZ
        self._unpacked = gzip.GzipFile(fileobj=stored) if self._is_packed else stored
        self._num_bytes = 0
        self.number = 0
        self.line = b""
        self.has_mark = False

    @property
    def position(self) -> int:
        """The number of bytes that were read of the file."""
        return self._stored.tell() if self._is_packed else self._num_bytes

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self.line = self._unpacked.readline(MAX_ROW_BYTES + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._num_bytes += len(line)
        if self.number == 1 or self._is_packed or len(line) > MAX_ROW_BYTES:
            self._check(line)
        return line.decode("utf-8-sig" if self.number == 1 else "utf-8")

    def _check(self, line: bytes) -> None:
        where = f"{self._name}:{self.number}"
        if len(line) > MAX_ROW_BYTES:
            raise unreadable(where, f"a line has more than {MAX_ROW_BYTES // 2**20} MiB")
        if self._is_packed and is_bomb(self._num_bytes, self.position):
            raise unreadable(where, BOMB)
        if self.number > 1:
            return
        self.has_mark = line.startswith(BOM_UTF8)
        if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in line:
            raise unreadable(where, "the file is UTF-16 or no text; save it as UTF-8")
        if b"\n" not in line and b"\r" in line.strip():
            raise unreadable(where, CR_ALONE)


def _line_rows(lines: _Lines, file: FileOfRows) -> Iterator[FileRow]:
    while True:
        values: Mapping[str, object] = {}
        problem = None
        try:
            line = next(lines).rstrip("\r\n")
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            problem = _told(error)
        else:
            if not line.strip():
                continue
            if file.kind is FileFormat.TXT:
                values = {"text": line}
            else:
                values, problem = _json_object(line)
        yield FileRow(
            file=file.name, number=lines.number, values=values, problem=problem, end=lines.position
        )


class _ProblemError(ValueError):
    """JSON that Python reads and others do not."""


def _json_object(line: str) -> tuple[Mapping[str, object], str | None]:
    """Return the object that a line holds, or no columns and the problem."""
    if line.lstrip().startswith("["):
        return {}, "expected a JSON object, got an array; `jq -c '.[]'` makes lines of its objects"
    if line.count("[") + line.count("{") > MAX_DEPTH and _depth(line) > MAX_DEPTH:
        return {}, f"not a JSON object: values are nested more than {MAX_DEPTH} deep"
    try:
        row: object = _JSON.decode(line)
    except (_ProblemError, json.JSONDecodeError) as error:
        start = "" if isinstance(error, _ProblemError) else "not a JSON object: "
        return {}, f"{start}{error}"
    except ValueError:
        return {}, "a number has more than 4,300 digits; write it as a string"
    if isinstance(row, dict):
        return cast("Mapping[str, object]", row), None
    return {}, f"expected a JSON object, got {type(row).__name__}"


def _depth(line: str) -> int:
    marks = (it[0] for it in MARKS.findall(line))
    return max(accumulate((it in "[{") - (it in "]}") for it in marks), default=0)


def _unique(fields: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of an object; the reader must not choose one of two equal names."""
    found = dict(fields)
    if len(found) != len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise _ProblemError(f"the column name {twice!r} occurs twice in the row; rename one")
    return found


def _constant(name: str) -> None:
    """Read NaN, which pandas writes for a missing value, as null."""
    if name != "NaN":
        _refuse_number(name)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_number(digits)


def _refuse_number(digits: str) -> NoReturn:
    raise _ProblemError(f"{digits[:40]} is no number of JSON; write a finite number or null")


# Made once, because `json.loads` makes a decoder for each line.
_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
)


def _delimited_rows(lines: _Lines, file: FileOfRows) -> Iterator[FileRow]:
    reader, header, _ = _header_of(lines, file)
    header_at = f"{file.name}:{lines.number}"
    while True:
        first, fields, problem = lines.number + 1, list[str](), None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            problem = _broken(error, lines, file.name, first)
        else:
            if not any(map(str.strip, fields)):
                continue
            if len(fields) != len(header):
                problem = f"expected {len(header)} fields as in the header, got {len(fields)}"
        yield FileRow(
            file=file.name,
            number=first,
            values={} if problem else dict(zip(header, fields, strict=True)),
            problem=problem,
            header=header_at,
            end=lines.position,
        )


def _broken(error: csv.Error | UnicodeDecodeError, lines: _Lines, file: str, first: int) -> str:
    """Return the problem of a row of one line; after an open quote, rows could be lost or made up.

    Raises:
        NunatakError: `unreadable_file`.
    """
    problem = _told(error)
    if lines.number <= first and lines.line.count(b'"') % 2 == 0:
        return problem
    place = lines.number
    if isinstance(error, csv.Error):
        place, problem = first, f"a quote stays open until line {place}; close or double it"
    raise unreadable(f"{file}:{place}", problem) from error


def _header_of(lines: _Lines, file: FileOfRows) -> tuple[Iterator[list[str]], list[str], str]:
    # The default limit is smaller than the context of many questions.
    csv.field_size_limit(MAX_ROW_BYTES)
    usual, told = "," if file.kind is FileFormat.CSV else "\t", file.delimiter
    try:
        line = next((it for it in lines if it.strip()), "")
        if line.startswith(EXCEL_PREFIX) and len(line.rstrip("\r\n")) == len(EXCEL_PREFIX) + 1:
            told = told or line[len(EXCEL_PREFIX)]
            line = next(lines, "")
        delimiter = told or _delimiter_of(line, usual)
        reader = csv.reader(chain([line], lines), delimiter=delimiter, strict=True)
        header = next(reader, list[str]())
    except (csv.Error, UnicodeDecodeError) as error:
        raise unreadable(f"{file.name}:1", _told(error)) from error
    if not header:
        raise unreadable(file.name, "the file is empty; expected a header line")
    return reader, check_header(header, f"{file.name}:{lines.number}"), delimiter


def _delimiter_of(header: str, usual: str) -> str:
    """Return the delimiter that gives a header line the most fields; between equals, `usual`."""
    num_fields = dict.fromkeys((usual, *DELIMITERS), 0)
    for delimiter in num_fields:
        with suppress(csv.Error):
            # The second line ends a field that spans lines.
            lines = csv.reader([header, '"'], delimiter=delimiter, strict=True)
            num_fields[delimiter] = len(next(lines))
    # The first of equals wins, and the usual one is the first.
    return max(num_fields, key=lambda delimiter: num_fields[delimiter])


def _told(error: csv.Error | UnicodeDecodeError) -> str:
    if isinstance(error, csv.Error):
        return CR_ALONE if str(error).startswith("new-line") else f"broken row: {error}"
    return f"not UTF-8 ({error.reason}); save the file as UTF-8, in Excel as CSV UTF-8"

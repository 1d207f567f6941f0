"""Files of rows: JSON lines (plain or gzip), CSV, TSV and Parquet.

Every reader yields the rows in file order. A reader that stops raises a `NunatakError`, which names
the file and, in text formats, the line (from 1, the header counts).
"""

# pyarrow ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import cast

from pyarrow import ArrowException, parquet

from nunatak_contract.errors import NunatakError
from nunatak_contract.inputs import delimiter_of
from nunatak_training.data.rows import FileRow


class FileFormat(StrEnum):
    """Readable formats by file suffix, in the order of the search in a folder."""

    JSONL = ".jsonl"
    JSONL_GZ = ".jsonl.gz"
    CSV = ".csv"
    TSV = ".tsv"
    PARQUET = ".parquet"


def read_file(path: Path, *, delimiter: str | None = None) -> Iterator[FileRow]:
    """Read the rows of one file, by the format its suffix names.

    `delimiter` separates the fields of CSV and TSV files; absent: comma, tab
    or semicolon, whichever gives the header line the most fields.

    Raises:
        NunatakError: the file is missing, unreadable or holds a broken row.
    """
    if not path.is_file():
        raise NunatakError("data_not_found", where=path.name, problem="no such file")
    match file_format(path):
        case FileFormat.JSONL | FileFormat.JSONL_GZ:
            return _read_jsonl(path)
        case FileFormat.CSV:
            return _read_delimited(path, delimiter or _sniffed(path, ","))
        case FileFormat.TSV:
            return _read_delimited(path, delimiter or _sniffed(path, "\t"))
        case FileFormat.PARQUET:
            return _read_parquet(path)


def file_format(path: Path) -> FileFormat:
    """Return the format that the file's suffix names.

    Raises:
        NunatakError: `unreadable_file`, the suffix names no known format.
    """
    for candidate in FileFormat:
        if path.name.endswith(candidate.value):
            return candidate
    known = ", ".join(candidate.value for candidate in FileFormat)
    raise NunatakError(
        "unreadable_file", where=path.name, problem=f"unknown file type; expected one of {known}"
    )


def _read_jsonl(path: Path) -> Iterator[FileRow]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NunatakError(
                "invalid_row", where=where, problem=f"not a JSON object: {error}"
            ) from error
        if not isinstance(row, dict):
            raise NunatakError(
                "invalid_row",
                where=where,
                problem=f"expected a JSON object, got {type(row).__name__}",
            )
        yield FileRow(where=where, columns_at=where, values=cast("dict[str, object]", row))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Decode a file line by line, so that a bad byte is reported with its line."""
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                # Some editors write a byte order mark at the start of a file.
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise NunatakError(
            "unreadable_file",
            where=f"{path.name}:{number}",
            problem=f"not UTF-8 ({error.reason}); convert the file to UTF-8",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise NunatakError(
            "unreadable_file",
            where=path.name,
            problem=f"cannot be read after line {number}: {error}",
        ) from error


def _sniffed(path: Path, usual: str) -> str:
    header = next((line for _, line in _lines(path) if line.strip()), "")
    return delimiter_of(header, usual)


def _read_delimited(path: Path, delimiter: str) -> Iterator[FileRow]:
    lines = (line for _, line in _lines(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    header_at = f"{path.name}:1"
    first_line = 1
    try:
        for fields in reader:
            where = f"{path.name}:{first_line}"
            # A quoted field may span lines. Messages name the first line of a row.
            first_line = reader.line_num + 1
            if header is None:
                header = _checked_header(fields, where)
            elif fields:
                values = _named_fields(header, fields, where)
                yield FileRow(where=where, columns_at=header_at, values=values)
    except csv.Error as error:
        raise NunatakError(
            "invalid_row", where=f"{path.name}:{first_line}", problem=f"broken row: {error}"
        ) from error
    if header is None:
        raise NunatakError(
            "unreadable_file", where=path.name, problem="the file is empty; expected a header line"
        )


def _checked_header(fields: list[str], where: str) -> list[str]:
    if len(set(fields)) != len(fields):
        raise NunatakError(
            "unreadable_file", where=where, problem="a column name occurs twice in the header"
        )
    return fields


def _named_fields(header: list[str], fields: list[str], where: str) -> dict[str, object]:
    if len(fields) != len(header):
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"expected {len(header)} fields as in the header, got {len(fields)}",
        )
    return dict(zip(header, fields, strict=True))


def _read_parquet(path: Path) -> Iterator[FileRow]:
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in cast("list[dict[str, object]]", batch.to_pylist()):
                    number += 1
                    where = f"{path.name}:{number}"
                    yield FileRow(where=where, columns_at=path.name, values=values)
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise NunatakError(
            "unreadable_file", where=path.name, problem=f"not a readable Parquet file: {error}"
        ) from error

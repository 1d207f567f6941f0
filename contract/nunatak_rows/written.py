"""The writer of rows: CSV in the user's dialect, and JSON lines."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nunatak_contract.errors import invalid_option
from nunatak_rows.files import FileFormat, FileOfRows, file_of_rows
from nunatak_rows.reading import DELIMITED, header_of

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of a formula of a spreadsheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    delimiter: str = ","
    has_mark: bool = False
    """Whether a byte order mark, by which Excel knows UTF-8, is before the header line."""
    escapes_formulas: bool = False
    """Whether a text that a spreadsheet would compute gets an apostrophe before it."""

    def lines(self, rows: Iterable[Sequence[object]], *, is_first: bool = False) -> bytes:
        """Return the lines of rows; the first lines of a file begin with the mark."""
        written = io.StringIO(newline="")
        if is_first and self.has_mark:
            written.write("\ufeff")
        writer = csv.writer(written, delimiter=self.delimiter)
        writer.writerows([self._cell(value) for value in row] for row in rows)
        return written.getvalue().encode("utf-8", "backslashreplace")

    def _cell(self, value: object) -> str:
        text = cell(value)
        if not (self.escapes_formulas and text.startswith(FORMULA)) or _is_number(text):
            return text
        return f"'{text}"


def dialect_of(file: FileOfRows, *, escapes_formulas: bool) -> Dialect:
    """Return the dialect of a CSV or TSV file; of other files, the usual one."""
    if file.kind not in DELIMITED:
        return Dialect(escapes_formulas=escapes_formulas)
    _, delimiter, has_mark = header_of(file)
    return Dialect(delimiter=delimiter, has_mark=has_mark, escapes_formulas=escapes_formulas)


def dialect_like(data: Path, *, delimiter: str | None, escapes_formulas: bool) -> Dialect:
    """Return the dialect of a file of examples; of a folder or a data set, the usual one."""
    if not data.is_file():
        return Dialect(escapes_formulas=escapes_formulas)
    return dialect_of(file_of_rows(data, delimiter=delimiter), escapes_formulas=escapes_formulas)


def cell(value: object) -> str:
    """Return a value as the text of a CSV field: lists and objects are JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: object) -> str:
    """Return a value as JSON; values that JSON lacks, such as decimals, become texts."""
    return json.dumps(value, ensure_ascii=False, default=str)


def check_rows_file(option: str, path: Path | None, data: Path) -> None:
    """Check that the name of a file, if there is one, tells a format, and is not that of `data`."""
    if path is not None and path.suffix not in {".csv", ".jsonl"}:
        raise invalid_option(f"{option} expects a file FILE.csv or FILE.jsonl, got {path.name}")
    if path is not None and path.expanduser().resolve() == data.expanduser().resolve():
        raise invalid_option(f"{option} {path} would overwrite the examples; name another file")


def write_rows(
    option: str, path: Path, rows: Sequence[Mapping[str, object]], dialect: Dialect | None = None
) -> None:
    """Write rows to the file that an option names, as CSV or as JSON lines, all or none.

    CSV has the columns of all rows, in the order of their first occurrence.
    """
    if path.suffix == f".{FileFormat.CSV}":
        columns = list(dict.fromkeys(name for row in rows for name in row))
        cells = ([row.get(name) for name in columns] for row in rows)
        content = (dialect or Dialect()).lines([columns, *cells], is_first=True)
    else:
        content = b"".join(f"{json_text(it)}\n".encode("utf-8", "backslashreplace") for it in rows)
    made = path.expanduser().resolve()
    partial = made.with_name(f".{made.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(made)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise invalid_option(f"{option} {path} cannot be written: {error.strerror}") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

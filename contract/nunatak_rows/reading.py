"""The one reader of files of rows: its formats are `text` and `tables`."""

from collections.abc import Collection, Iterator
from importlib import import_module

from nunatak_contract.errors import needs_extra
from nunatak_rows.files import FileFormat, FileOfRows, FileRow
from nunatak_rows.tables import table_columns, table_rows
from nunatak_rows.text import DELIMITED, header_of, text_rows


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
        return table_rows(file, columns)
    return text_rows(file)


def fixed_columns(file: FileOfRows) -> list[str] | None:
    """Return the columns of all rows of a file; None for JSON lines, whose rows may differ."""
    if file.kind in DELIMITED:
        return header_of(file)[0]
    return table_columns(file) if file.kind is FileFormat.PARQUET else None

"""The one reader of files of rows, and its Parquet files; `text` has the other formats."""

# ruff: noqa: PLC0415 - only Parquet files need pyarrow

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from nunatak_contract.errors import needs_extra
from nunatak_rows.files import (
    BOMB,
    FileFormat,
    FileOfRows,
    FileRow,
    check_header,
    is_bomb,
    unreadable,
)
from nunatak_rows.text import DELIMITED, header_of, text_rows

if TYPE_CHECKING:
    from pyarrow import Array, Schema
    from pyarrow.parquet import FileMetaData

READ_ROWS: Final = 128
"""Rows that are decoded at once: few, because a small file may hold huge values."""


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
    return text_rows(file)


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
            for batch in stored.iter_batches(batch_size=READ_ROWS):
                found = [_values(batch.column(it), it, file) for it in read]
                # A batch holds a text of a dictionary once, and its values hold the text each time.
                texts = sum(len(it) for own in found for it in own if isinstance(it, str))
                unpacked += max(batch.nbytes, texts)
                if is_bomb(unpacked, size):
                    raise unreadable(file.name, BOMB)
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

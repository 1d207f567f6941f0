"""Files of rows: the one reader for training, scoring and corpora, and the writer of rows."""

from nunatak_rows.files import FileFormat, FileOfRows, FileRow, file_of_rows, format_of
from nunatak_rows.inputs import RowFormat, row_input
from nunatak_rows.reading import fixed_columns, read_rows
from nunatak_rows.written import Dialect, cell, check_rows_file, write_rows

__all__ = [
    "Dialect",
    "FileFormat",
    "FileOfRows",
    "FileRow",
    "RowFormat",
    "cell",
    "check_rows_file",
    "file_of_rows",
    "fixed_columns",
    "format_of",
    "read_rows",
    "row_input",
    "write_rows",
]

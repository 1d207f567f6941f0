"""Files of rows: the one reader for training, scoring and corpora, and the writer of rows."""

from nunatak_rows.files import FileFormat, FileOfRows, FileRow, file_of_rows, format_of
from nunatak_rows.inputs import RowFormat, row_input
from nunatak_rows.reading import class_names, fixed_columns, named, read_rows
from nunatak_rows.written import Dialect, cell, check_rows_file, write_rows

__all__ = [
    "Dialect",
    "FileFormat",
    "FileOfRows",
    "FileRow",
    "RowFormat",
    "cell",
    "check_rows_file",
    "class_names",
    "file_of_rows",
    "fixed_columns",
    "format_of",
    "named",
    "read_rows",
    "row_input",
    "write_rows",
]

"""Files of rows: their formats, and the form of one row."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from nunatak_contract.errors import NunatakError, invalid_option

if TYPE_CHECKING:
    from pyarrow import RecordBatch

HUB_PREFIX: Final = "datasets:"
DEV_NAMES: Final = ("dev", "validation")
MAX_ROW_BYTES: Final = 16 * 2**20
"""Of one line, and of one field of a CSV file."""
UNPACKED_BYTES: Final = 256 * 2**20
UNPACKED_SHARE: Final = 200
"""A packed file is refused if it unpacks to more bytes than both: these bytes, and so many times
its size. Texts of people pack to a tenth, and repeated texts to a hundredth."""


class FileFormat(StrEnum):
    """Formats by file suffix."""

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
    path: Path
    name: str
    """The name of the file in messages."""
    kind: FileFormat
    delimiter: str | None = None
    """Between the fields of CSV and TSV files; None: found in the header line."""
    source: BinaryIO | None = None
    """Read in place of the file."""


# Not frozen, because the making of frozen rows takes a third of the time of the reader.
@dataclass(slots=True, kw_only=True)
class FileRow:
    file: str
    """The name of the file; of a row in memory, its place."""
    number: int = 0
    """The first line of the row, or in Parquet files the row, from 1; 0 for a row in memory."""
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    """By column; of a Parquet file only the columns that the reader asked for."""
    problem: str | None = None
    header: str | None = None
    """The place of the names of the columns; None: each row names its own columns."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """The user's names of columns, by their usual names, where `values` has the usual ones."""
    batch: "RecordBatch | None" = None
    """The rows of a Parquet file around this row, with all columns."""
    index: int = 0
    """The place of the row in `batch`."""
    end: int = 0
    """The number of bytes of the file up to the end of the row; an estimate in Parquet files."""

    @property
    def where(self) -> str:
        """The place of the row for messages: `texts.csv:17`."""
        return f"{self.file}:{self.number}" if self.number else self.file

    def called(self, column: str) -> str:
        return self.columns.get(column, column)


def file_of_rows(
    path: Path,
    *,
    name: str | None = None,
    kind: FileFormat | None = None,
    delimiter: str | None = None,
    source: BinaryIO | None = None,
) -> FileOfRows:
    """Return a file, whose suffix tells its format unless it is given."""
    name = printable(name or path.name)
    if path.is_dir():
        raise data_not_found(printable(path.resolve().name), "is a folder; name one file in it")
    kind = kind or format_of(path.name, name)
    return FileOfRows(path=path, name=name, kind=kind, delimiter=delimiter, source=source)


def check_is_there(data: str, dev: Path | None = None) -> None:
    """Return if the files of examples are there; data sets of the hub are not looked for."""
    parts = () if data.startswith(HUB_PREFIX) else part_files(Path(data).expanduser())
    for part in (*parts, dev and dev.expanduser()):
        if part is not None:
            found_file(part)


def found_file(path: Path, *, delimiter: str | None = None) -> FileOfRows:
    file = file_of_rows(path, delimiter=delimiter)
    if not path.is_file():
        raise data_not_found(file.name, "no such file")
    return file


def part_files(path: Path) -> tuple[Path, Path | None, Path | None]:
    """Return the files with the train, dev and test examples of a file or a folder."""
    if not path.exists():
        said = f"no such file or folder; a data set of the hub is written {HUB_PREFIX}NAME"
        raise data_not_found(str(path), said)
    if path.is_file():
        return path, None, None
    train = _find_file(path, ("train",))
    if train is None:
        suffixes = ", ".join(f"train.{suffix}" for suffix in FileFormat)
        raise data_not_found(
            printable(path.resolve().name), f"the folder has no file of {suffixes}"
        )
    return train, _find_file(path, DEV_NAMES), _find_file(path, ("test",))


def _find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    candidates = (folder / f"{name}.{suffix}" for name in names for suffix in FileFormat)
    found = [path for path in candidates if path.is_file()]
    if len(found) > 1:
        both = " and ".join(printable(path.name) for path in found)
        raise invalid_option(f"{folder} has {both}, which may differ; leave one of them there")
    return found[0] if found else None


def data_not_found(where: str, problem: str) -> NunatakError:
    return NunatakError("data_not_found", where=where, problem=problem)


def format_of(file: str, name: str) -> FileFormat:
    for kind in FileFormat:
        if file.endswith(f".{kind}"):
            return kind
    known = ", ".join(f".{kind}" for kind in FileFormat)
    raise unreadable(
        printable(name),
        f"the suffix tells no format; expected one of {known}. Save tables of other programs, such "
        "as Excel, as CSV in UTF-8",
    )


def printable(name: str) -> str:
    """Return the name of a file as text; bytes that are no UTF-8 are spelt out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_header(columns: list[str], where: str) -> list[str]:
    """Return the columns of a file, after a check that each name occurs once."""
    seen = set[str]()
    for column in columns:
        if column in seen:
            raise unreadable(where, f"the column name {column!r} occurs twice; rename one of them")
        seen.add(column)
    return columns


def unreadable(where: str, problem: str) -> NunatakError:
    return NunatakError("unreadable_file", where=where, problem=problem)


def is_bomb(unpacked: int, packed: int) -> bool:
    """Whether a file unpacks to more than any file of texts does."""
    return unpacked > max(UNPACKED_BYTES, UNPACKED_SHARE * packed)


BOMB: Final = (
    f"unpacks to more than {UNPACKED_BYTES // 2**20} MiB and {UNPACKED_SHARE} times its size, as "
    "no file of texts does; write it again without the repeated or huge values"
)

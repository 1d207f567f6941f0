"""Output: the columns of the answers, parts of rows, and the one file that the parts become.

OUT has the format of the corpus, so every column keeps its type. Rows of CSV and of plain text may
become JSON lines too. In CSV and Parquet, lists and objects are JSON texts.
"""

# ruff: noqa: PLC0415 - only Parquet files need pyarrow

import gzip
import io
import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from pydantic import JsonValue

from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import invalid_option
from nunatak_rows import (
    Dialect,
    FileFormat,
    FileOfRows,
    FileRow,
    RowFormat,
    fixed_columns,
    read_rows,
)
from nunatak_rows.files import unreadable
from nunatak_rows.reading import table_schema
from nunatak_rows.written import dialect_of, json_text

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

    from nunatak_server.predict.types import TaskPrediction

JSON_LINES: Final = (FileFormat.JSONL, FileFormat.JSONL_GZ)
OUTPUTS: Final[Mapping[str, tuple[FileFormat, ...]]] = {
    "jsonl": JSON_LINES,
    "txt": JSON_LINES,
    "csv": (FileFormat.CSV, FileFormat.TSV, *JSON_LINES),
    "parquet": (FileFormat.PARQUET,),
}
"""The formats of OUT for each family of formats of a corpus."""
MOST_SHOWN: Final = 50
"""Columns that an error lists; rows of JSON lines may have very many."""
GROUP_ROWS: Final = 65_536
"""Least rows of a row group of a Parquet file, except the last row group."""


class ColumnType(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumns:
    reference: str
    problem_type: ProblemType | None
    """None for a head other than sequence classification."""
    has_all_scores: bool
    """Whether the scores of all labels have a column."""
    is_cut: bool
    """Whether the task reads only the beginning of a long text."""

    def types(self) -> dict[str, ColumnType]:
        name = self.reference
        match self.problem_type:
            case ProblemType.SINGLE_LABEL:
                found = {name: ColumnType.TEXT, f"{name}_score": ColumnType.NUMBER}
            case ProblemType.MULTI_LABEL:
                found = {name: ColumnType.JSON, f"{name}_score": ColumnType.JSON}
            case ProblemType.REGRESSION:
                found = {name: ColumnType.NUMBER}
            case None:
                found = {name: ColumnType.JSON}
        if self.has_all_scores and len(found) > 1:
            found[f"{name}_scores"] = ColumnType.JSON
        if self.is_cut:
            found[f"{name}_truncated"] = ColumnType.FLAG
        return found

    def values(self, answer: "TaskPrediction", place: int) -> list[JsonValue]:
        values = self._values(answer, place)
        return [*values, answer.extents[place].is_cut] if self.is_cut else values

    def _values(self, answer: "TaskPrediction", place: int) -> list[JsonValue]:
        items = cast("list[dict[str, JsonValue]]", answer.outputs[place])
        if answer.predicted is None:
            return [cast("JsonValue", items)]
        predicted = answer.predicted[place]
        if not isinstance(predicted, (str, tuple)):
            return [predicted]
        scores: dict[str, JsonValue] = {str(item["label"]): item["score"] for item in items}
        if isinstance(predicted, str):
            found: list[JsonValue] = [predicted, scores[predicted]]
        else:
            found = [list[JsonValue](predicted), [scores[label] for label in predicted]]
        return [*found, scores] if self.has_all_scores else found


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRow:
    row: FileRow
    answers: Sequence[JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLayout:
    kind: FileFormat
    kept: tuple[str, ...] | None
    """The columns of the corpus that OUT has; None: all columns that a row has."""
    answers: Mapping[str, ColumnType]
    dialect: Dialect = field(default_factory=Dialect)
    """Of CSV."""
    schema: "Schema | None" = None
    """The types of the kept columns of Parquet files."""

    @property
    def suffix(self) -> str:
        """The suffix of a part. Only the joined file is packed."""
        return FileFormat.JSONL if self.kind is FileFormat.JSONL_GZ else self.kind

    def part(self, rows: Sequence[AnsweredRow]) -> bytes:
        match self.kind:
            case FileFormat.CSV | FileFormat.TSV:
                kept = self.kept or ()
                return self.dialect.lines(
                    [*(it.row.values[name] for name in kept), *it.answers] for it in rows
                )
            case FileFormat.PARQUET:
                return self._table_bytes(rows)
            case _:
                return b"".join(map(self._json_line, rows))

    def join(self, parts: Iterable[Path], target: BinaryIO) -> None:
        match self.kind:
            case FileFormat.PARQUET:
                self._join_tables(parts, target)
            case FileFormat.JSONL_GZ:
                # Without a name and a time, equal rows make equal files.
                with gzip.GzipFile(fileobj=target, mode="wb", filename="", mtime=0) as packed:
                    _copy(parts, packed)
            case FileFormat.CSV | FileFormat.TSV:
                target.write(
                    self.dialect.lines([[*(self.kept or ()), *self.answers]], is_first=True)
                )
                _copy(parts, target)
            case _:
                _copy(parts, target)

    def _json_line(self, row: AnsweredRow) -> bytes:
        values = row.row.values
        kept = values if self.kept is None else {it: values[it] for it in self.kept if it in values}
        document = {**kept, **dict(zip(self.answers, row.answers, strict=True))}
        try:
            return f"{json.dumps(document, ensure_ascii=False)}\n".encode()
        except UnicodeEncodeError:
            # Another column than the text may hold a lone surrogate, which JSON can spell out.
            return f"{json.dumps(document)}\n".encode()

    def _arrow_schema(self) -> "Schema":
        import pyarrow as pa

        kept = list(self.schema or ())
        own = [pa.field(it, _arrow_type(kind)) for it, kind in self.answers.items()]
        return pa.schema([*kept, *own])

    def _table_bytes(self, rows: Sequence[AnsweredRow]) -> bytes:
        import pyarrow as pa
        from pyarrow import parquet

        schema = self._arrow_schema()
        kept = _kept_table([it.row for it in rows], list(self.kept or ()))
        columns = list(kept.columns) if kept is not None else []
        for place, kind in enumerate(self.answers.values()):
            values = [it.answers[place] for it in rows]
            texts = map(json_text, values) if kind is ColumnType.JSON else values
            columns.append(pa.array(texts, type=_arrow_type(kind)))
        written = io.BytesIO()
        table = pa.table(columns, schema=schema) if rows else schema.empty_table()
        parquet.write_table(table, written)
        return written.getvalue()

    def _join_tables(self, parts: Iterable[Path], target: BinaryIO) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        schema = self._arrow_schema()
        with parquet.ParquetWriter(target, schema) as writer:
            held, num_rows = list["Table"](), 0
            for part in parts:
                held.append(parquet.read_table(part))
                num_rows += held[-1].num_rows
                if num_rows >= GROUP_ROWS:
                    writer.write_table(pa.concat_tables(held), row_group_size=num_rows)
                    held, num_rows = [], 0
            if num_rows:
                writer.write_table(pa.concat_tables(held), row_group_size=num_rows)


def layout_of(
    files: Sequence[FileOfRows],
    out: Path,
    *,
    spelt: RowFormat,
    keep: Collection[str] | None,
    answers: Mapping[str, ColumnType],
    escapes_formulas: bool = False,
) -> PartLayout:
    """Return the form of OUT, after a check against the columns of all files."""
    allowed = OUTPUTS[files[0].kind.family]
    kind = next((it for it in allowed if out.name.endswith(f".{it}")), None)
    if kind is None:
        expected = " or ".join(f".{it}" for it in allowed)
        raise invalid_option(
            f"OUT of this corpus ends in {expected}, got {out.name}; convert other formats "
            "afterwards"
        )
    common = _common_columns(files)
    if common is None:
        _check_new(keep or (), answers)
        _check_there(keep or (), _columns_up_to(keep or (), files))
        return PartLayout(kind=kind, kept=None if keep is None else tuple(keep), answers=answers)
    spelt.check(common, files[0].name)
    _check_there(keep or (), common)
    kept = tuple(it for it in common if keep is None or it in keep)
    _check_new(kept, answers)
    schema = None
    if kind is FileFormat.PARQUET:
        import pyarrow as pa

        stored = table_schema(files[0])
        schema = pa.schema([stored.field(name) for name in kept])
    dialect = dialect_of(files[0], escapes_formulas=escapes_formulas)
    if kind is not files[0].kind:
        usual = "\t" if kind is FileFormat.TSV else ","
        dialect = replace(dialect, delimiter=usual)
    return PartLayout(kind=kind, kept=kept, answers=answers, dialect=dialect, schema=schema)


def _common_columns(files: Sequence[FileOfRows]) -> list[str] | None:
    """Return the columns that all files have; None for JSON lines."""
    first, is_typed = fixed_columns(files[0]), files[0].kind is FileFormat.PARQUET
    if first is None:
        return None
    for file in files[1:]:
        found = fixed_columns(file) or []
        is_equal = sorted(found) == sorted(first)
        if is_typed and is_equal:
            is_equal = bool(table_schema(file).equals(table_schema(files[0])))
        if not is_equal:
            raise unreadable(
                file.name,
                f"expected the columns of {files[0].name} with their types; score files "
                "with other columns by themselves",
            )
    return first


def _columns_up_to(keep: Collection[str], files: Sequence[FileOfRows]) -> dict[str, None]:
    """Return the columns of rows of JSON lines, up to the row that completes `keep`."""
    found = dict[str, None]()
    for row in chain.from_iterable(map(read_rows, files)):
        if found.keys() >= set(keep):
            break
        found |= dict.fromkeys(row.values)
    return found


def _check_there(keep: Collection[str], columns: Collection[str]) -> None:
    missing = sorted(set(keep).difference(columns))
    # A corpus without a row has no columns.
    if missing and columns:
        shown = ", ".join(list(columns)[:MOST_SHOWN]) + ", ..." * (len(columns) > MOST_SHOWN)
        raise invalid_option(f"--keep names {missing[0]!r}; the corpus has the columns {shown}")


def _check_new(kept: Collection[str], answers: Collection[str]) -> None:
    twice = sorted(set(answers).intersection(kept))
    if twice:
        raise invalid_option(
            f"the corpus has a column {twice[0]!r} already, which is a column of the "
            "answers; rename the column of the corpus, or leave it out with --keep"
        )


def _kept_table(rows: Sequence[FileRow], names: list[str]) -> "Table | None":
    import pyarrow as pa

    # Arrow cannot take rows of every type (such as string views), but it can slice.
    taken = [it.batch.select(names).slice(it.index, 1) for it in rows if it.batch is not None]
    return pa.Table.from_batches(taken).combine_chunks() if taken else None


def _arrow_type(kind: ColumnType) -> "DataType":
    import pyarrow as pa

    types = {ColumnType.NUMBER: pa.float64(), ColumnType.FLAG: pa.bool_()}
    return types.get(kind, pa.string())


def _copy(parts: Iterable[Path], target: BinaryIO | gzip.GzipFile) -> None:
    for part in parts:
        with part.open("rb") as file:
            shutil.copyfileobj(file, target)

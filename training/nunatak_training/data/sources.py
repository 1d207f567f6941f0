"""Sources of examples: the values of `--data`, and the checks of a whole task.

A source is a file, a folder with `train.*` and `dev.*` (or `validation.*`), maybe `test.*`, a data
set of the `datasets` library, or rows in memory. If the source has no dev examples, a tenth of the
train examples becomes dev.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np

from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_model import TextInput
from nunatak_rows import FileRow, RowFormat, class_names, named, read_rows
from nunatak_rows.files import (
    DEV_NAMES,
    HUB_PREFIX,
    check_header,
    data_not_found,
    found_file,
    part_files,
    printable,
)
from nunatak_rows.inputs import bad_row
from nunatak_training.data import splits
from nunatak_training.data.bad_rows import BadRows
from nunatak_training.data.examples import ExampleSet, ReadExample, TaskData, Teacher, sorted_labels
from nunatak_training.data.rows import PROBABILITIES, text_example
from nunatak_training.kinds import TaskKind, kind_of_row

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_THAT_TELL = 1000
PARTS = ("train", "dev", "test")
IN_MEMORY = "data in memory"


class Table(Protocol):
    """A DataFrame of pandas, or a table of a library that speaks Arrow: polars, DuckDB, pyarrow."""

    @property
    def columns(self) -> Iterable[object]: ...


Rows: TypeAlias = "Iterable[Mapping[str, object]] | Table | Dataset"
"""Rows in memory: mappings by column, a DataFrame of pandas, a table of Arrow, a `Dataset` of
`datasets`, or texts and pairs for a teacher."""
Part: TypeAlias = "str | Path | Rows"
Data: TypeAlias = "Part | Mapping[str, Part]"
"""All forms of examples: a path or the name of a data set, rows, or parts of these by name."""


DatasetLoader: TypeAlias = "Callable[[str, str | None], Mapping[str, Dataset]]"
"""Loads a data set by its name and its configuration."""


def load_from_hub(name: str, config: str | None) -> "Mapping[str, Dataset]":
    # The import takes a second, and most runs read a file.
    from datasets import load_dataset  # noqa: PLC0415

    try:
        loaded = load_dataset(name, config)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"{name}:{config}" if config else name
        raise data_not_found(where, f"not a data set that `datasets` can load: {error}") from error
    return cast("Mapping[str, Dataset]", loaded)


def read_split(dataset: "Dataset", where: str) -> Iterator[FileRow]:
    """Class numbers become the data set's class names."""
    names = class_names(dataset.features.arrow_schema, where)
    # A format makes tensors of numbers, and may hide columns. A transform is the caller's own text.
    is_transformed = hasattr(dataset, "format") and dataset.format["type"] == "custom"
    rows = dataset if is_transformed else dataset.with_format(None)
    for number, item in enumerate(rows, start=1):
        values = cast("Mapping[str, object]", item)
        values = {column: named(it, names.get(column)) for column, it in values.items()}
        yield FileRow(file=where, number=number, values=values, header=where)


_Rows = Iterator[FileRow] | None


def load_task_data(
    source: Data,
    *,
    kind: TaskKind | None = None,
    dev: str | Path | None = None,
    seed: int = 0,
    spelt: RowFormat | None = None,
    teacher: Teacher | None = None,
    load_dataset: DatasetLoader = load_from_hub,
) -> TaskData:
    """Load train and dev examples and check that a task can be trained on them.

    Args:
        source: a file, a folder, a data set of the hub (`datasets:NAME[:CONFIG]`), rows in memory,
            or files and rows by the name of their part.
        kind: if None, the first train row decides (`kind_of_row`).
        dev: a file of dev examples, in place of the dev examples of `source`.
        seed: seeds the dev split, which is drawn if there are no dev examples. No run gives its
            own seed, so that runs and sweeps of several seeds have one dev set.
        spelt: how the files are written, and what becomes of rows that cannot be used.
        teacher: is asked about each text, if the rows are taught.
        load_dataset: loads a data set that is no path.
    """
    spelt = spelt or RowFormat()
    name, parts = _open_source(source, spelt, load_dataset)
    bad = BadRows(source=name, spelt=spelt, teacher=teacher)
    if dev is not None:
        parts[1] = _file_rows(Path(dev).expanduser(), spelt)
    _, has_dev, has_test = (part is not None for part in parts)
    if teacher is not None:
        if kind not in {None, teacher.kind}:
            raise invalid_option(f"the teacher makes a {teacher.kind} task, got kind {kind}")
        kind = teacher.kind
        parts, teacher = ask_teacher(teacher, parts, spelt)
    kind, train = _read(parts[0] or iter(()), kind, bad)
    chosen_dev, tested = (bad.examples(rows, kind) for rows in parts[1:])
    taught = taught_labels(train, teacher) if spelt.is_taught else ()
    lone = splits.lone_label(train, kind)
    train = bad.without(
        splits.in_words_of(taught, train), splits.unknown_label(taught) if taught else lone
    )
    labels = taught or splits.label_names(train, kind)
    fault = splits.unknown_label(labels)
    chosen_dev, tested = (
        bad.without(splits.in_words_of(labels, part), fault) for part in (chosen_dev, tested)
    )
    bad.settle()
    splits.check_train(train, kind, name)
    if not has_dev:
        train, chosen_dev = splits.draw_dev(train, kind, seed=seed, name=name)
        labels = taught or splits.label_names(train, kind)
    splits.check_scored(chosen_dev, name if dev is None else Path(dev).name, split="dev")
    if has_test:
        splits.check_scored(tested, name, split="test")
    return TaskData(
        name=name,
        kind=kind,
        train=_set_of(train),
        dev=_set_of(chosen_dev),
        test=_set_of(tested) if has_test else None,
        labels=labels,
        teacher=teacher,
    )


def ask_teacher(
    teacher: Teacher, parts: Sequence[_Rows], spelt: RowFormat
) -> tuple[list[_Rows], Teacher]:
    """The rows of each part with the teacher's probabilities, and the teacher with its time."""
    listed = [None if rows is None else list(rows) for rows in parts]
    inputs = {id(row): _input_of(row, spelt) for rows in listed for row in rows or ()}
    asked = [it for it in dict.fromkeys(inputs.values()) if it is not None]
    started = time.perf_counter()
    said = dict(zip(asked, teacher.ask(asked), strict=True))
    seconds = time.perf_counter() - started

    def answered(row: FileRow) -> FileRow:
        text = inputs[id(row)]
        answer = None if text is None else said[text]
        if isinstance(answer, NunatakError):
            return replace(row, problem=f"{teacher.name} has no answer: {answer}")
        return row if answer is None else replace(row, values={**row.values, PROBABILITIES: answer})

    taught: list[_Rows] = [None if rows is None else map(answered, rows) for rows in listed]
    return taught, replace(teacher, seconds=seconds)


def _input_of(row: FileRow, spelt: RowFormat) -> TextInput | None:
    """None for a row without a text. The reading of the row tells the fault."""
    try:
        return text_example(spelt.usual(row), "").model_input
    except (NunatakError, KeyError):
        return None


def taught_labels(train: Iterable[ReadExample], teacher: Teacher | None) -> tuple[str, ...]:
    """The labels of the teacher, or else those of most rows."""
    if teacher is not None:
        return sorted_labels(teacher.labels)
    sets = Counter(tuple(dict(it.example.shares)) for it in train)
    return sets.most_common(1)[0][0] if sets else ()


def load_labelled(
    source: Data, *, spelt: RowFormat | None = None, load_dataset: DatasetLoader = load_from_hub
) -> tuple[TaskKind, list[ReadExample]]:
    """The examples of all parts of a source, with their rows; the first row tells the kind."""
    spelt = spelt or RowFormat()
    name, parts = _open_source(source, spelt, load_dataset)
    bad = BadRows(source=name, spelt=spelt, keeps_columns=True)
    kind, read = _read(chain.from_iterable(filter(None, parts)), None, bad)
    bad.settle()
    return kind, read


def load_test_rows(
    path: str | Path, *, kind: TaskKind, labels: tuple[str, ...], spelt: RowFormat | None = None
) -> list[ReadExample]:
    """A file of examples that a task of these labels can be scored on, with their rows."""
    path, spelt = Path(path).expanduser(), spelt or RowFormat()
    bad = BadRows(source=printable(path.name), spelt=spelt, keeps_columns=True)
    read = bad.examples(_file_rows(path, spelt), kind)
    found = bad.without(splits.in_words_of(labels, read), splits.unknown_label(labels))
    bad.settle()
    splits.check_scored(found, path.name, split="test")
    return found


def _file_rows(path: Path, spelt: RowFormat) -> Iterator[FileRow]:
    file = found_file(path, delimiter=spelt.delimiter)
    # The file of rejected rows is removed, also if there are none.
    if spelt.rejected is not None and spelt.rejected.exists() and path.samefile(spelt.rejected):
        raise invalid_option(f"{path} holds the examples; name another file for rejected rows")
    return read_rows(file)


def _read(
    rows: Iterator[FileRow], kind: TaskKind | None, bad: BadRows
) -> tuple[TaskKind, list[ReadExample]]:
    if kind is not None:
        return kind, bad.examples(rows, kind)
    first = list[FileRow]()
    for row in islice(rows, ROWS_THAT_TELL):
        first.append(row)
        if row.problem is None and row.values.get(bad.spelt.label or "label", ...) is not None:
            break
    kind = _kind_told(first[-1], bad.spelt) if first else TaskKind.SINGLE_LABEL
    read = bad.examples(chain(first, rows), kind)
    if kind is TaskKind.REGRESSION and read and all(_is_whole(it.example.label) for it in read):
        raise invalid_option(
            f"{bad.source}: all labels are whole numbers with a decimal point, as a "
            "missing value makes of integers; set kind to regression if they are values, or to "
            "single-label if they are names"
        )
    return kind, read


def _is_whole(label: object) -> bool:
    return float(str(label)) % 1 == 0


def _kind_told(row: FileRow, spelt: RowFormat) -> TaskKind:
    if spelt.label is None or spelt.label not in row.values:
        return kind_of_row(row.values)
    label = row.values[spelt.label]
    return kind_of_row({"labels" if isinstance(label, list) else "label": label})


def _open_source(
    source: Data, spelt: RowFormat, load_dataset: DatasetLoader
) -> tuple[str, list[_Rows]]:
    """The name of a source, and the rows of its parts: train, dev and test."""
    name, place = IN_MEMORY, ""
    if isinstance(source, Mapping):
        parts = _checked(cast("Mapping[str, Part]", source))
    elif not isinstance(source, str | Path):
        parts = {"train": source}
    # A typing error in the name of a file must not become a search of the hub.
    elif isinstance(source, str) and source.startswith(HUB_PREFIX):
        name = source.removeprefix(HUB_PREFIX)
        place, parts = f"{name}/", _hub_parts(name, load_dataset)
    else:
        path = Path(source).expanduser()
        # A path that no file can have is refused here, before anything resolves it.
        files, name = part_files(path), printable(path.resolve().name)
        parts = {part: it for part, it in zip(PARTS, files, strict=True) if it is not None}

    def rows_of(part: str) -> _Rows:
        given = parts.get(part)
        if isinstance(given, str | Path):
            return _file_rows(Path(given).expanduser(), spelt)
        return None if given is None else _given_rows(given, f"{place}{part}")

    dev_name = next((it for it in DEV_NAMES if it in parts), "dev")
    return name, [rows_of(part) for part in ("train", dev_name, "test")]


def _checked(parts: Mapping[str, Part]) -> Mapping[str, Part]:
    known = {*PARTS, *DEV_NAMES}
    if not {"train"} <= parts.keys() <= known or parts.keys() >= set(DEV_NAMES):
        found = ", ".join(map(repr, parts)) or "none"
        raise data_not_found(
            IN_MEMORY,
            "expected the part train, maybe dev (or validation) and test, got "
            f"{found}; give rows as a list, a DataFrame or a data set",
        )
    return parts


def _hub_parts(reference: str, load_dataset: DatasetLoader) -> Mapping[str, Part]:
    """The parts of a data set of the hub, `NAME` or `NAME:CONFIG`; its test part has no labels."""
    name, _, config = reference.partition(":")
    found = load_dataset(name, config or None)
    if "train" not in found:
        raise data_not_found(
            reference, f"the data set must have a split 'train', it has {sorted(found)}"
        )
    dev_name = "validation" if "validation" in found else "dev"
    return {part: found[part] for part in ("train", dev_name) if part in found}


def _given_rows(rows: Rows, part: str) -> Iterator[FileRow]:
    """Places count from 0: `train[16]`."""
    if isinstance(getattr(rows, "features", None), Mapping):
        yield from read_split(cast("Dataset", rows), part)
        return
    if hasattr(type(rows), "columns"):  # of the class, because a lazy table computes its own
        rows = _rows_of_table(rows, part)
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        raise _no_rows(part, rows)
    for index, values in enumerate(cast("Iterable[object]", rows)):
        where = f"{part}[{index}]"
        match values:
            case Mapping():
                named = cast("Mapping[object, object]", values)
            case str():
                named = {"text": values}
            case (str() as text, str() as pair):
                named = {"text": text, "text_pair": pair}
            case _:
                raise _no_rows(where, values)
        yield FileRow(file=where, values={str(name): _plain(it) for name, it in named.items()})


def _rows_of_table(table: Any, part: str) -> Rows:  # noqa: ANN401 - the types of pandas and Arrow
    if hasattr(table, "notna"):
        # pandas leaves out all but the last of equal names.
        check_header([str(it) for it in table.columns], part)
        # pandas spells a missing value as NaN, which would be a number to predict.
        return table.astype(object).where(table.notna(), None).to_dict("records")
    if hasattr(table, "__arrow_c_stream__"):
        from pyarrow import table as arrow_table  # noqa: PLC0415 - only these rows need it

        read = arrow_table(table)
        check_header(read.column_names, part)
        names = class_names(read.schema, part)
        rows = cast("list[dict[str, object]]", read.to_pylist())
        return [{it: named(value, names.get(it)) for it, value in row.items()} for row in rows]
    return table


def _plain(value: object) -> object:
    """As files spell it."""
    match value.tolist() if isinstance(value, np.generic | np.ndarray) else value:
        case Mapping() as fields:
            named = cast("Mapping[object, object]", fields)
            return {name: _plain(it) for name, it in named.items()}
        case list() | tuple() as values:
            return list(map(_plain, cast("Sequence[object]", values)))
        case float() as number if math.isnan(number):
            return None
        case it if type(it).__name__ in {"NAType", "NaTType"}:  # of pandas, which is not imported
            return None
        case plain:
            return plain


def _no_rows(where: str, found: object) -> NunatakError:
    told = "expected rows by column, such as {'text': ..., 'label': ...}"
    told += f", got {type(found).__name__}"
    if hasattr(found, "collect"):
        told += "; call its method collect"
    return bad_row(where, told)


def _set_of(examples: list[ReadExample]) -> ExampleSet:
    return ExampleSet(examples=tuple(read.example for read in examples))

"""Sources of examples: the values of `--data`, and the checks of a whole task.

A source is a file, a folder with `train.*` and `dev.*` (or `validation.*`), maybe `test.*`, or a
data set of the `datasets` library. If the source has no dev examples, a tenth of the train examples
becomes dev.
"""

# The library ships no stubs, and types its mappings and features loosely.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from nunatak_contract.errors import NunatakError
from nunatak_training.data.examples import Example, ExampleSet, ReadExample, TaskData
from nunatak_training.data.files import FileFormat, read_file
from nunatak_training.data.rows import FileRow, RowFormat, parse_row
from nunatak_training.data.splits import check_scored, check_train, draw_dev, label_names
from nunatak_training.kinds import TaskKind, kind_of_row

if TYPE_CHECKING:
    from datasets import Dataset

HUB_PREFIX = "datasets:"
DEV_NAMES = ("dev", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReference:
    """A data set of the hub, with one of its configurations if it has several."""

    name: str
    config: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubReference":
        """Read `NAME` or `NAME:CONFIG`, with or without the prefix `datasets:`."""
        name, _, config = text.removeprefix(HUB_PREFIX).partition(":")
        return cls(name=name, config=config or None)

    def __str__(self) -> str:
        return f"{self.name}:{self.config}" if self.config else self.name


class DatasetLoader(Protocol):
    """Loads all splits of a data set."""

    def __call__(self, reference: HubReference) -> "Mapping[str, Dataset]":
        """Return the splits by name; may use the network.

        Raises:
            NunatakError: `data_not_found`, there is no such data set, or it cannot be reached.
        """
        ...


def load_from_hub(reference: HubReference) -> "Mapping[str, Dataset]":
    """Load a data set with the `datasets` library, from its cache or the network."""
    # The import takes a second, and most runs read a file.
    from datasets import load_dataset  # noqa: PLC0415

    try:
        loaded = load_dataset(reference.name, reference.config)
    except (OSError, ValueError, RuntimeError) as error:
        raise NunatakError(
            "data_not_found",
            where=str(reference),
            problem="not a file or folder here, and not a data set that `datasets` can load: "
            f"{error}",
        ) from error
    return cast("Mapping[str, Dataset]", loaded)


def read_split(dataset: "Dataset", where: str) -> Iterator[FileRow]:
    """Read the rows of one split; class numbers become the data set's class names."""
    names_of = {
        column: names
        for column, feature in dataset.features.items()
        if (names := _class_names(feature)) is not None
    }
    for number, item in enumerate(dataset, start=1):
        place = f"{where}:{number}"
        values = dict(cast("Mapping[str, object]", item))
        for column, names in names_of.items():
            values[column] = _named(values[column], names, column, place)
        yield FileRow(where=place, columns_at=where, values=values)


def _class_names(feature: object) -> list[str] | None:
    """The names of a class feature, or of a list of class features."""
    inner = getattr(feature, "feature", feature)
    return cast("list[str] | None", getattr(inner, "names", None))


def _named(value: object, names: list[str], column: str, where: str) -> object:
    if isinstance(value, list):
        return [_named(each, names, column, where) for each in cast("list[object]", value)]
    # Unlabelled rows carry the class -1.
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise NunatakError(
            "invalid_row",
            where=where,
            problem=f"{column!r} must be in [0, {len(names)}), got {value!r}",
        )
    return names[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    name: str
    train: Iterator[FileRow]
    dev: Iterator[FileRow] | None
    test: Iterator[FileRow] | None = None


def load_examples(path: str | Path, *, kind: TaskKind | None = None) -> list[Example]:
    """Read the examples of one file; without a kind, the first row decides (`kind_of_row`).

    Raises:
        NunatakError: the file is missing, unreadable or holds a broken row.
    """
    kind, rows = _with_kind(read_file(Path(path)), kind)
    return [read.example for read in _examples(rows, kind)]


def load_task_data(
    source: str | Path,
    *,
    kind: TaskKind | None = None,
    dev: str | Path | None = None,
    seed: int = 0,
    spelt: RowFormat | None = None,
    load_dataset: DatasetLoader = load_from_hub,
) -> TaskData:
    """Load train and dev examples and check that a task can be trained on them.

    Args:
        source: a file, a folder, or the name of a data set (`datasets:NAME[:CONFIG]`, or just the
            name if no such path exists).
        kind: the kind of the task; if None, the first train row decides (`kind_of_row`).
        dev: a file of dev examples, in place of the dev examples of `source`.
        seed: seeds the dev split, which is drawn if there are no dev examples.
        spelt: the columns and the delimiter of the files, if not the default ones.
        load_dataset: loads a data set that is no path.

    Raises:
        NunatakError: the examples cannot be used; the message names file and line.
    """
    spelt = spelt or RowFormat()
    found = _open_source(source, spelt.delimiter, load_dataset)
    kind, rows = _with_kind((spelt.usual(row, kind) for row in found.train), kind)
    train = _examples(rows, kind)
    check_train(train, kind, found.name)
    dev_rows = found.dev if dev is None else read_file(Path(dev), delimiter=spelt.delimiter)
    if dev_rows is not None:
        chosen_dev = _examples((spelt.usual(row, kind) for row in dev_rows), kind)
    else:
        train, chosen_dev = draw_dev(train, kind, seed=seed, name=found.name)
    labels = label_names(train, kind)
    check_scored(chosen_dev, labels, found.name, split="dev")
    test: ExampleSet | None = None
    if found.test is not None:
        tested = _examples((spelt.usual(row, kind) for row in found.test), kind)
        check_scored(tested, labels, found.name, split="test")
        test = _set_of(tested)
    return TaskData(
        name=found.name,
        kind=kind,
        train=_set_of(train),
        dev=_set_of(chosen_dev),
        test=test,
        labels=labels,
    )


def load_test_set(path: str | Path, data: TaskData) -> ExampleSet:
    """Read a file of examples to score a task that was trained on `data`.

    Raises:
        NunatakError: the file is missing, broken or empty, or no ranking has a right document.
        NunatakError: `unknown_label`, a label does not occur in the train examples.
    """
    return _set_of(load_test_rows(path, kind=data.kind, labels=data.labels))


def load_test_rows(
    path: str | Path, *, kind: TaskKind, labels: tuple[str, ...]
) -> list[ReadExample]:
    """Read a file of examples that a task of these labels can be scored on, with their places.

    Raises:
        NunatakError: the file is missing, broken or empty, or holds nothing that can be found.
        NunatakError: `unknown_label`, it has a label that the task does not know.
    """
    path = Path(path).expanduser()
    found = _examples(read_file(path), kind)
    check_scored(found, labels, path.name, split="test")
    return found


def _with_kind(
    rows: Iterator[FileRow], kind: TaskKind | None
) -> tuple[TaskKind, Iterator[FileRow]]:
    """Return the kind, from the first row if not given, and all rows."""
    first = list(islice(rows, 1))
    told = kind_of_row(first[0].values) if first else TaskKind.SINGLE_LABEL
    return kind or told, chain(first, rows)


def _open_source(source: str | Path, delimiter: str | None, load_dataset: DatasetLoader) -> _Source:
    if isinstance(source, Path) or _is_path(source):
        return _open_path(Path(source), delimiter)
    return _open_hub(HubReference.parse(source), load_dataset)


def _is_path(source: str) -> bool:
    """Whether a text names a path. A typo in a file name must not become a search of the hub."""
    if source.startswith(HUB_PREFIX):
        return False
    suffixes = tuple(suffix.value for suffix in FileFormat)
    return Path(source).exists() or source.endswith(suffixes) or source.startswith((".", "/", "~"))


def _open_path(path: Path, delimiter: str | None) -> _Source:
    if not path.exists():
        raise NunatakError("data_not_found", where=path.name, problem="no such file or folder")
    name = path.resolve().name
    if path.is_file():
        return _Source(name=name, train=read_file(path, delimiter=delimiter), dev=None)
    train = _find_file(path, ("train",))
    if train is None:
        suffixes = ", ".join(f"train{suffix.value}" for suffix in FileFormat)
        raise NunatakError(
            "data_not_found", where=name, problem=f"the folder has no file of {suffixes}"
        )
    dev, test = _find_file(path, DEV_NAMES), _find_file(path, ("test",))
    return _Source(
        name=name,
        train=read_file(train, delimiter=delimiter),
        dev=None if dev is None else read_file(dev, delimiter=delimiter),
        test=None if test is None else read_file(test, delimiter=delimiter),
    )


def _find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    candidates = (folder / f"{name}{suffix.value}" for name in names for suffix in FileFormat)
    return next((path for path in candidates if path.is_file()), None)


def _open_hub(reference: HubReference, load_dataset: DatasetLoader) -> _Source:
    splits = load_dataset(reference)
    if "train" not in splits:
        raise NunatakError(
            "data_not_found",
            where=str(reference),
            problem=f"the data set must have a split 'train', it has {sorted(splits)}",
        )
    dev_name = next((name for name in ("validation", "dev") if name in splits), None)
    return _Source(
        name=str(reference),
        train=read_split(splits["train"], f"{reference}/train"),
        dev=None if dev_name is None else read_split(splits[dev_name], f"{reference}/{dev_name}"),
    )


def _examples(rows: Iterable[FileRow], kind: TaskKind) -> list[ReadExample]:
    return [read for row in rows for read in parse_row(row, kind)]


def _set_of(examples: list[ReadExample]) -> ExampleSet:
    return ExampleSet(examples=tuple(read.example for read in examples))

"""What `--data` may name, and the checks that hold for a whole task.

A source is a file, a folder with `train.*` and `dev.*` (or `validation.*`), or a data set of the
`datasets` library. Without dev examples of its own, a tenth of the train examples becomes dev.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from nunatak_training.data.examples import Example, ExampleSet, ReadExample, TaskData
from nunatak_training.data.hub import (
    HUB_PREFIX,
    DatasetLoader,
    HubReference,
    load_from_hub,
    read_split,
)
from nunatak_training.data.readers import FileFormat, read_file
from nunatak_training.data.rows import Row, parse_row
from nunatak_training.data.vocabulary import check_scored, check_train, draw_dev, label_names
from nunatak_training.errors import DataNotFoundError
from nunatak_training.kinds import TaskKind, kind_of_row

DEV_NAMES = ("dev", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    name: str
    train: Iterator[Row]
    dev: Iterator[Row] | None


def load_examples(path: str | Path, *, kind: TaskKind | None = None) -> list[Example]:
    """Read the examples of one file; without a kind, its first row tells it (`kind_of_row`).

    Raises:
        DataError: the file is missing, unreadable or holds a broken row.
    """
    kind, rows = _with_kind(read_file(Path(path)), kind)
    return [read.example for read in _examples(rows, kind)]


def load_task_data(
    source: str | Path,
    *,
    kind: TaskKind | None = None,
    dev: str | Path | None = None,
    seed: int = 0,
    load_dataset: DatasetLoader = load_from_hub,
) -> TaskData:
    """Load train and dev examples and check that a task can be trained on them.

    Args:
        source: a file, a folder, or the name of a data set (`datasets:NAME[:CONFIG]`, or just
            the name where no such path exists).
        kind: of the task; without one, the first train row tells it (`kind_of_row`).
        dev: a file of dev examples, in place of those that `source` would give.
        seed: of the dev split that is drawn where there are no dev examples.
        load_dataset: loads a data set that is no path.

    Raises:
        DataError: with file and line where there is one.
    """
    found = _open_source(source, load_dataset)
    kind, rows = _with_kind(found.train, kind)
    train = _examples(rows, kind)
    check_train(train, kind, found.name)
    dev_rows = found.dev if dev is None else read_file(Path(dev))
    if dev_rows is not None:
        chosen_dev = _examples(dev_rows, kind)
    else:
        train, chosen_dev = draw_dev(train, kind, seed=seed, name=found.name)
    labels = label_names(train, kind)
    check_scored(chosen_dev, labels, found.name, split="dev")
    return TaskData(
        name=found.name, kind=kind, train=_set_of(train), dev=_set_of(chosen_dev), labels=labels
    )


def load_test_set(path: str | Path, data: TaskData) -> ExampleSet:
    """Read a file of examples that what was trained on `data` can be scored on.

    Raises:
        DataError: the file is missing, broken or empty, or holds nothing that can be found.
        UnknownLabelError: it has a label that the task was not trained on.
    """
    path = Path(path)
    found = _examples(read_file(path), data.kind)
    check_scored(found, data.labels, path.name, split="test")
    return _set_of(found)


def _with_kind(rows: Iterator[Row], kind: TaskKind | None) -> tuple[TaskKind, Iterator[Row]]:
    """Tell the kind from the first row, unless it is given, and return all rows again."""
    first = list(islice(rows, 1))
    told = kind_of_row(first[0].values) if first else TaskKind.SINGLE_LABEL
    return kind or told, chain(first, rows)


def _open_source(source: str | Path, load_dataset: DatasetLoader) -> _Source:
    if isinstance(source, Path) or _is_path(source):
        return _open_path(Path(source))
    return _open_hub(HubReference.parse(source), load_dataset)


def _is_path(source: str) -> bool:
    """Whether a text names a path; a slip in a file name must not become a search of the hub."""
    if source.startswith(HUB_PREFIX):
        return False
    suffixes = tuple(suffix.value for suffix in FileFormat)
    return Path(source).exists() or source.endswith(suffixes) or source.startswith((".", "/", "~"))


def _open_path(path: Path) -> _Source:
    if not path.exists():
        raise DataNotFoundError(path.name, "no such file or folder")
    name = path.resolve().name
    if path.is_file():
        return _Source(name=name, train=read_file(path), dev=None)
    train = _find_file(path, ("train",))
    if train is None:
        suffixes = ", ".join(f"train{suffix.value}" for suffix in FileFormat)
        raise DataNotFoundError(name, f"the folder holds none of {suffixes}")
    dev = _find_file(path, DEV_NAMES)
    return _Source(name=name, train=read_file(train), dev=None if dev is None else read_file(dev))


def _find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    candidates = (folder / f"{name}{suffix.value}" for name in names for suffix in FileFormat)
    return next((path for path in candidates if path.is_file()), None)


def _open_hub(reference: HubReference, load_dataset: DatasetLoader) -> _Source:
    splits = load_dataset(reference)
    if "train" not in splits:
        raise DataNotFoundError(
            str(reference), f"the data set has no split 'train', but {sorted(splits)}"
        )
    dev_name = next((name for name in ("validation", "dev") if name in splits), None)
    return _Source(
        name=str(reference),
        train=read_split(splits["train"], f"{reference}/train"),
        dev=None if dev_name is None else read_split(splits[dev_name], f"{reference}/{dev_name}"),
    )


def _examples(rows: Iterable[Row], kind: TaskKind) -> list[ReadExample]:
    return [read for row in rows for read in parse_row(row, kind)]


def _set_of(examples: list[ReadExample]) -> ExampleSet:
    return ExampleSet(examples=tuple(read.example for read in examples))

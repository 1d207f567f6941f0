"""What `--data` may name, and the checks that hold for a whole task.

A source is a file, a folder with `train.*` and `dev.*` (or `validation.*`), or a data set of the
`datasets` library. Without dev examples of its own, a tenth of the train examples becomes dev.
"""

from collections import Counter
from pathlib import Path

from nunatak_training.data.examples import (
    Example,
    ExampleSet,
    ReadExample,
    TaskData,
    sorted_labels,
)
from nunatak_training.data.hub import (
    HUB_PREFIX,
    DatasetLoader,
    HubReference,
    load_from_hub,
    read_split,
)
from nunatak_training.data.readers import FileFormat, read_file
from nunatak_training.data.splits import split_off_dev
from nunatak_training.errors import DataNotFoundError, TooFewExamplesError, UnknownLabelError

DEV_NAMES = ("dev", "validation")


def load_examples(path: str | Path) -> list[Example]:
    """Read the examples of one file.

    Raises:
        DataError: the file is missing, unreadable or holds a broken row.
    """
    return [read.example for read in read_file(Path(path))]


def load_task_data(
    source: str | Path,
    *,
    dev: str | Path | None = None,
    seed: int = 0,
    load_dataset: DatasetLoader = load_from_hub,
) -> TaskData:
    """Load train and dev examples and check that a classifier can be trained on them.

    Args:
        source: a file, a folder, or the name of a data set (`datasets:NAME[:CONFIG]`, or just
            the name where no such path exists).
        dev: a file of dev examples, in place of those that `source` would give.
        seed: of the dev split that is drawn where there are no dev examples.
        load_dataset: loads a data set that is no path.

    Raises:
        DataError: with file and line where there is one.
    """
    name, train, own_dev = _read_source(source, load_dataset)
    _check_classes(train, name)
    if dev is not None:
        chosen_dev = list(read_file(Path(dev)))
    elif own_dev is not None:
        chosen_dev = own_dev
    else:
        train, chosen_dev = split_off_dev(train, seed=seed)
    labels = sorted_labels(read.example.label for read in train)
    _check_dev(chosen_dev, labels, name)
    return TaskData(name=name, train=_set_of(train), dev=_set_of(chosen_dev), labels=labels)


def _read_source(
    source: str | Path, load_dataset: DatasetLoader
) -> tuple[str, list[ReadExample], list[ReadExample] | None]:
    """Return the name of the data, its train examples and, if it has them, its dev examples."""
    if isinstance(source, Path) or _is_path(source):
        return _read_path(Path(source))
    return _read_hub(HubReference.parse(source), load_dataset)


def _is_path(source: str) -> bool:
    """Whether a text names a path; a slip in a file name must not become a search of the hub."""
    if source.startswith(HUB_PREFIX):
        return False
    suffixes = tuple(suffix.value for suffix in FileFormat)
    return Path(source).exists() or source.endswith(suffixes) or source.startswith((".", "/", "~"))


def _read_path(path: Path) -> tuple[str, list[ReadExample], list[ReadExample] | None]:
    if not path.exists():
        raise DataNotFoundError(path.name, "no such file or folder")
    name = path.resolve().name
    if path.is_file():
        return name, list(read_file(path)), None
    train = _find_file(path, ("train",))
    if train is None:
        suffixes = ", ".join(f"train{suffix.value}" for suffix in FileFormat)
        raise DataNotFoundError(name, f"the folder holds none of {suffixes}")
    dev = _find_file(path, DEV_NAMES)
    return name, list(read_file(train)), None if dev is None else list(read_file(dev))


def _find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    candidates = (folder / f"{name}{suffix.value}" for name in names for suffix in FileFormat)
    return next((path for path in candidates if path.is_file()), None)


def _read_hub(
    reference: HubReference, load_dataset: DatasetLoader
) -> tuple[str, list[ReadExample], list[ReadExample] | None]:
    splits = load_dataset(reference)
    if "train" not in splits:
        raise DataNotFoundError(
            str(reference), f"the data set has no split 'train', but {sorted(splits)}"
        )
    train = list(read_split(splits["train"], f"{reference}/train"))
    dev_name = next((name for name in ("validation", "dev") if name in splits), None)
    if dev_name is None:
        return str(reference), train, None
    return str(reference), train, list(read_split(splits[dev_name], f"{reference}/{dev_name}"))


def _check_classes(train: list[ReadExample], name: str) -> None:
    sizes = Counter(read.example.label for read in train)
    if len(sizes) < 2:
        raise TooFewExamplesError(
            name, f"expected train examples of at least 2 labels, got {sorted(sizes)}"
        )
    for read in train:
        if sizes[read.example.label] == 1:
            raise TooFewExamplesError(
                read.where,
                f"label {read.example.label!r} has 1 train example; give it at least 2, "
                "or remove the row",
            )


def _check_dev(dev: list[ReadExample], labels: tuple[str, ...], name: str) -> None:
    if not dev:
        raise TooFewExamplesError(name, "there are no dev examples")
    known = set(labels)
    for read in dev:
        if read.example.label not in known:
            raise UnknownLabelError(read.where, read.example.label, labels)


def _set_of(examples: list[ReadExample]) -> ExampleSet:
    return ExampleSet(examples=tuple(read.example for read in examples))

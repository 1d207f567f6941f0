"""Data sets of the Hugging Face `datasets` library, imported only when one is asked for."""

# The library ships no stubs, and types its mappings and features loosely.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from nunatak_training.data.rows import Row
from nunatak_training.errors import DataNotFoundError, InvalidRowError

if TYPE_CHECKING:
    from datasets import Dataset

HUB_PREFIX = "datasets:"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReference:
    """A data set of the hub and, where it has several, one of its configurations."""

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
            DataNotFoundError: there is no such data set, or it cannot be reached.
        """
        ...


def load_from_hub(reference: HubReference) -> "Mapping[str, Dataset]":
    """Load a data set with the `datasets` library, from its cache or the network."""
    # The library takes a second to import and most runs read a file.
    from datasets import load_dataset  # noqa: PLC0415

    try:
        loaded = load_dataset(reference.name, reference.config)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataNotFoundError(
            str(reference),
            f"neither a file or folder here nor a data set that `datasets` can load: {error}",
        ) from error
    return cast("Mapping[str, Dataset]", loaded)


def read_split(dataset: "Dataset", where: str) -> Iterator[Row]:
    """Read the rows of one split; class numbers become the class names the data set gives."""
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
        yield Row(where=place, columns_at=where, values=values)


def _class_names(feature: object) -> list[str] | None:
    """The names of a class feature, or of a list of such."""
    inner = getattr(feature, "feature", feature)
    return cast("list[str] | None", getattr(inner, "names", None))


def _named(value: object, names: list[str], column: str, where: str) -> object:
    if isinstance(value, list):
        return [_named(each, names, column, where) for each in cast("list[object]", value)]
    # Unlabelled rows carry the class -1.
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise InvalidRowError(where, f"{column!r} must be in [0, {len(names)}), got {value!r}")
    return names[value]

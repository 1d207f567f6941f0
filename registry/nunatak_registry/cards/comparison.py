"""Two versions side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from nunatak_registry.cards.wording import (
    head_text,
    method_text,
    own_parameters,
    shared_text,
    stored_bytes,
)
from nunatak_registry.manifest import TaskManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One property of both versions; None: that version does not have it."""

    name: str
    left: JsonValue
    right: JsonValue

    @property
    def differs(self) -> bool:
        """Whether the versions differ in it."""
        return self.left != self.right

    @property
    def change(self) -> float | None:
        """Right minus left, of numbers."""
        match self.left, self.right:
            case (bool(), _) | (_, bool()):
                return None
            case ((int() | float() as left), (int() | float() as right)):
                return right - left
            case _:
                return None


def compare(left: TaskManifest, right: TaskManifest) -> tuple[Compared, ...]:
    """Compare what tells versions apart: method, labels, scores, data, recipe and sizes.

    Of the recipes only the settings that differ are named.
    """
    settings = _merged("recipe", _settings(left), _settings(right))
    return (
        *_merged("", _facts(left), _facts(right)),
        *_merged("metric", _metrics(left), _metrics(right)),
        *(row for row in settings if row.differs),
    )


def _facts(manifest: TaskManifest) -> dict[str, JsonValue]:
    data = manifest.data
    return {
        "head": head_text(manifest.head),
        "labels": list[JsonValue](manifest.head.labels),
        "method": method_text(manifest.method),
        "shared layers": shared_text(manifest),
        "split depth": manifest.split_depth,
        "backbone": f"{manifest.backbone.name} {manifest.backbone.digest[:12]}",
        "longest input": manifest.max_length,
        "own parameters": own_parameters(manifest),
        "stored bytes": stored_bytes(manifest),
        "train data": None if data is None else f"{data.name} {data.train_digest[:12]}",
        "dev data": None if data is None else f"{data.name} {data.dev_digest[:12]}",
    }


def _metrics(manifest: TaskManifest) -> dict[str, JsonValue]:
    return {metric.name: metric.value for metric in manifest.metrics}


def _settings(manifest: TaskManifest) -> dict[str, JsonValue]:
    # The method has a line of its own already.
    recipe = manifest.recipe
    return {} if recipe is None else {k: v for k, v in recipe.settings.items() if k != "method"}


def _merged(
    group: str, left: Mapping[str, JsonValue], right: Mapping[str, JsonValue]
) -> Iterator[Compared]:
    for name in dict.fromkeys([*left, *right]):
        shown = f"{group} {name}".strip()
        yield Compared(name=shown, left=left.get(name), right=right.get(name))

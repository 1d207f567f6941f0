"""Sweep files, YAML or TOML: the axes whose product are the runs of a sweep."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from nunatak_model import (
    DEFAULT_BACKBONE,
    BackboneConfig,
    Bottleneck,
    Full,
    HeadOnly,
    Lora,
    Method,
    TopK,
)
from nunatak_registry.names import TaskName
from nunatak_training.errors import InvalidSweepError
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import RegularizerName, TaptSettings

Count = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=0)]
Cap = Count | Literal["all"]
Changes = dict[str, JsonValue]
"""Settings of a recipe by name, in place of the method's defaults."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _RecipeEntry(_Entry):
    recipe: Changes = Field(default={}, description="settings for the runs of this entry")


class TaskEntry(_RecipeEntry):
    """One task, and the examples it is learnt from."""

    name: TaskName
    data: str | None = Field(default=None, description="a path or data set; null: the task's name")
    kind: TaskKind | None = Field(default=None, description="null: the first train row tells it")
    dev: str | None = Field(default=None, description="a file of dev examples")
    train_caps: tuple[Cap, ...] = Field(default=(), description="in place of the sweep's")


class TopKAxis(_RecipeEntry):
    """Own top layers: counted from above, or by how many stay frozen below."""

    kind: Literal["topk"]
    layers: tuple[Count, ...] = ()
    frozen: tuple[Depth, ...] = Field(default=(), description="as many as layers: a head alone")

    @model_validator(mode="after")
    def _is_counted_one_way(self) -> "TopKAxis":
        if bool(self.layers) == bool(self.frozen):
            raise ValueError("topk needs either layers or frozen, a list of counts")
        return self


class HeadAxis(_RecipeEntry):
    """A head alone."""

    kind: Literal["head"]


class BottleneckAxis(_RecipeEntry):
    """Bottleneck adapters of some sizes."""

    kind: Literal["bottleneck"]
    sizes: tuple[Count, ...] = (64,)
    first_layer: Depth = 0


class LoraAxis(_RecipeEntry):
    """Low-rank updates of some ranks."""

    kind: Literal["lora"]
    ranks: tuple[Count, ...] = (8,)
    first_layer: Depth = 0


class FullAxis(_RecipeEntry):
    """Everything tuned."""

    kind: Literal["full"]


MethodAxis = Annotated[
    TopKAxis | HeadAxis | BottleneckAxis | LoraAxis | FullAxis, Field(discriminator="kind")
]


class RegularizerEntry(_RecipeEntry):
    """One regularizer, `none` among them."""

    name: RegularizerName
    rate: float | None = Field(default=None, description="null: as the paper has it")


class Grid(_Entry):
    """All axes of a sweep.

    A setting that several places name is taken from the innermost: the grid's `recipe`, the
    task's, the method's, the regularizer's, then pretraining, learning rate and seed; `overrides`
    win over all of them.
    """

    name: TaskName = "sweep"
    backbones: Annotated[tuple[str, ...], Field(min_length=1)] = (DEFAULT_BACKBONE,)
    tasks: Annotated[tuple[TaskEntry, ...], Field(min_length=1)]
    methods: Annotated[tuple[MethodAxis, ...], Field(min_length=1)]
    regularizers: tuple[RegularizerEntry, ...] = Field(
        default=(), description="none: that of the recipe"
    )
    tapt: tuple[TaptSettings | None, ...] = Field(
        default=(), description="task-adaptive pretraining, null: without; none: that of the recipe"
    )
    learning_rates: tuple[float, ...] = Field(default=(), description="none: those of the recipe")
    seeds: tuple[Depth, ...] = Field(default=(), description="none: that of the recipe")
    train_caps: Annotated[tuple[Cap, ...], Field(min_length=1)] = ("all",)
    dev_cap: Cap = "all"
    dev_from_train: bool = Field(
        default=False,
        description="choose by examples that the cap leaves out of the train set, and test on the "
        "dev set (He et al. 2021, sec. 3.2)",
    )
    recipe: Changes = Field(default={}, description="settings for all runs")
    overrides: Changes = Field(default={}, description="settings of all runs, whoever names others")
    data_root: Path | None = Field(default=None, description="folder of the tasks' data")

    @model_validator(mode="after")
    def _leaves_train_examples_for_dev(self) -> "Grid":
        caps = {*self.train_caps, *(cap for task in self.tasks for cap in task.train_caps)}
        if self.dev_from_train and ("all" in caps or self.dev_cap == "all"):
            raise ValueError("dev_from_train needs numbers in train_caps and dev_cap")
        return self


def methods_of(axis: MethodAxis, config: BackboneConfig) -> Sequence[Method]:
    """The methods of an axis on a backbone.

    Raises:
        InvalidSweepError: the backbone has fewer layers.
    """
    match axis:
        case TopKAxis():
            counts = axis.layers or tuple(config.num_layers - frozen for frozen in axis.frozen)
            return [_topmost(count, config) for count in counts]
        case HeadAxis():
            return [HeadOnly()]
        case BottleneckAxis():
            return [Bottleneck(size=size, first_layer=axis.first_layer) for size in axis.sizes]
        case LoraAxis():
            return [Lora(rank=rank, first_layer=axis.first_layer) for rank in axis.ranks]
        case FullAxis():
            return [Full()]


def _topmost(count: int, config: BackboneConfig) -> TopK | HeadOnly:
    if not 0 <= count <= config.num_layers:
        raise InvalidSweepError(
            "methods",
            f"a backbone of {config.num_layers} layers has no {count} to tune; its frozen layers "
            f"are 0 to {config.num_layers}",
        )
    return TopK(num_layers=count) if count else HeadOnly()


YAML_SUFFIXES = (".yaml", ".yml")


def read_grid(path: Path | None, changes: Mapping[str, JsonValue] | None = None) -> Grid:
    """Read a sweep file; `changes` take the place of its axes by name, and can be all there is.

    Raises:
        InvalidSweepError: there is no such file, it is neither YAML nor TOML, or names what a
            sweep does not know.
    """
    where = "options" if path is None else path.name
    settings = dict[str, object]() if path is None else _settings(path)
    try:
        return Grid.model_validate({**settings, **(changes or {})})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'sweep'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise InvalidSweepError(where, problems) from error


def _settings(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix not in YAML_SUFFIXES:
            raise InvalidSweepError(path.name, "expected a name that ends in .yaml, .yml or .toml")
        loaded: object = yaml.safe_load(text)
    except OSError as error:
        raise InvalidSweepError(path.name, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise InvalidSweepError(path.name, f"cannot be parsed: {error}") from error
    if not isinstance(loaded, dict):
        raise InvalidSweepError(path.name, f"expected settings by name, got {loaded!r:.40}")
    return cast("Mapping[str, object]", loaded)

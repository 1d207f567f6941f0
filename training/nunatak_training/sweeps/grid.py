"""Sweep files, YAML or TOML. The product of the axes is the runs of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import Method
from nunatak_contract.names import TaskName
from nunatak_model import DEFAULT_BACKBONE, BackboneConfig
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import method_on
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import METHODS, RegularizerName, TaptSettings
from nunatak_training.run_settings import method_settings, read_settings
from nunatak_training.settings import Setting, Settings, problems_in, read_mapping, with_values

Count = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=0)]
Cap = Count | Literal["all"]
Changes = dict[str, JsonValue]


class _RecipeEntry(Settings):
    recipe: Changes = Field(default={}, description="settings for the runs of this entry")


class TaskEntry(_RecipeEntry):
    """One task, and its examples."""

    name: TaskName
    data: str | None = Field(default=None, description="a path or data set; null: the task's name")
    kind: TaskKind | None = Field(default=None, description="null: the first train row decides")
    dev: str | None = Field(default=None, description="a file of dev examples")
    train_caps: tuple[Cap, ...] = Field(
        default=(), description="in place of the sweep's train caps"
    )


class MethodAxis(Settings):
    """A method with some of its settings by name; each value of a list is one run."""

    model_config = ConfigDict(extra="allow")

    kind: str
    recipe: Changes = Field(default={}, description="settings for the runs of this entry")

    @model_validator(mode="after")
    def _has_settings_of_the_method(self) -> "MethodAxis":
        try:
            for named in self.choices():
                read_settings(named)
        except InvalidRecipeError as error:
            raise ValueError(str(error)) from error
        return self

    def choices(self) -> Iterator[dict[str, JsonValue]]:
        named: dict[str, JsonValue] = self.model_extra or {}
        known: Mapping[str, Setting] = {}
        if self.kind in METHODS:
            known = method_settings(self.kind)
        values = [
            value if isinstance(value, list) and not _is_one(value, known.get(name)) else [value]
            for name, value in named.items()
        ]
        for chosen in product(*values):
            yield {"method": self.kind, **dict(zip(named, chosen, strict=True))}


def _is_one(value: list[JsonValue], setting: Setting | None) -> bool:
    return setting is not None and setting.is_list and not any(isinstance(it, list) for it in value)


def methods_of(axis: MethodAxis, config: BackboneConfig) -> Sequence[Method]:
    return [method_on(read_settings(named), config) for named in axis.choices()]


class RegularizerEntry(_RecipeEntry):
    """One regularizer; `none` is possible."""

    name: RegularizerName
    rate: float | None = Field(default=None, description="null: the paper's rate")


class Grid(Settings):
    """All axes of a sweep.

    If several places set a setting, the last of these counts: the grid's `recipe`, the task, the
    method, the regularizer, pretraining, learning rate, seed, `overrides`.
    """

    name: TaskName = "sweep"
    backbones: Annotated[tuple[str, ...], Field(min_length=1)] = (DEFAULT_BACKBONE,)
    tasks: Annotated[tuple[TaskEntry, ...], Field(min_length=1)]
    methods: Annotated[tuple[MethodAxis, ...], Field(min_length=1)]
    regularizers: tuple[RegularizerEntry, ...] = Field(
        default=(), description="none: the recipe's regularizer"
    )
    tapt: tuple[TaptSettings | None, ...] = Field(
        default=(), description="task-adaptive pretraining, null: without; none: as in the recipe"
    )
    learning_rates: tuple[float, ...] = Field(default=(), description="none: the recipe's rate")
    seeds: tuple[Depth, ...] = Field(default=(), description="none: the recipe's seed")
    train_caps: Annotated[tuple[Cap, ...], Field(min_length=1)] = ("all",)
    dev_cap: Cap = "all"
    dev_from_train: bool = Field(
        default=False,
        description=(
            "choose the epoch on train examples above the cap, and test on the dev set (He et al. "
            "2021, sec. 3.2)"
        ),
    )
    recipe: Changes = Field(default={}, description="settings for all runs")
    overrides: Changes = Field(
        default={}, description="settings for all runs, which override all other places"
    )
    data_root: Path | None = Field(default=None, description="folder of the tasks' data")

    @model_validator(mode="after")
    def _leaves_train_examples_for_dev(self) -> "Grid":
        caps = {*self.train_caps, *(cap for task in self.tasks for cap in task.train_caps)}
        if self.dev_from_train and ("all" in caps or self.dev_cap == "all"):
            raise ValueError("dev_from_train needs numbers in train_caps and dev_cap")
        return self


def read_grid(
    path: Path | None,
    changes: Mapping[str, object] | None = None,
    *,
    texts: Mapping[str, str] | None = None,
) -> Grid:
    """Read a sweep file, YAML or TOML.

    `changes` replace its values by name (`seeds`, `overrides.epochs`), and work without a file;
    `texts` are such values in YAML.
    """
    where = "options" if path is None else path.name
    try:
        settings = {} if path is None else read_mapping(path, texts)
        return Grid.model_validate(with_values(settings, changes or {}))
    except ValidationError as error:
        raise NunatakError("invalid_sweep", where=where, problem=problems_in(error)) from error
    except ValueError as error:
        raise NunatakError("invalid_sweep", where=where, problem=str(error)) from error

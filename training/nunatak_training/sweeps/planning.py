"""Sweep files, YAML or TOML, and the runs that follow: the product of the axes of a file."""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskName
from nunatak_contract.record import problems_text
from nunatak_model import DEFAULT_BACKBONE, Backbone
from nunatak_rows import RowFormat
from nunatak_training.data import Example, ExampleSet, Relevance, TaskData
from nunatak_training.data.splits import sameness
from nunatak_training.errors import InvalidRecipeError, too_few
from nunatak_training.fitting import method_on
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.checkpoint import head_start
from nunatak_training.recipes import METHODS, Recipe, RegularizerName, TaptSettings, default_recipe
from nunatak_training.run_settings import RunSettings, method_settings, read_settings
from nunatak_training.settings import Setting, Settings, overlaid, read_mapping, with_values
from nunatak_training.sweeps import results

Count = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=0)]
Cap = Count | Literal["all"]
Changes = dict[str, JsonValue]


class _RecipeEntry(Settings):
    recipe: Changes = Field(default={}, description="settings for the runs of this entry")


class TaskEntry(_RecipeEntry):
    name: TaskName
    data: str | None = Field(default=None, description="a path or data set; null: the task's name")
    kind: TaskKind | None = Field(default=None, description="null: the first train row decides")
    dev: str | None = Field(default=None, description="a file of dev examples")
    text_column: str | None = Field(default=None, description="the column of the text; null: text")
    label_column: str | None = Field(
        default=None, description="the column of the label; null: label or labels"
    )
    pair_column: str | None = Field(
        default=None, description="the column of the second text; null: text_pair"
    )
    train_caps: tuple[Cap, ...] = Field(
        default=(), description="in place of the sweep's train caps"
    )


class MethodAxis(Settings, extra="allow"):
    """A method with some of its settings by name; each value of a list is one run."""

    kind: str
    recipe: Changes = Field(default={}, description="settings for the runs of this entry")

    @model_validator(mode="after")
    def _has_settings_of_the_method(self) -> "MethodAxis":
        try:
            named = list(self.choices())
            for it in named:
                _check_of_method(read_settings(it), self.kind)
        except InvalidRecipeError as error:
            raise ValueError(str(error)) from error
        if not named:
            raise ValueError("a setting has no value, so there is no run; expected one or more")
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


def _check_of_method(read: RunSettings, kind: str) -> None:
    if read.layer_target is not None:
        raise ValueError("layers: auto is a search; a sweep runs the numbers of a list of layers")
    if read.changes:
        names = ", ".join(read.changes)
        raise ValueError(f"{names}: no setting of method {kind!r}; write it under recipe")


def _is_one(value: list[JsonValue], setting: Setting | None) -> bool:
    return setting is not None and setting.is_list and not any(isinstance(it, list) for it in value)


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
        raise NunatakError(
            "invalid_sweep", where=where, problem=problems_text(error, "recipe")
        ) from error
    except ValueError as error:
        raise NunatakError("invalid_sweep", where=where, problem=str(error)) from error


SAMPLE_SEED = 0
DIGEST_VERSION = 1
"""Increased when the same settings mean another run: after a changed default or another loop."""


def cut_data(data: TaskData, cut: results.Cut) -> TaskData:
    """Draw a random part, equal for every seed of training, in the order of the files.

    Only examples that choose no epoch become test examples. No dev example of the train set has a
    text of a train example. A larger part contains every smaller part, and has the labels of the
    whole data. Documents of one query stay together, so a part may be a little smaller than its
    cap.
    """
    train, rest = _split(data.train, cut.train)
    _check_cap(data.name, "train", train, cut.train)
    if (problem := sameness((it.label for it in train.examples), data.kind)) is not None:
        raise too_few(data.name, f"with {len(train)} drawn examples, {problem}; raise the cap")
    if not cut.dev_from_train:
        dev, _ = _split(data.dev, cut.dev)
        _check_cap(data.name, "dev", dev, cut.dev)
        return replace(data, train=train, dev=dev, test=None)
    if not len(rest):
        raise too_few(
            data.name,
            f"{len(data.train)} train examples leave no dev examples after "
            f"{cut.train or 'all'} for training; lower the cap, or choose by the dev set",
        )
    dev, _ = _split(rest, cut.dev)
    learned = {it.same_text for it in train.examples}
    dev = ExampleSet(examples=tuple(it for it in dev.examples if it.same_text not in learned))
    _check_cap(data.name, "dev", dev, cut.dev)
    return replace(data, train=train, dev=dev, test=data.dev)


def _check_cap(name: str, split: str, part: ExampleSet, cap: int | None) -> None:
    if not len(part):
        raise too_few(
            name,
            f"a {split} part of at most {cap} examples is empty, because documents of one "
            "query stay together; raise the cap",
        )


def _split(examples: ExampleSet, cap: int | None) -> tuple[ExampleSet, ExampleSet]:
    if cap is None or cap >= len(examples):
        return examples, ExampleSet(examples=())
    units = list(_units(examples.examples))
    random.Random(SAMPLE_SEED).shuffle(units)  # noqa: S311 - a sample needs no secrecy
    chosen = set[int]()
    for unit in units:
        if len(chosen) + len(unit) > cap:
            break
        chosen.update(unit)
    numbered = list(enumerate(examples.examples))
    return (
        ExampleSet(examples=tuple(it for number, it in numbered if number in chosen)),
        ExampleSet(examples=tuple(it for number, it in numbered if number not in chosen)),
    )


def _units(examples: Sequence[Example]) -> Iterator[list[int]]:
    groups = defaultdict[str, list[int]](list)
    for position, example in enumerate(examples):
        match example.label:
            case Relevance(group=group):
                groups[group].append(position)
            case _:
                yield [position]
    yield from groups.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    description: results.RunDescription
    origin: results.RunOrigin


def plan_runs(
    grid: Grid,
    *,
    backbone_of: Callable[[str], Backbone],
    data_of: Callable[[results.Source], TaskData],
) -> tuple[Run, ...]:
    """Equal combinations give one run.

    Runs on the same backbone and data come one after another, so that both are loaded once.
    """
    runs: dict[str, Run] = {}
    for name, task in product(grid.backbones, grid.tasks):
        backbone = backbone_of(name)
        for source in _sources(grid, task):
            data = data_of(source)
            for recipe in _recipes(grid, task, backbone):
                description = describe(grid.name, task.name, source, data, recipe, backbone)
                origin = results.RunOrigin(backbone=name, source=source)
                run = Run(description=description, origin=origin)
                known = runs.setdefault(description.digest, run).description
                if known.task != task.name:
                    problem = (
                        f"tasks {known.task!r} and {task.name!r} have the same examples and "
                        "settings, and a run has one name; leave one of them out"
                    )
                    raise NunatakError("invalid_sweep", where=grid.name, problem=problem)
    return tuple(runs.values())


def describe(
    sweep: str,
    task: str,
    source: results.Source,
    data: TaskData,
    recipe: Recipe,
    backbone: Backbone,
) -> results.RunDescription:
    described = results.DataDescription(
        source=data.name,
        kind=data.kind.value,
        train_digest=data.train.digest,
        dev_digest=data.dev.digest,
        test_digest=None if data.test is None else data.test.digest,
        num_train=len(data.train),
        num_dev=len(data.dev),
        num_test=0 if data.test is None else len(data.test),
    )
    determining: dict[str, JsonValue] = {
        "version": DIGEST_VERSION,
        "backbone": backbone.digest,
        "kind": described.kind,
        "labels": list[JsonValue](data.labels),
        "data": [described.train_digest, described.dev_digest, described.test_digest],
        # Settings that differ from their defaults, and method and regularizer in full: a new
        # setting keeps the digests of old runs, if its default keeps the old behaviour.
        "recipe": {
            **recipe.model_dump(mode="json", exclude={"backbone"}, exclude_defaults=True),
            **recipe.model_dump(mode="json", include={"method", "regularizer"}),
        },
    }
    if start := head_start(data.kind, recipe, backbone):
        determining["head"] = list[JsonValue](start)
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"))
    return results.RunDescription(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        sweep=sweep,
        task=task,
        train_cap=source.cut.train,
        backbone=results.BackboneDescription(
            name=backbone.name, digest=backbone.digest, num_layers=backbone.config.num_layers
        ),
        data=described,
        recipe=recipe,
    )


def _recipes(grid: Grid, task: TaskEntry, backbone: Backbone) -> Iterator[Recipe]:
    # Without an axis, the recipe decides the setting.
    regularizers = [
        {
            **it.recipe,
            "regularizer": it.model_dump(mode="json", include={"name", "rate"}, exclude_none=True),
        }
        for it in grid.regularizers
    ] or [{}]
    tapts = [{"tapt": it.model_dump(mode="json") if it else None} for it in grid.tapt] or [{}]
    rates = [{"learning_rate": rate} for rate in grid.learning_rates] or [{}]
    seeds = [{"seed": seed} for seed in grid.seeds] or [{}]
    for axis, *chosen in product(grid.methods, regularizers, tapts, rates, seeds):
        changes = overlaid(grid.recipe, task.recipe, axis.recipe, *chosen, grid.overrides)
        for named in axis.choices():
            method = method_on(read_settings(named), backbone.config)
            yield default_recipe(method, backbone=backbone.name, changes=changes)


def _sources(grid: Grid, task: TaskEntry) -> Iterator[results.Source]:
    for cap in task.train_caps or grid.train_caps:
        yield results.Source(
            data=_below(grid.data_root, task.data or task.name),
            kind=task.kind,
            dev=None if task.dev is None else _below(grid.data_root, task.dev),
            spelt=RowFormat(text=task.text_column, label=task.label_column, pair=task.pair_column),
            cut=results.Cut(
                train=_number(cap), dev=_number(grid.dev_cap), dev_from_train=grid.dev_from_train
            ),
        )


def _below(root: Path | None, name: str) -> str:
    """A path in full, so that any folder can repeat a result; or the name of a data set."""
    path = Path(name) if root is None else root / name
    return str(path.resolve() if path.exists() else path)


def _number(cap: Cap) -> int | None:
    return cap if isinstance(cap, int) else None

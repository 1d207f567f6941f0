"""From the axes of a sweep to its runs, each with the digest of all that determines it."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import JsonValue

from nunatak_model import Backbone
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.sweeps.cuts import Cut, CutData
from nunatak_training.sweeps.grid import Cap, Grid, RegularizerEntry, TaskEntry
from nunatak_training.sweeps.methods import methods_of
from nunatak_training.sweeps.records import BackboneDescription, DataDescription, RunDescription

DIGEST_VERSION = 1
"""Goes up when the same settings begin to mean another run: a changed default, another loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the examples of a run come from, and how many of them it reads."""

    data: str
    kind: TaskKind | None = None
    dev: str | None = None
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run that is still to be done."""

    description: RunDescription
    backbone: str
    """As it is loaded: a name, a folder or an id."""
    source: Source


def plan_runs(
    grid: Grid,
    *,
    backbone_of: Callable[[str], Backbone],
    data_of: Callable[[Source], CutData],
) -> tuple[Run, ...]:
    """Return the runs of a sweep; combinations that come to the same run are one.

    Runs on the same backbone and data are neighbours, for both are loaded once then.

    Raises:
        InvalidSweepError: a method does not fit a backbone.
        InvalidRecipeError: settings contradict each other.
        DataError: the data of a task cannot be read.
    """
    runs: dict[str, Run] = {}
    for name, task in product(grid.backbones, grid.tasks):
        backbone = backbone_of(name)
        for source in _sources(grid, task):
            data = data_of(source)
            for recipe in _recipes(grid, task, backbone):
                description = describe(grid.name, task.name, source, data, recipe, backbone)
                run = Run(description=description, backbone=name, source=source)
                runs.setdefault(description.digest, run)
    return tuple(runs.values())


def describe(
    sweep: str, task: str, source: Source, cut: CutData, recipe: Recipe, backbone: Backbone
) -> RunDescription:
    """Describe a run, and name it by the digest of backbone, data and recipe."""
    data = DataDescription(
        source=cut.data.name,
        kind=cut.data.kind.value,
        train_digest=cut.data.train.digest,
        dev_digest=cut.data.dev.digest,
        test_digest=None if cut.test is None else cut.test.digest,
        num_train=len(cut.data.train),
        num_dev=len(cut.data.dev),
        num_test=0 if cut.test is None else len(cut.test),
    )
    determining: dict[str, JsonValue] = {
        "version": DIGEST_VERSION,
        "backbone": backbone.digest,
        "kind": data.kind,
        "labels": list[JsonValue](cut.data.labels),
        "data": [data.train_digest, data.dev_digest, data.test_digest],
        "recipe": _determining(recipe),
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"))
    return RunDescription(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        sweep=sweep,
        task=task,
        train_cap=source.cut.train,
        backbone=BackboneDescription(
            name=backbone.name, digest=backbone.digest, num_layers=backbone.config.num_layers
        ),
        data=data,
        recipe=recipe,
    )


def _determining(recipe: Recipe) -> dict[str, JsonValue]:
    """The settings that are not at their defaults, with method and regularizer in full.

    So a setting that recipes gain later, with a default that means what was done before, does not
    make every run another one.
    """
    changed = recipe.model_dump(mode="json", exclude={"backbone"}, exclude_defaults=True)
    whole = recipe.model_dump(mode="json", include={"method", "regularizer"})
    return {**changed, **whole}


def _recipes(grid: Grid, task: TaskEntry, backbone: Backbone) -> Iterator[Recipe]:
    # An axis that is not named leaves its setting to the recipe.
    regularizers = [_regularizer_changes(it) for it in grid.regularizers] or [{}]
    tapts = [{"tapt": it and it.model_dump(mode="json")} for it in grid.tapt] or [{}]
    rates = [{"learning_rate": rate} for rate in grid.learning_rates] or [{}]
    seeds = [{"seed": seed} for seed in grid.seeds] or [{}]
    for axis, *chosen in product(grid.methods, regularizers, tapts, rates, seeds):
        changes: dict[str, JsonValue] = {**grid.recipe, **task.recipe, **axis.recipe}
        for setting in (*chosen, grid.overrides):
            changes.update(setting)
        for method in methods_of(axis, backbone.config):
            yield default_recipe(method, backbone=backbone.name, changes=changes)


def _regularizer_changes(entry: RegularizerEntry) -> dict[str, JsonValue]:
    chosen: dict[str, JsonValue] = {"name": entry.name.value}
    if entry.rate is not None:
        chosen["rate"] = entry.rate
    return {**entry.recipe, "regularizer": chosen}


def _sources(grid: Grid, task: TaskEntry) -> Iterator[Source]:
    for cap in task.train_caps or grid.train_caps:
        yield Source(
            data=_below(grid.data_root, task.data or task.name),
            kind=task.kind,
            dev=None if task.dev is None else _below(grid.data_root, task.dev),
            cut=Cut(
                train=_number(cap), dev=_number(grid.dev_cap), dev_from_train=grid.dev_from_train
            ),
        )


def _below(root: Path | None, name: str) -> str:
    return name if root is None else str(root / name)


def _number(cap: Cap) -> int | None:
    return cap if isinstance(cap, int) else None

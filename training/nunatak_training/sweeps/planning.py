"""Planning: the axes of a sweep become runs, with their parts of the data and their digests."""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from pydantic import JsonValue

from nunatak_model import Backbone
from nunatak_training.data import Example, ExampleSet, Relevance, TaskData
from nunatak_training.data.splits import sameness
from nunatak_training.errors import too_few
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.settings import overlaid
from nunatak_training.sweeps import results
from nunatak_training.sweeps.grid import Cap, Grid, TaskEntry, methods_of

SAMPLE_SEED = 0
DIGEST_VERSION = 1
"""Increased when the same settings mean another run: after a changed default or another loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutData:
    """The data of a run."""

    data: TaskData
    test: ExampleSet | None
    """Test examples do not choose the epoch."""


def cut_data(data: TaskData, cut: results.Cut) -> CutData:
    """Draw a random part, equal for every seed of training, in the order of the files.

    A larger part contains every smaller part, and has the labels of the whole data. Documents of
    one query stay together, so a part may be a little smaller than its cap.
    """
    train, rest = _split(data.train, cut.train)
    _check_cap(data.name, "train", train, cut.train)
    if (problem := sameness((it.label for it in train.examples), data.kind)) is not None:
        raise too_few(data.name, f"with {len(train)} drawn examples, {problem}; raise the cap")
    if not cut.dev_from_train:
        dev, _ = _split(data.dev, cut.dev)
        _check_cap(data.name, "dev", dev, cut.dev)
        return CutData(data=replace(data, train=train, dev=dev), test=None)
    if not len(rest):
        raise too_few(
            data.name,
            f"{len(data.train)} train examples leave no dev examples after "
            f"{cut.train or 'all'} for training; lower the cap, or choose by the dev set",
        )
    dev, _ = _split(rest, cut.dev)
    _check_cap(data.name, "dev", dev, cut.dev)
    return CutData(data=replace(data, train=train, dev=dev), test=data.dev)


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
    """One planned run."""

    description: results.RunDescription
    origin: results.RunOrigin


def plan_runs(
    grid: Grid,
    *,
    backbone_of: Callable[[str], Backbone],
    data_of: Callable[[results.Source], CutData],
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
                runs.setdefault(description.digest, run)
    return tuple(runs.values())


def describe(
    sweep: str, task: str, source: results.Source, cut: CutData, recipe: Recipe, backbone: Backbone
) -> results.RunDescription:
    data = results.DataDescription(
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
        # Settings that differ from their defaults, and method and regularizer in full: a new
        # setting keeps the digests of old runs, if its default keeps the old behaviour.
        "recipe": {
            **recipe.model_dump(mode="json", exclude={"backbone"}, exclude_defaults=True),
            **recipe.model_dump(mode="json", include={"method", "regularizer"}),
        },
    }
    text = json.dumps(determining, sort_keys=True, separators=(",", ":"))
    return results.RunDescription(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        sweep=sweep,
        task=task,
        train_cap=source.cut.train,
        backbone=results.BackboneDescription(
            name=backbone.name, digest=backbone.digest, num_layers=backbone.config.num_layers
        ),
        data=data,
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
    tapts = [{"tapt": it and it.model_dump(mode="json")} for it in grid.tapt] or [{}]
    rates = [{"learning_rate": rate} for rate in grid.learning_rates] or [{}]
    seeds = [{"seed": seed} for seed in grid.seeds] or [{}]
    for axis, *chosen in product(grid.methods, regularizers, tapts, rates, seeds):
        changes = overlaid(grid.recipe, task.recipe, axis.recipe, *chosen, grid.overrides)
        for method in methods_of(axis, backbone.config):
            yield default_recipe(method, backbone=backbone.name, changes=changes)


def _sources(grid: Grid, task: TaskEntry) -> Iterator[results.Source]:
    for cap in task.train_caps or grid.train_caps:
        yield results.Source(
            data=_below(grid.data_root, task.data or task.name),
            kind=task.kind,
            dev=None if task.dev is None else _below(grid.data_root, task.dev),
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

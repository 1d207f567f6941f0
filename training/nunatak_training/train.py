"""One training run from data to published version: what the command line calls."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_registry.manifest import TaskManifest
from nunatak_registry.names import check_task_name
from nunatak_training.checkpoints import Checkpoint, held_checkpoint, run_key
from nunatak_training.data import TaskData, load_task_data
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import TaskKind
from nunatak_training.metrics import Metric
from nunatak_training.publishing import publish
from nunatak_training.recipes import Recipe, changed_recipe
from nunatak_training.report import EpochResult, Report, SilentReport
from nunatak_training.scoring import Interval
from nunatak_training.trunk import TrunkStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What to train, on what, and how."""

    task: str
    data: str | Path
    """A file, a folder, or the name of a data set (see `load_task_data`)."""
    recipe: Recipe
    kind: TaskKind | None = None
    """Absent: the first train row tells it (see `docs/training.md`)."""
    dev: Path | None = None
    """A file of dev examples, in place of those that `data` would give."""
    device: str = "cpu"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """The published version and how it came about."""

    manifest: TaskManifest
    metrics: Mapping[Metric, float]
    """On the dev examples; the recipe's metric comes first."""
    intervals: Mapping[Metric, Interval]
    """Of each metric, at 95 % by bootstrap over the dev examples."""
    best_epoch: int
    history: tuple[EpochResult, ...]
    seconds: float
    """Wall time of the whole run, loading and publishing included."""


def train(
    settings: TrainSettings,
    *,
    registry: Registry,
    backbone: Backbone | None = None,
    report: Report | None = None,
    trunks: TrunkStore | None = None,
    checkpoints: Path | None = None,
) -> TrainOutcome:
    """Read the data, train, and publish the best epoch as a new version of the task.

    Nothing is published unless everything went well. Training the same data by the same recipe on
    the same machine again gives the same bytes, and so finds the version that exists.

    Args:
        settings: what to train, on what, and how.
        registry: where the version is published.
        backbone: a loaded backbone, to train several tasks on one; then neither
            `settings.recipe.backbone` nor `settings.device` is looked at.
        report: is told of every step and epoch.
        trunks: where trunk states come from (see `fit_task`).
        checkpoints: a cache folder; the same call after a kill goes on from there, to the same
            weights. Absent: it begins anew.

    Raises:
        TrainingError: the data, the recipe or the run is at fault.
        ModelError: the backbone cannot be loaded or does not fit the method.
        RegistryError: the task name is malformed, or the registry refuses the version.
    """
    started = time.perf_counter()
    check_task_name(settings.task)
    data = load_task_data(
        settings.data, kind=settings.kind, dev=settings.dev, seed=settings.recipe.seed
    )
    if backbone is None:
        backbone = load_backbone(settings.recipe.backbone, device=settings.device)
    # What is recorded is the backbone's own name, never somebody's path to it.
    recipe = changed_recipe(settings.recipe, {"backbone": backbone.name})
    with _checkpoint(settings.task, data, recipe, backbone, checkpoints) as checkpoint:
        trained = fit_task(
            data,
            recipe,
            backbone,
            report=report or SilentReport(),
            trunks=trunks,
            checkpoint=checkpoint,
        )
        manifest = publish(
            trained,
            registry,
            backbone,
            task=settings.task,
            created_at=datetime.now(UTC),
            note=settings.note,
        )
        if checkpoint is not None:
            checkpoint.discard()
    return TrainOutcome(
        manifest=manifest,
        metrics=trained.scores,
        intervals=trained.intervals,
        best_epoch=trained.best_epoch,
        history=trained.history,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _checkpoint(
    task: str, data: TaskData, recipe: Recipe, backbone: Backbone, folder: Path | None
) -> Generator[Checkpoint | None]:
    """The checkpoint of a run, if it is to have one; gone after a run that cannot go well."""
    if folder is None:
        yield None
        return
    with held_checkpoint(run_key(task, data, recipe, backbone), folder) as checkpoint:
        try:
            yield checkpoint
        except TrainingDivergedError:
            checkpoint.discard()
            raise

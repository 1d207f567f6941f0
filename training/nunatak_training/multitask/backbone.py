"""From several tasks' data to a folder that is a new backbone."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nunatak_artifact.interchange import check_exportable, check_new, export_backbone
from nunatak_model import Backbone, load_backbone
from nunatak_registry.names import check_task_name
from nunatak_training.data import load_task_data
from nunatak_training.errors import TrainingDivergedError
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.checkpoints import Checkpoint, held_checkpoint, run_key
from nunatak_training.multitask.fitting import FittedEncoder, fit_encoder
from nunatak_training.recipes import Recipe
from nunatak_training.report import Report, SilentReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTask:
    """Where the examples of one task are."""

    data: str | Path
    """A file, a folder, or the name of a data set (see `load_task_data`)."""
    kind: TaskKind | None = None
    """Absent: the first train row tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultitaskSettings:
    """Which tasks train an encoder, how, and where the result goes."""

    tasks: Mapping[str, SharedTask]
    recipe: Recipe
    output: Path
    """A new or empty folder; its name is the new backbone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultitaskOutcome:
    """The new backbone and how it came about."""

    folder: Path
    digest: str
    """Of the new backbone, by which task versions will name it."""
    fitted: FittedEncoder
    seconds: float


def train_backbone(
    settings: MultitaskSettings,
    backbone: Backbone,
    *,
    report: Report | None = None,
    checkpoints: Path | None = None,
) -> MultitaskOutcome:
    """Read the data of all tasks, train one encoder on them, and write it as a new backbone.

    Nothing is written unless everything went well.

    Args:
        settings: which tasks, how, and where the result goes.
        backbone: what training starts from.
        report: is told of every step and epoch.
        checkpoints: a cache folder; the same call after a kill goes on from there, to the same
            weights. Absent: it begins anew.

    Raises:
        TrainingError: the data, the recipe or the run is at fault.
        ArtifactError: the folder is in use, or the architecture cannot be written.
        RegistryError: a task name is malformed.
    """
    started = time.perf_counter()
    check_exportable(backbone)
    check_new(settings.output)
    data = {
        check_task_name(name): load_task_data(task.data, kind=task.kind, seed=settings.recipe.seed)
        for name, task in settings.tasks.items()
    }
    report = report or SilentReport()
    with ExitStack() as held:
        checkpoint: Checkpoint | None = None
        if checkpoints is not None:
            key = run_key(data, settings.recipe, backbone)
            checkpoint = held.enter_context(held_checkpoint(key, checkpoints))
        try:
            fitted = fit_encoder(
                data, settings.recipe, backbone, report=report, checkpoint=checkpoint
            )
        except TrainingDivergedError:
            # It would diverge again from there.
            if checkpoint is not None:
                checkpoint.discard()
            raise
        export_backbone(fitted.parameters, backbone, settings.output)
        if checkpoint is not None:
            checkpoint.discard()
    return MultitaskOutcome(
        folder=settings.output,
        digest=load_backbone(settings.output).digest,
        fitted=fitted,
        seconds=time.perf_counter() - started,
    )

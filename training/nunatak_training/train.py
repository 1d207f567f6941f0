"""One training run from data to published version, as the command line calls it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import Full, HeadOnly, TopK
from nunatak_contract.names import check_task_name
from nunatak_model import Backbone, load_backbone
from nunatak_registry import Registry
from nunatak_training.data import TaskData, load_task_data
from nunatak_training.errors import InvalidRecipeError, TargetMissedError, TrainingDivergedError
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.loop.checkpoint import Checkpoint, held_checkpoint, run_key
from nunatak_training.publishing import check_publishable, publish
from nunatak_training.recipes import LayerChoice, LayerRun, Recipe, changed_recipe, default_recipe
from nunatak_training.regularizers import check_method
from nunatak_training.report import EpochResult, Report, SilentReport
from nunatak_training.scoring import Interval
from nunatak_training.trunk import TrunkStore

RunRecipe = Callable[[Recipe], TrainedTask]
"""Trains one recipe on the data in question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTask:
    """The task with the fewest layers, and how they were found."""

    trained: TrainedTask
    """Its recipe records the choice."""
    choice: LayerChoice


def choose_layers(
    backbone: Backbone, run: RunRecipe, *, target: float, changes: Mapping[str, JsonValue]
) -> ChosenTask:
    """Train in full, then find the fewest top layers by bisection, from a head alone to all.

    About log2 of the number of layers runs, plus the full one. All runs share `changes`; each
    method's defaults settle the rest.

    Raises:
        TargetMissedError: not even all layers reach the target, or full fine-tuning learns nothing.
        TrainingError: a run is at fault.
    """
    whole = default_recipe(Full(), backbone=backbone.name, changes=changes)
    recipes = _candidates(backbone, changes)
    full = _score(run(whole))
    if full <= 0:
        raise TargetMissedError(target, full, ())
    runs = dict[int, float]()
    best: TrainedTask | None = None
    low, high = 0, len(recipes)
    while low < high:
        middle = (low + high) // 2
        num_layers, recipe = recipes[middle]
        trained = run(recipe)
        runs[num_layers] = _score(trained)
        if runs[num_layers] >= target * full:
            best, high = trained, middle
        else:
            low = middle + 1
    made = tuple(LayerRun(layers=layers, score=score) for layers, score in runs.items())
    if best is None:
        raise TargetMissedError(target, full, tuple(runs.items()))
    choice = LayerChoice(target=target, full_score=full, runs=made, layers=recipes[high][0])
    return ChosenTask(trained=best.with_choice(choice), choice=choice)


def _candidates(
    backbone: Backbone, changes: Mapping[str, JsonValue]
) -> Sequence[tuple[int, Recipe]]:
    """The recipes to choose from, by their number of layers.

    Numbers that make no sense with `changes` are left out: too few layers for the regularizer, and
    a head alone where pretraining needs layers to move.
    """
    found = list[tuple[int, Recipe]]()
    for num_layers in range(backbone.config.num_layers + 1):
        method = TopK(num_layers=num_layers) if num_layers else HeadOnly()
        try:
            recipe = default_recipe(method, backbone=backbone.name, changes=changes)
            check_method(recipe.regularizer, method)
        except InvalidRecipeError:
            continue
        found.append((num_layers, recipe))
    return found


def _score(trained: TrainedTask) -> float:
    return next(iter(trained.scores.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The task, the data and the recipe of a training run."""

    task: str
    data: str | Path
    """A file, a folder, or the name of a data set (see `load_task_data`)."""
    recipe: Recipe
    kind: TaskKind | None = None
    """Absent: the first train row tells it (see `docs/training.md`)."""
    dev: Path | None = None
    """A file of dev examples, in place of the dev examples of `data`."""
    device: str = "cpu"
    note: str = ""
    layer_target: float | None = None
    """If given, the fewest tuned layers are sought that keep this share of full fine-tuning's dev
    score; of `recipe` only the backbone and the seed count then, and `recipe_changes` (see
    `default_recipe`) apply to every run."""
    recipe_changes: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """The published version and how it came about."""

    manifest: TaskManifest
    metrics: Mapping[Metric, float]
    """On the dev examples; the recipe's metric comes first."""
    intervals: Mapping[Metric, Interval]
    """The interval of each metric, at 95 %, by bootstrap over the dev examples."""
    best_epoch: int
    history: tuple[EpochResult, ...]
    layer_choice: LayerChoice | None
    """How the number of layers was found, where it was sought."""
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
        report: receives every step and epoch.
        trunks: the source of trunk states (see `fit_task`).
        checkpoints: a cache folder; the same call after a kill goes on from there, to the same
            weights. Absent: it begins anew.

    Raises:
        TrainingError: the data, the recipe or the run is at fault.
        ModelError: the backbone cannot be loaded or does not fit the method.
        InvalidNameError: the task name is malformed.
        RegistryError: the registry refuses the version.
    """
    started = time.perf_counter()
    check_task_name(settings.task)
    data = load_task_data(
        settings.data, kind=settings.kind, dev=settings.dev, seed=settings.recipe.seed
    )
    if backbone is None:
        backbone = load_backbone(settings.recipe.backbone, device=settings.device)
    # The record holds the backbone's own name, never a local path to it.
    recipe = changed_recipe(settings.recipe, {"backbone": backbone.name})
    check_publishable(data, recipe, backbone, note=settings.note)
    with ExitStack() as held:
        run = _Runs(settings.task, data, backbone, report or SilentReport(), trunks, checkpoints)
        target = settings.layer_target
        if target is None:
            trained = run.fit(recipe, held)
        else:
            chosen = choose_layers(
                backbone,
                lambda each: run.fit(each, held),
                target=target,
                changes=settings.recipe_changes,
            )
            trained = chosen.trained
        manifest = publish(
            trained,
            registry,
            backbone,
            task=settings.task,
            created_at=datetime.now(UTC),
            note=settings.note,
        )
        run.discard_checkpoints()
    return TrainOutcome(
        manifest=manifest,
        metrics=trained.scores,
        intervals=trained.intervals,
        best_epoch=trained.best_epoch,
        history=trained.history,
        layer_choice=trained.recipe.layer_choice,
        seconds=time.perf_counter() - started,
    )


class _Runs:
    """Trains recipes on one task's data; their checkpoints stay until the task is published."""

    def __init__(
        self,
        task: str,
        data: TaskData,
        backbone: Backbone,
        report: Report,
        trunks: TrunkStore | None,
        checkpoints: Path | None,
    ) -> None:
        self._task = task
        self._data = data
        self._backbone = backbone
        self._report = report
        self._trunks = trunks
        self._folder = checkpoints
        self._checkpoints: list[Checkpoint] = []

    def fit(self, recipe: Recipe, held: ExitStack) -> TrainedTask:
        """Train one recipe; its checkpoint is held as long as `held`."""
        checkpoint: Checkpoint | None = None
        if self._folder is not None:
            key = run_key({self._task: self._data}, recipe, self._backbone)
            checkpoint = held.enter_context(held_checkpoint(key, self._folder))
            self._checkpoints.append(checkpoint)
        try:
            return fit_task(
                self._data,
                recipe,
                self._backbone,
                report=self._report,
                trunks=self._trunks,
                checkpoint=checkpoint,
            )
        except TrainingDivergedError:
            # It would diverge again from there.
            self.discard_checkpoints()
            raise

    def discard_checkpoints(self) -> None:
        """Remove the checkpoints, which are not needed any more."""
        for checkpoint in self._checkpoints:
            checkpoint.discard()

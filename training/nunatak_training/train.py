"""One training run from data to published version: for the command, Python and lists of tasks."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import Full, HeadOnly, TopK
from nunatak_contract.names import check_alias_name, check_task_name
from nunatak_contract.plain_text import counted
from nunatak_model import Backbone, TextInput
from nunatak_registry import Registry
from nunatak_training.data import (
    Data,
    DataWarning,
    RowFormat,
    TaskData,
    data_warnings,
    load_task_data,
)
from nunatak_training.data.examples import Teacher
from nunatak_training.data.splits import majority
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import TrainedTask, fit_task, recipe_on
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.checkpoint import run_checkpoint
from nunatak_training.publishing import check_publishable, publish
from nunatak_training.recipes import LayerChoice, LayerRun, Recipe, changed_recipe, default_recipe
from nunatak_training.regularizers import check_method
from nunatak_training.report import EpochResult, Report
from nunatak_training.run_settings import RunSettings
from nunatak_training.teachers import TeacherChoice, kept_answers
from nunatak_training.trunk import TrunkStore

RunRecipe = Callable[[Recipe], TrainedTask]


def choose_layers(backbone: Backbone, run: RunRecipe, settings: RunSettings) -> TrainedTask:
    """Train the full model, then find the fewest top layers by bisection.

    The search covers a head alone to all layers, in about log2(number of layers) runs with the
    changes of `settings`. The recipe of the task records the choice.
    """
    changes, target = settings.changes, settings.layer_target or 1.0
    whole = default_recipe(Full(), backbone=backbone.name, changes=changes)
    recipes = _candidates(backbone, changes)
    full = _score(run(whole))
    if full <= 0:
        found = "which is no basis for a share; train longer, or at another learning rate"
        raise NunatakError("target_missed", full_score=full, found=found)
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
        tried = ", ".join(f"{counted(it, 'layer')} {score:.4f}" for it, score in runs.items())
        found = (
            f"of which {target:g} is {target * full:.4f}; tried: {tried}. Lower `target`, or name "
            "`layers`, or the method full"
        )
        raise NunatakError("target_missed", full_score=full, found=found)
    choice = LayerChoice(target=target, full_score=full, runs=made, layers=recipes[high][0])
    recipe = changed_recipe(best.recipe, {"layer_choice": choice.model_dump(mode="json")})
    return replace(best, recipe=recipe)


def _candidates(
    backbone: Backbone, changes: Mapping[str, JsonValue]
) -> Sequence[tuple[int, Recipe]]:
    """By number of layers, without too few for the regularizer or for pretraining."""
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
    return next(iter(trained.scores.values())).value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The task, the data and the settings of a training run."""

    task: str
    data: Data
    """A file, a folder, the name of a data set, or rows in memory (see `load_task_data`)."""
    settings: RunSettings
    kind: TaskKind | None = None
    """Absent: the first train row decides (see `docs/training.md`)."""
    dev: Path | None = None
    """In place of the dev examples of `data`."""
    spelt: RowFormat = field(default_factory=RowFormat)
    teacher: TeacherChoice | None = None
    """Makes an adoption of the run: the targets are a teacher's probabilities."""
    strict: bool = False
    """Whether a warning about the data ends the run before training."""
    note: str = ""
    promote: str | None = None
    """The alias for the new version, which the caller moves."""

    def __post_init__(self) -> None:
        """Refuse malformed names before any work."""
        check_task_name(self.task)
        if self.promote is not None:
            check_alias_name(self.promote)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    manifest: TaskManifest
    is_new: bool
    """False: the registry had its content already."""
    best_epoch: int
    num_epochs: int
    """Planned. Fewer have run if patience ended the run."""
    history: tuple[EpochResult, ...]
    majority: tuple[str, float] | None
    """The most frequent label of the dev examples and its share."""
    seconds: float
    """Wall time, with loading and publishing."""


def train(
    settings: TrainSettings,
    *,
    registry: Registry,
    backbone: Backbone,
    report: Report | None = None,
    trunks: TrunkStore | None = None,
    checkpoints: Path | None = None,
    warn: Callable[[Sequence[DataWarning]], None] | None = None,
) -> TrainOutcome:
    """Read the data, tell `warn` what is suspicious about it, and run (see `run`)."""
    started = time.perf_counter()
    chosen = settings.settings
    recipe = recipe_on(chosen, backbone)
    report = report or Report()
    teacher = settings.teacher.teacher(registry, backbone) if settings.teacher else None
    with kept_answers(settings.teacher, teacher, checkpoints) as asked:
        data = load_task_data(
            settings.data,
            kind=settings.kind,
            dev=settings.dev,
            spelt=replace(settings.spelt, is_taught=settings.teacher is not None),
            teacher=asked and replace(asked, ask=partial(_reported, asked, report)),
        )
        warnings = _warnings_of(data, recipe, backbone)
        if warnings and warn is not None:
            warn(warnings)
        if warnings and settings.strict:
            problems = "; ".join(f"{warning.problem}: {warning.found}" for warning in warnings)
            raise NunatakError("suspicious_data", where=data.name, problems=problems)
        outcome = run(
            data,
            settings.task,
            recipe,
            registry,
            backbone=backbone,
            search=None if chosen.layer_target is None else chosen,
            report=report,
            trunks=trunks,
            checkpoints=checkpoints,
            note=settings.note,
        )
    return replace(outcome, seconds=time.perf_counter() - started)


def run(  # noqa: PLR0913 - a run has many parts
    data: TaskData,
    task: str,
    recipe: Recipe,
    registry: Registry,
    *,
    backbone: Backbone,
    search: RunSettings | None = None,
    report: Report | None = None,
    trunks: TrunkStore | None = None,
    checkpoints: Path | None = None,
    note: str = "",
) -> TrainOutcome:
    """Train a task, and publish its best epoch as a new version.

    Nothing is published after an error. The same data and recipe give the same bytes on the same
    machine, so a repeated run returns the existing version. `search` finds the number of layers, in
    place of the recipe's method. After a kill, the same call continues from the cache folder
    `checkpoints`, to the same weights.
    """
    started = time.perf_counter()
    registry.check_writable(check_publishable(data, recipe, backbone, note=note))
    report = report or Report()
    with ExitStack() as held:

        def fitted(recipe: Recipe) -> TrainedTask:
            if search is not None:
                report.tried(recipe.method)
            # The checkpoint stays until the version is published.
            checkpoint = held.enter_context(
                run_checkpoint({task: data}, recipe, backbone, checkpoints)
            )
            return fit_task(
                data, recipe, backbone, report=report, trunks=trunks, checkpoint=checkpoint
            )

        trained = fitted(recipe) if search is None else choose_layers(backbone, fitted, search)
        trained = trained.tested(backbone)
        created_at = datetime.now(UTC)
        manifest = publish(trained, registry, backbone, task=task, created_at=created_at, note=note)
    return TrainOutcome(
        manifest=manifest,
        # A version with the same content keeps the time of its own training.
        is_new=manifest.created_at == created_at,
        best_epoch=trained.best_epoch,
        num_epochs=trained.num_epochs,
        history=trained.history,
        majority=majority(it.label for it in data.dev.examples),
        seconds=time.perf_counter() - started,
    )


def _reported(
    teacher: Teacher, report: Report, inputs: Sequence[TextInput]
) -> Iterator[Mapping[str, float] | NunatakError]:
    report.taught(0, len(inputs))
    for done, answer in enumerate(teacher.ask(inputs), start=1):
        yield answer
        report.taught(done, len(inputs))


def _warnings_of(data: TaskData, recipe: Recipe, backbone: Backbone) -> tuple[DataWarning, ...]:
    if data.kind.head.reads_tokens:
        return data_warnings(data, max_length=recipe.max_length)
    num_long = list[int]()
    for part in (data.train, data.dev):
        inputs = [example.model_input for example in part.examples]
        encodings = backbone.tokenizer.encode(inputs, max_length=recipe.max_length)
        num_long.append(sum(bool(it.part.index or it.part.num_left_out) for it in encodings))
    return data_warnings(data, num_long=(num_long[0], num_long[1]), max_length=recipe.max_length)

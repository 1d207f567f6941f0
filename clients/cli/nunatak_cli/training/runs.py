"""Trains one task for `nunatak train`, or the tasks of a file in turn for `nunatak train-all`.

A trunk layer runs once for equal texts of several tasks. A task file:

backbone: minilm
shared: {epochs: 3}
tasks:
  tone: {data: tone.jsonl, layers: 2, promote: prod}
  names: {data: ner/, method: lora, rank: 4, tapt: {epochs: 2}}
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_cli.options import LabelledRows, OnBadRow
from nunatak_cli.output import (
    content_of,
    facts_table,
    plain_table,
    print_failure,
    remark,
    tell_rejected,
)
from nunatak_cli.registry.registries import promoted, published_line
from nunatak_cli.registry.show import SHOWN_LABELS, score_of
from nunatak_contract.cards import facts
from nunatak_contract.errors import NunatakError
from nunatak_contract.evidence import MetricRecord
from nunatak_contract.plain_text import percent
from nunatak_contract.progress import Progress
from nunatak_model import Backbone, maths_of
from nunatak_registry import Registry
from nunatak_rows.files import check_is_there
from nunatak_training.cache import default_cache_folder
from nunatak_training.data import DataWarning
from nunatak_training.fitting import recipe_on
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import METHODS, LayerChoice
from nunatak_training.report import Report
from nunatak_training.run_settings import method_settings, read_settings
from nunatak_training.settings import overlaid, read_mapping
from nunatak_training.train import TrainOutcome, TrainSettings, train
from nunatak_training.trunk import DiskTrunkStore, MemoryTrunkStore, TrunkStore


def train_and_promote(
    settings: TrainSettings,
    registry: Registry,
    backbone: Backbone,
    progress: Progress,
    *,
    trunks: TrunkStore | None,
    resume: bool,
) -> tuple[TrainOutcome, list[str]]:
    """Train and publish; return the outcome, and the lines about the version and its alias."""
    tell_other_backbones(registry, backbone)
    outcome = train(
        settings,
        registry=registry,
        backbone=backbone,
        report=Report(settings.task, progress),
        trunks=trunks,
        checkpoints=default_cache_folder() if resume else None,
        warn=lambda found: remark(warnings_table(found, settings.task)),
    )
    manifest = outcome.manifest
    published = published_line(manifest.reference, is_new=outcome.is_new)
    moved = promoted(registry, settings.task, settings.promote, manifest.version)
    return outcome, [published, *moved]


def tell_other_backbones(registry: Registry, backbone: Backbone) -> None:
    """Say that no task of the registry runs on the backbone, which may be a forgotten option."""
    names = {it.manifest.backbone.digest: it.manifest.backbone.name for it in registry.tasks()}
    if names and backbone.digest not in names:
        others = " and ".join(sorted({*names.values()}))
        remark(
            f"warning: the tasks of this registry run on {others}; a task on {backbone.name} "
            "shares nothing with them (--backbone)"
        )


def warnings_table(warnings: Sequence[DataWarning], task: str) -> Table:
    title = Text(f"warnings about the data of {task}")
    table = plain_table("problem", "found", "what to do")
    table.title, table.title_justify = title, "left"
    for warning in warnings:
        table.add_row(Text(warning.problem), Text(warning.found), Text(warning.problem.advice))
    return table


def outcome_table(outcome: TrainOutcome) -> Table:
    recipe = outcome.manifest.recipe
    choice = recipe and recipe.settings.get("layer_choice")
    num_run, num_planned = outcome.history[-1].epoch, outcome.num_epochs
    early = "" if num_run == num_planned else f" (ended early, of {num_planned})"
    told = {
        **dict(_scores(outcome)),
        **({"layers chosen": _choice_text(LayerChoice.model_validate(choice))} if choice else {}),
        **facts(outcome.manifest, max_labels=SHOWN_LABELS),
        "best epoch": f"{outcome.best_epoch} of {num_run}{early}",
        "time": f"{outcome.seconds:.1f} s",
    }
    return facts_table({name: Text(text) for name, text in told.items()})


def _scores(outcome: TrainOutcome) -> Iterator[tuple[str, str]]:
    for it in outcome.manifest.metrics:
        yield f"dev {it.name}", _score_text(it)
    if outcome.majority is not None:
        label, share = outcome.majority
        yield "majority share", f"{share:.4f} of the dev examples are {label}"
    for it in outcome.manifest.test_metrics:
        yield f"test {it.name}", _score_text(it)


def _score_text(score: MetricRecord) -> str:
    if score.interval is None:
        return f"{score.value:.4f}"
    low, high = score.interval
    return f"{score.value:.4f}  [{low:.4f}, {high:.4f}] at 95 % ({score.interval_method})"


def _choice_text(choice: LayerChoice) -> str:
    runs = ", ".join(
        f"{run.layers}: {run.score:.4f} ({percent(run.score / choice.full_score)})"
        for run in choice.runs
    )
    told = f"{choice.layers}; tried {runs}; full: {choice.full_score:.4f}"
    return f"{told}, target {choice.target:.0%}"


def outcome_json(outcome: TrainOutcome, *, alias: str | None) -> dict[str, object]:
    manifest, majority = outcome.manifest, outcome.majority
    calibration, teacher = manifest.calibration, manifest.teacher
    return {
        "reference": manifest.reference,
        "task": manifest.task,
        "version": manifest.version,
        "is_new": outcome.is_new,
        "alias": alias,
        "default_label": manifest.head.default_label,
        "long_share": manifest.data and manifest.data.long_share,
        "metrics": {it.name: it.value for it in manifest.metrics},
        "intervals": {it.name: it.interval for it in manifest.metrics if it.interval},
        "majority": majority and {"label": majority[0], "share": majority[1]},
        "test_metrics": {it.name: it.value for it in manifest.test_metrics} or None,
        "calibration": calibration
        and calibration.model_dump(mode="json", include={"temperature", "dev", "test"}),
        "teacher": teacher and teacher.model_dump(mode="json"),
        "best_epoch": outcome.best_epoch,
        "planned_epochs": outcome.num_epochs,
        "epochs": [
            {name: value for name, value in asdict(result).items() if name != "step"}
            for result in outcome.history
        ],
        "layer_choice": manifest.recipe and manifest.recipe.settings.get("layer_choice"),
        "seconds": outcome.seconds,
    }


METHOD = "method"
OF_METHODS = frozenset(name for kind in METHODS for name in method_settings(kind))
LAYER_SETTINGS = frozenset(method_settings("topk"))
SPELT = {it.name for it in fields(LabelledRows)}
"""The settings of a task that say how its rows are spelt."""


class SharedSettings(BaseModel):
    """Settings of one task or of all tasks, including every setting of `train`."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    kind: TaskKind | None = None
    promote: str | None = None
    note: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    pair_column: str | None = None
    delimiter: str | None = None
    on_bad_row: OnBadRow = OnBadRow.REFUSE

    @property
    def named(self) -> dict[str, JsonValue]:
        return self.model_extra or {}


class TaskSettings(SharedSettings):
    data: str
    dev: Path | None = None


class TaskFile(BaseModel, frozen=True, extra="forbid"):
    backbone: str | None = None
    shared: SharedSettings = SharedSettings()
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1)]


TaskResult = tuple[TrainSettings, TrainOutcome | NunatakError]
"""A task, and its new version or the error that kept the task from being published."""


def read_task_file(path: Path, texts: Mapping[str, str] | None = None) -> TaskFile:
    """Read a task file, with `texts` in place of its values (see `read_mapping`).

    The shared settings are merged into each task. Paths are relative to the folder of the file.
    """
    with content_of(path, "invalid_task_file"):
        file = TaskFile.model_validate(read_mapping(path, texts))
    for name in TaskSettings.model_fields.keys() & file.shared.named.keys():
        raise NunatakError(
            "invalid_task_file", path=path, place=f"shared.{name}", problem="each task has its own"
        )
    tasks = {name: _merged(file.shared, task, path.parent) for name, task in file.tasks.items()}
    reached = LAYER_SETTINGS.union(*(task.named for task in tasks.values()))
    for name in overlaid(file.shared.named).keys() & OF_METHODS - reached:
        problem = "no task has a method with this setting"
        raise NunatakError("invalid_task_file", path=path, place=f"shared.{name}", problem=problem)
    return file.model_copy(update={"tasks": tasks})


def runs_of(listed: TaskFile, file: Path, *, strict: bool = False) -> tuple[TrainSettings, ...]:
    """Return the runs of a file, after a check that the examples of all are there."""
    runs = list[TrainSettings]()
    for task, said in listed.tasks.items():
        with _named(file, task):
            run = TrainSettings(
                task=task,
                data=said.data,
                kind=said.kind,
                dev=said.dev,
                note=said.note or "",
                settings=read_settings(said.named),
                promote=said.promote,
                spelt=LabelledRows(**said.model_dump(include=SPELT)).spelt_of(task),
                strict=strict,
            )
            check_is_there(said.data, said.dev)
        runs.append(run)
    return tuple(runs)


def in_order(
    runs: Sequence[TrainSettings], file: Path, backbone: Backbone
) -> tuple[TrainSettings, ...]:
    """Check the runs of a file against the backbone, and put the lowest split depth first.

    A store computes the states of one depth from the states of a smaller depth. So each trunk layer
    runs once for equal texts.
    """
    depths = dict[str, int]()
    for run in runs:
        with _named(file, run.task):
            method = recipe_on(run.settings, backbone).method
            # A search for the number of layers needs states of several depths.
            is_search = run.settings.layer_target is not None
            depth = 0 if is_search else maths_of(method).split_depth(backbone.config)
            depths[run.task] = depth or 0
    return tuple(sorted(runs, key=lambda run: depths[run.task]))


def train_in_turn(
    runs: Sequence[TrainSettings],
    registry: Registry,
    backbone: Backbone,
    progress: Progress,
    *,
    cache: bool,
    resume: bool,
) -> tuple[TaskResult, ...]:
    """Train and publish each task; an error of Nunatak fails only its own task."""
    trunks = DiskTrunkStore() if cache else MemoryTrunkStore()
    results = list[TaskResult]()
    for number, run in enumerate(runs, start=1):
        try:
            found, lines = train_and_promote(
                run, registry, backbone, progress, trunks=trunks, resume=resume
            )
            line = f"{lines[0]}, dev {score_of(found.manifest)}"
            progress.tell(f"[{number}/{len(runs)}] {run.task}: {line}", task=run.task)
            tell_rejected(run.spelt)
        except NunatakError as error:
            found = error
            print_failure(error.code, f"{run.task}: {error}")
        results.append((run, found))
    return tuple(results)


@contextmanager
def _named(file: Path, task: str) -> Generator[None]:
    try:
        yield
    except NunatakError as error:
        raise NunatakError(
            "invalid_task_file", path=file, place=f"tasks.{task}", problem=str(error)
        ) from error


def _merged(shared: SharedSettings, task: TaskSettings, folder: Path) -> TaskSettings:
    common, own = overlaid(shared.named), overlaid(task.named)
    method = own.get(METHOD, common.get(METHOD, "topk"))
    # The shared settings of a method apply only to tasks of this method.
    fitting = set[str]()
    if isinstance(method, str) and common.get(METHOD, method) == method:
        fitting.update(method_settings(method))
    common = {name: it for name, it in common.items() if name in fitting or name not in OF_METHODS}
    if {"layers", "frozen"} & own.keys():
        # The shared `target` applies only to tasks with `layers: auto`.
        dropped = {"layers", "frozen"} if own.get("layers") == "auto" else LAYER_SETTINGS
        common = {name: it for name, it in common.items() if name not in dropped}
    said = shared.model_dump(exclude_unset=True) | task.model_dump(exclude_unset=True)
    of_task = {name: value for name, value in said.items() if name in TaskSettings.model_fields}
    merged: dict[str, object] = {**of_task, **overlaid(common, task.named)}
    if (folder / task.data).exists():
        merged["data"] = str(folder / task.data)
    if task.dev is not None:
        merged["dev"] = folder / task.dev
    return TaskSettings.model_validate(merged)


def results_table(results: Sequence[TaskResult]) -> Table:
    table = plain_table("task", "version", "dev score", "time")
    for run, found in results:
        if isinstance(found, NunatakError):
            table.add_row(run.task, f"failed [{found.code}]", "", "")
            continue
        version, score = str(found.manifest.version), score_of(found.manifest)
        table.add_row(run.task, version, score, f"{found.seconds:.1f} s")
    return table


def results_json(results: Sequence[TaskResult]) -> dict[str, object]:
    failed = sum(isinstance(found, NunatakError) for _, found in results)
    return {
        "published": len(results) - failed,
        "failed": failed,
        "tasks": [
            {"status": "failed", "task": run.task, "code": found.code, "message": str(found)}
            if isinstance(found, NunatakError)
            else {"status": "published", **outcome_json(found, alias=run.promote)}
            for run, found in results
        ],
    }

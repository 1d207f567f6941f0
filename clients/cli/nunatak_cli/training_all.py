"""Trains the tasks of a file in turn for `nunatak train-all`.

A trunk layer runs once for equal texts of several tasks. A task file:

backbone: minilm
shared: {epochs: 3}
tasks:
  tone: {data: tone.jsonl, layers: 2, promote: prod}
  names: {data: ner/, method: lora, rank: 4, tapt: {epochs: 2}}
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from rich.table import Table

from nunatak_cli.options import OnBadRow, labelled_format
from nunatak_cli.output import error_console
from nunatak_cli.training import outcome_json, published_text, train_and_promote
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, maths_of
from nunatak_registry import Registry
from nunatak_training.fitting import recipe_on
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import METHODS
from nunatak_training.run_settings import method_settings, read_settings
from nunatak_training.settings import overlaid, read_mapping
from nunatak_training.train import TrainOutcome, TrainSettings
from nunatak_training.trunk import DiskTrunkStore, MemoryTrunkStore

METHOD = "method"
LAYER_SETTINGS = frozenset(method_settings("topk"))


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
    """Settings of one task; only `data` is required."""

    data: str
    dev: Path | None = None


class TaskFile(BaseModel):
    """The content of a task file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str | None = None
    shared: SharedSettings = SharedSettings()
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1)]


TaskResult = tuple[TrainSettings, TrainOutcome | NunatakError]
"""A task, and its new version or the error that kept the task from being published."""


def read_task_file(path: Path, texts: Mapping[str, str] | None = None) -> TaskFile:
    """Read a task file, with `texts` in place of its values (see `read_mapping`).

    The shared settings are merged into each task. Paths are relative to the folder of the file.
    """
    try:
        file = TaskFile.model_validate(read_mapping(path, texts))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise NunatakError(
            "invalid_task_file", path=path, place=place, problem=problem["msg"]
        ) from error
    except ValueError as error:
        raise NunatakError(
            "invalid_task_file", path=path, place="file", problem=str(error)
        ) from error
    for name in TaskSettings.model_fields.keys() & file.shared.named.keys():
        raise NunatakError(
            "invalid_task_file", path=path, place=f"shared.{name}", problem="each task has its own"
        )
    tasks = {name: _merged(file.shared, task, path.parent) for name, task in file.tasks.items()}
    return file.model_copy(update={"tasks": tasks})


def runs_of(listed: TaskFile, file: Path, *, strict: bool = False) -> tuple[TrainSettings, ...]:
    """Return the run of every task of a file, whose settings are checked."""
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
                spelt=labelled_format(
                    task,
                    said.on_bad_row,
                    text=said.text_column,
                    label=said.label_column,
                    pair=said.pair_column,
                    delimiter=said.delimiter,
                ),
                strict=strict,
            )
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
    *,
    cache: bool,
    resume: bool,
) -> tuple[TaskResult, ...]:
    """Train and publish each task; an error of Nunatak fails only its own task."""
    trunks = DiskTrunkStore() if cache else MemoryTrunkStore()
    results = list[TaskResult]()
    for number, run in enumerate(runs, start=1):
        try:
            found, _ = train_and_promote(run, registry, backbone, trunks=trunks, resume=resume)
            metric, value = next(iter(found.metrics.items()))
            line = f"{published_text(found)}, dev {metric} {value:.4f}"
        except NunatakError as error:
            found, line = error, f"failed [{error.code}]: {error}"
        results.append((run, found))
        error_console().print(f"[{number}/{len(runs)}] {run.task}: {line}", soft_wrap=True)
    return tuple(results)


@contextmanager
def _named(file: Path, task: str) -> Generator[None]:
    """Name the file and the task in an error."""
    try:
        yield
    except NunatakError as error:
        raise NunatakError(
            "invalid_task_file", path=file, place=f"tasks.{task}", problem=str(error)
        ) from error


def _merged(shared: SharedSettings, task: TaskSettings, folder: Path) -> TaskSettings:
    common, own = overlaid(shared.named), overlaid(task.named)
    method = common.get(METHOD, "topk")
    if own.get(METHOD, method) != method:
        # The shared settings of a method apply only to tasks of this method.
        of_methods = {name for kind in METHODS for name in method_settings(kind)}
        common = {name: value for name, value in common.items() if name not in of_methods}
    if {"layers", "frozen"} & own.keys():
        # The shared `target` applies only to tasks with `layers: auto`.
        dropped = {"layers", "frozen"} if own.get("layers") == "auto" else LAYER_SETTINGS
        common = {name: it for name, it in common.items() if name not in dropped}
    said = {**shared.model_dump(exclude_none=True), **task.model_dump(exclude_none=True)}
    fields: Mapping[str, object] = {
        name: value for name, value in said.items() if name in TaskSettings.model_fields
    }
    merged = {**fields, **overlaid(common, task.named)}
    if (folder / task.data).exists():
        merged["data"] = str(folder / task.data)
    if task.dev is not None:
        merged["dev"] = folder / task.dev
    return TaskSettings.model_validate(merged)


def results_table(results: Sequence[TaskResult]) -> Table:
    table = Table("task", "version", "dev score", "time", box=None)
    for run, found in results:
        if isinstance(found, NunatakError):
            table.add_row(run.task, f"failed [{found.code}]", "", "")
            continue
        metric, value = next(iter(found.metrics.items()))
        version, seconds = found.manifest.version, found.seconds
        table.add_row(run.task, str(version), f"{metric} {value:.4f}", f"{seconds:.1f} s")
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

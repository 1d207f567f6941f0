"""Trains the tasks of a file in turn for `nunatak train-all`.

A trunk layer runs once for equal texts of several tasks. A task file:

backbone: minilm
shared: {epochs: 3}
tasks:
  tone: {data: tone.jsonl, layers: 2, promote: prod}
  names: {data: ner/, method: lora, rank: 4, tapt: {epochs: 2}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from rich.table import Table

from nunatak_cli.options import DeviceName, OnBadRow, rejected_file, row_format
from nunatak_cli.output import error_console
from nunatak_cli.training import (
    TrainRequest,
    check_names,
    outcome_json,
    published_text,
    train_and_promote,
)
from nunatak_contract.errors import NunatakError
from nunatak_model import DEFAULT_BACKBONE, Backbone, load_backbone, maths_of
from nunatak_registry import Registry
from nunatak_training.fitting import method_on
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import METHODS, default_recipe
from nunatak_training.run_settings import method_settings, read_settings
from nunatak_training.settings import overlaid, read_mapping
from nunatak_training.train import TrainOutcome
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
        """Settings of the run, by name."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that kept a task from being published."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of one task: either `outcome` or `failure`."""

    task: str
    alias: str | None
    outcome: TrainOutcome | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequests:
    """All tasks of a file, checked before the first training."""

    backbone: Backbone
    items: tuple[TrainRequest, ...]
    """The tasks in order of split depth, the lowest first."""


def read_task_file(path: Path) -> TaskFile:
    """Read a task file; merge the shared settings into each task.

    Paths in the file are relative to its folder.
    """
    try:
        content = read_mapping(path)
        file = TaskFile.model_validate(content)
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


def requests_of(
    listed: TaskFile,
    file: Path,
    *,
    cache: bool,
    resume: bool,
    device: DeviceName = DeviceName.CPU,
    strict: bool = False,
) -> TrainRequests:
    """Check every task of a file against the backbone.

    A store computes the states of one depth from the states of a smaller depth. So the tasks with
    the lowest split depth come first, and each trunk layer runs once for equal texts.
    """
    name = listed.backbone or DEFAULT_BACKBONE
    requests = dict[str, TrainRequest]()
    for task, said in listed.tasks.items():
        try:
            requests[task] = TrainRequest(
                task=task,
                data=said.data,
                kind=said.kind,
                dev=said.dev,
                note=said.note or "",
                backbone=name,
                settings=read_settings(said.named),
                alias=said.promote,
                cache=cache,
                resume=resume,
                device=device,
                spelt=row_format(
                    text=said.text_column,
                    label=said.label_column,
                    pair=said.pair_column,
                    delimiter=said.delimiter,
                    rejected=rejected_file(said.on_bad_row, task),
                ),
                strict=strict,
            )
            check_names(requests[task])
        except NunatakError as error:
            raise NunatakError(
                "invalid_task_file", path=file, place=f"tasks.{task}", problem=str(error)
            ) from error
    backbone = load_backbone(name, device=device.value)
    depths = dict[str, int]()
    for task, request in requests.items():
        try:
            depths[task] = _split_depth(request, backbone)
        except NunatakError as error:
            raise NunatakError(
                "invalid_task_file", path=file, place=f"tasks.{task}", problem=str(error)
            ) from error
    items = sorted(requests.values(), key=lambda request: depths[request.task])
    return TrainRequests(backbone=backbone, items=tuple(items))


def train_in_turn(requests: TrainRequests, registry: Registry) -> tuple[TrainResult, ...]:
    """Train and publish each task; an error of Nunatak fails only its own task."""
    memory = MemoryTrunkStore()
    results = list[TrainResult]()
    for number, request in enumerate(requests.items, start=1):
        result = _trained(request, requests.backbone, registry, memory)
        results.append(result)
        _print_progress(result, number, len(requests.items))
    return tuple(results)


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


def _split_depth(request: TrainRequest, backbone: Backbone) -> int:
    """Return the depth at which a request needs trunk states; 0 for none or for several depths."""
    settings = request.settings
    method = method_on(settings, backbone.config)
    default_recipe(method, backbone=backbone.name, changes=settings.changes)
    if settings.layer_target is not None:
        return 0
    return maths_of(method).split_depth(backbone.config) or 0


def _trained(
    request: TrainRequest, backbone: Backbone, registry: Registry, memory: MemoryTrunkStore
) -> TrainResult:
    trunks = DiskTrunkStore() if request.cache else memory
    try:
        outcome, _ = train_and_promote(request, registry, backbone=backbone, trunks=trunks)
    except NunatakError as error:
        failure = Failure(code=error.code, message=str(error))
        return TrainResult(task=request.task, alias=request.alias, failure=failure)
    return TrainResult(task=request.task, alias=request.alias, outcome=outcome)


def _print_progress(result: TrainResult, number: int, count: int) -> None:
    if result.failure is not None:
        line = f"failed [{result.failure.code}]: {result.failure.message}"
    elif result.outcome is not None:
        metric, value = next(iter(result.outcome.metrics.items()))
        line = f"{published_text(result.outcome)}, dev {metric} {value:.4f}"
    else:
        line = ""
    error_console().print(f"[{number}/{count}] {result.task}: {line}", soft_wrap=True)


def results_table(results: Sequence[TrainResult]) -> Table:
    """Return one row per task."""
    table = Table("task", "version", "dev score", "time", box=None)
    for result in results:
        if result.outcome is None:
            problem = "" if result.failure is None else f"failed [{result.failure.code}]"
            table.add_row(result.task, problem, "", "")
            continue
        metric, value = next(iter(result.outcome.metrics.items()))
        version, seconds = result.outcome.manifest.version, result.outcome.seconds
        table.add_row(result.task, str(version), f"{metric} {value:.4f}", f"{seconds:.1f} s")
    return table


def results_json(results: Sequence[TrainResult]) -> dict[str, JsonValue]:
    """Return the result of each task, in the order of training."""
    published = [result for result in results if result.outcome is not None]
    return {
        "published": len(published),
        "failed": len(results) - len(published),
        "tasks": [_result_json(result) for result in results],
    }


def _result_json(result: TrainResult) -> dict[str, JsonValue]:
    if result.outcome is not None:
        return {"status": "published", **outcome_json(result.outcome, alias=result.alias)}
    failure = result.failure
    return {
        "status": "failed",
        "task": result.task,
        "code": None if failure is None else failure.code,
        "message": None if failure is None else failure.message,
    }

"""Files that list tasks, and training them in turn, each trunk layer once for equal texts.

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

from nunatak_cli.errors import TaskFileError
from nunatak_cli.failures import error_code
from nunatak_cli.output import error_console
from nunatak_cli.training import TrainRequest, check_names, outcome_json, train_and_promote
from nunatak_contract.errors import ContractError
from nunatak_model import DEFAULT_BACKBONE, Backbone, ModelError, load_backbone, maths_of
from nunatak_registry import Registry, RegistryError
from nunatak_training import (
    DiskTrunkStore,
    MemoryTrunkStore,
    TaskKind,
    TrainingError,
    TrainOutcome,
    default_recipe,
    read_settings,
)
from nunatak_training.run_settings import METHODS, method_settings
from nunatak_training.settings import overlaid, read_mapping

METHOD = "method"
LAYER_SETTINGS = frozenset(method_settings("topk"))


class SharedSettings(BaseModel):
    """What a task may say, and what all may say together: also every setting of `train`."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    kind: TaskKind | None = None
    promote: str | None = None
    note: str | None = None

    @property
    def named(self) -> dict[str, JsonValue]:
        """The settings of the run, by name."""
        return self.model_extra or {}


class TaskSettings(SharedSettings):
    """One task; only its data must be named."""

    data: str
    dev: Path | None = None


class TaskFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str | None = None
    shared: SharedSettings = SharedSettings()
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task was not published."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What became of one task: one of both."""

    task: str
    alias: str | None
    outcome: TrainOutcome | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """All that a file asks for, checked before the first is trained."""

    backbone: Backbone
    items: tuple[TrainRequest, ...]
    """Those that split lowest come first."""


def read_task_file(path: Path) -> TaskFile:
    """Return what a file says; its paths are relative to its folder, each task has all settings.

    Raises:
        TaskFileError: there is no such file, or it breaks the format; the message names the place.
    """
    try:
        content = read_mapping(path)
        file = TaskFile.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise TaskFileError(path, place, problem["msg"]) from error
    except ValueError as error:
        raise TaskFileError(path, "file", str(error)) from error
    for name in TaskSettings.model_fields.keys() & file.shared.named.keys():
        raise TaskFileError(path, f"shared.{name}", "each task has its own")
    tasks = {name: _merged(file.shared, task, path.parent) for name, task in file.tasks.items()}
    return file.model_copy(update={"tasks": tasks})


def requests_of(listed: TaskFile, file: Path, *, cache: bool, resume: bool) -> Requests:
    """Check every task of a file against the backbone.

    A store starts the states of a depth from those of a smaller one; so the tasks that split
    lowest come first, and each layer of the trunk runs once for equal texts.

    Raises:
        TaskFileError: a task whose settings contradict each other; the message names it.
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
            )
            check_names(requests[task])
        except (TrainingError, ContractError, RegistryError) as error:
            raise TaskFileError(file, f"tasks.{task}", str(error)) from error
    backbone = load_backbone(name)
    depths = dict[str, int]()
    for task, request in requests.items():
        try:
            depths[task] = _split_depth(request, backbone)
        except (TrainingError, ModelError) as error:
            raise TaskFileError(file, f"tasks.{task}", str(error)) from error
    items = sorted(requests.values(), key=lambda request: depths[request.task])
    return Requests(backbone=backbone, items=tuple(items))


def train_in_turn(requests: Requests, registry: Registry) -> tuple[TaskResult, ...]:
    """Train and publish each; a task that fails for a reason of ours fails alone."""
    memory = MemoryTrunkStore()
    results = list[TaskResult]()
    for number, request in enumerate(requests.items, start=1):
        result = _trained(request, requests.backbone, registry, memory)
        results.append(result)
        _tell(result, number, len(requests.items))
    return tuple(results)


def _merged(shared: SharedSettings, task: TaskSettings, folder: Path) -> TaskSettings:
    common, own = overlaid(shared.named), overlaid(task.named)
    method = common.get(METHOD, "topk")
    if own.get(METHOD, method) != method:
        # Settings of a method are for the tasks that have it.
        of_methods = {name for kind in METHODS for name in method_settings(kind)}
        common = {name: value for name, value in common.items() if name not in of_methods}
    if {"layers", "frozen"} & own.keys():
        # A share to keep is for layers that are chosen by it.
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
    """The depth from which a request needs trunk states; 0 where it needs none, or several."""
    settings = request.settings
    method = settings.method(backbone.config)
    default_recipe(method, backbone=backbone.name, changes=settings.changes)
    if settings.layer_target is not None:
        return 0
    return maths_of(method).split_depth(backbone.config) or 0


def _trained(
    request: TrainRequest, backbone: Backbone, registry: Registry, memory: MemoryTrunkStore
) -> TaskResult:
    trunks = DiskTrunkStore() if request.cache else memory
    try:
        outcome = train_and_promote(request, registry, backbone=backbone, trunks=trunks)
    except (TrainingError, ModelError, RegistryError) as error:
        failure = Failure(code=error_code(error) or error.code, message=str(error))
        return TaskResult(task=request.task, alias=request.alias, failure=failure)
    return TaskResult(task=request.task, alias=request.alias, outcome=outcome)


def _tell(result: TaskResult, number: int, count: int) -> None:
    if result.failure is not None:
        line = f"failed [{result.failure.code}]: {result.failure.message}"
    elif result.outcome is not None:
        metric, value = next(iter(result.outcome.metrics.items()))
        line = f"published {result.outcome.manifest.reference}, dev {metric} {value:.4f}"
    else:
        line = ""
    error_console().print(f"[{number}/{count}] {result.task}: {line}", soft_wrap=True)


def results_table(results: Sequence[TaskResult]) -> Table:
    """What became of each task."""
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


def results_json(results: Sequence[TaskResult]) -> dict[str, JsonValue]:
    """What became of each task, in the order in which they were trained."""
    published = [result for result in results if result.outcome is not None]
    return {
        "published": len(published),
        "failed": len(results) - len(published),
        "tasks": [_result_json(result) for result in results],
    }


def _result_json(result: TaskResult) -> dict[str, JsonValue]:
    if result.outcome is not None:
        return {"status": "published", **outcome_json(result.outcome, alias=result.alias)}
    failure = result.failure
    return {
        "status": "failed",
        "task": result.task,
        "code": None if failure is None else failure.code,
        "message": None if failure is None else failure.message,
    }

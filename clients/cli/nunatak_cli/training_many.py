"""Training many tasks in turn, so that each layer of the trunk runs once for equal texts."""

from dataclasses import dataclass
from pathlib import Path

import typer

from nunatak_cli.errors import TaskFileError
from nunatak_cli.failures import error_code
from nunatak_cli.method_options import (
    layer_settings,
    method_settings,
    regularizer_settings,
    tapt_settings,
)
from nunatak_cli.options import MethodName
from nunatak_cli.output import error_console
from nunatak_cli.task_files import TaskFile, TaskSettings, method_choice, recipe_changes
from nunatak_cli.training import TrainRequest, check_request, split_depth, train_and_promote
from nunatak_model import DEFAULT_BACKBONE, Backbone, ModelError, load_backbone
from nunatak_registry import Registry, RegistryError
from nunatak_training import DiskTrunkStore, MemoryTrunkStore, TrainingError, TrainOutcome


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
    items: tuple[tuple[TrainRequest, str | None], ...]
    """With the alias to move; those that split lowest come first."""


def requests_of(listed: TaskFile, file: Path, *, cache: bool, resume: bool) -> Requests:
    """Check every task of a file against the backbone.

    A store starts the states of a depth from those of a smaller one; so the tasks that split
    lowest come first, and each layer of the trunk runs once for equal texts.

    Raises:
        TaskFileError: a task whose settings contradict each other; the message names it.
    """
    name = listed.backbone or DEFAULT_BACKBONE
    backbone = load_backbone(name)
    items = list[tuple[TrainRequest, str | None]]()
    for task, settings in listed.tasks.items():
        try:
            request = _request(task, settings, name, cache=cache, resume=resume)
            check_request(request, backbone, alias=settings.promote)
        except (typer.BadParameter, TrainingError, ModelError, RegistryError) as error:
            raise TaskFileError(file, f"tasks.{task}", str(error)) from error
        items.append((request, settings.promote))
    items.sort(key=lambda item: split_depth(item[0], backbone))
    return Requests(backbone=backbone, items=tuple(items))


def train_in_turn(requests: Requests, registry: Registry) -> tuple[TaskResult, ...]:
    """Train and publish each; a task that fails for a reason of ours fails alone."""
    memory = MemoryTrunkStore()
    results = list[TaskResult]()
    for number, (request, alias) in enumerate(requests.items, start=1):
        result = _trained(request, alias, requests.backbone, registry, memory)
        results.append(result)
        _tell(result, number, len(requests.items))
    return tuple(results)


def _request(
    task: str, settings: TaskSettings, backbone: str, *, cache: bool, resume: bool
) -> TrainRequest:
    method = settings.method or MethodName.TOPK
    choice = method_choice(settings)
    layers = None if settings.layers is None else str(settings.layers)
    choice["layers"], target = layer_settings(layers, settings.target, method, settings.frozen)
    regularizer = regularizer_settings(settings.regularizer, settings.regularizer_rate)
    changes = dict(recipe_changes(settings))
    if regularizer is not None:
        changes["regularizer"] = regularizer
    tapt = tapt_settings(settings.tapt_epochs, settings.tapt_learning_rate)
    if tapt is not None:
        changes["tapt"] = tapt
    return TrainRequest(
        task=task,
        data=settings.data,
        kind=settings.kind,
        dev=settings.dev,
        note=settings.note or "",
        backbone=backbone,
        method=method,
        method_settings=method_settings(method, choice),
        changes=changes,
        layer_target=target,
        cache=cache,
        resume=resume,
    )


def _trained(
    request: TrainRequest,
    alias: str | None,
    backbone: Backbone,
    registry: Registry,
    memory: MemoryTrunkStore,
) -> TaskResult:
    trunks = DiskTrunkStore() if request.cache else memory
    try:
        outcome = train_and_promote(
            request, registry, alias=alias, backbone=backbone, trunks=trunks
        )
    except (TrainingError, ModelError, RegistryError) as error:
        failure = Failure(code=error_code(error) or error.code, message=str(error))
        return TaskResult(task=request.task, alias=alias, failure=failure)
    return TaskResult(task=request.task, alias=alias, outcome=outcome)


def _tell(result: TaskResult, number: int, count: int) -> None:
    if result.failure is not None:
        line = f"failed [{result.failure.code}]: {result.failure.message}"
    elif result.outcome is not None:
        metric, value = next(iter(result.outcome.metrics.items()))
        line = f"published {result.outcome.manifest.reference}, dev {metric} {value:.4f}"
    else:
        line = ""
    error_console().print(f"[{number}/{count}] {result.task}: {line}", soft_wrap=True)

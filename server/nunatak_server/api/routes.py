"""Routes of callers: predictions and tasks."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from nunatak_registry import TaskReference
from nunatak_server.api.access import caller_of
from nunatak_server.api.context import request_id_of
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.replies import (
    TASK_VERSION_HEADER,
    inputs_of,
    prediction_fields,
    reply,
    result_fields,
    summary_fields,
    timing_headers,
)
from nunatak_server.api.schemas import (
    PredictManyRequest,
    PredictManyResponse,
    PredictRequest,
    PredictResponse,
    Problem,
    TaskListResponse,
    TaskResponse,
)
from nunatak_server.batching.senders import Priority
from nunatak_server.errors import InvalidRequestError
from nunatak_server.outputs import PredictionOptions
from nunatak_server.prediction import (
    Prediction,
    PredictionRequest,
    TaskFailure,
)
from nunatak_server.runtime import Runtime
from nunatak_server.visible import VisibleCatalog

_PROBLEM: Final = {"model": Problem, "description": "Any failure, as application/problem+json"}
# 422 is named too, or else the schema would show the framework's own shape for it.
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {"default": _PROBLEM, 422: _PROBLEM}

DeadlineHeader = Annotated[
    int | None, Header(alias="x-deadline-ms", ge=1, le=600_000, description="milliseconds")
]
PriorityHeader = Annotated[
    Priority, Header(alias="x-priority", description="among the requests of the same caller")
]
VersionQuery = Annotated[str | None, Query(description="a version, instead of what the name means")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """What the headers say about when a request is to be answered."""

    deadline_ms: int | None
    priority: Priority


router = APIRouter(route_class=StrictRoute, responses=PROBLEMS)


def runtime_of(request: Request) -> Runtime:
    """Return what the application answers with."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def catalog_of(request: Request) -> VisibleCatalog:
    """Return the catalog as the caller of a request sees it."""
    return VisibleCatalog(runtime_of(request).catalog, caller_of(request.scope).tasks)


@router.post("/v1/tasks/{task}/predict", response_model=PredictResponse)
async def predict(
    request: Request,
    task: str,
    body: PredictRequest,
    version: VersionQuery = None,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
) -> Response:
    """Ask one task; `{task}` is `name` or `name@alias`."""
    urgency = Urgency(deadline_ms=deadline_ms, priority=priority)
    return await _predict(request, reference_text(task, version), body, urgency)


@router.post("/v1/tasks/{task}/{version}/predict", response_model=PredictResponse)
async def predict_version(
    request: Request,
    task: str,
    version: str,
    body: PredictRequest,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
) -> Response:
    """Ask one version of a task."""
    urgency = Urgency(deadline_ms=deadline_ms, priority=priority)
    return await _predict(request, reference_text(task, version), body, urgency)


@router.post("/v1/predict", response_model=PredictManyResponse)
async def predict_many(
    request: Request,
    body: PredictManyRequest,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
) -> Response:
    """Ask several tasks about the same inputs; each answers or fails by itself."""
    if len(set(body.tasks)) != len(body.tasks):
        raise InvalidRequestError("tasks must name each task once; remove the repetitions")
    urgency = Urgency(deadline_ms=deadline_ms, priority=priority)
    prediction = await _ask(request, tuple(body.tasks), body, urgency)
    request_id = request_id_of(request.scope)
    results = [
        result_fields(result, body.inputs, request_id=request_id) for result in prediction.results
    ]
    return reply({"results": results}, headers=timing_headers(prediction.timings))


@router.get("/v1/tasks", response_model=TaskListResponse)
async def list_tasks(request: Request) -> Response:
    """List the tasks of the registry, as far as the caller may know of them."""
    runtime = runtime_of(request)
    resident = runtime.residency.resident()
    summaries = await catalog_of(request).tasks()
    return reply({"tasks": [summary_fields(summary, resident) for summary in summaries]})


@router.get("/v1/tasks/{task}", response_model=TaskResponse)
async def show_task(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Show one task, and the manifest of the version that is asked for."""
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    summary = await catalog_of(request).task(reference.task)
    fields = summary_fields(summary, runtime.residency.resident())
    return reply({**fields, "manifest": manifest.model_dump(mode="json")})


def reference_text(task: str, version: str | None) -> str:
    """Return the reference that a path and a query spell together."""
    return task if version is None else f"{task}/{version}"


async def _predict(
    request: Request, reference: str, body: PredictRequest, urgency: Urgency
) -> Response:
    prediction = await _ask(request, (reference,), body, urgency)
    (result,) = prediction.results
    if isinstance(result, TaskFailure):
        raise result.error
    headers = timing_headers(prediction.timings)
    headers[TASK_VERSION_HEADER] = f"{result.task}/{result.version}"
    return reply(prediction_fields(result, body.inputs), headers=headers)


async def _ask(
    request: Request,
    references: tuple[str, ...],
    body: PredictRequest,
    urgency: Urgency,
) -> Prediction:
    runtime, caller = runtime_of(request), caller_of(request.scope)
    wanted = PredictionRequest(
        references=references,
        inputs=inputs_of(body.inputs),
        options=body.parameters.options() if body.parameters else PredictionOptions(),
        deadline_s=(urgency.deadline_ms or runtime.settings.default_deadline_ms) / 1000,
        priority=urgency.priority,
        caller=caller.name,
        tasks=caller.tasks,
    )
    return await runtime.service.predict(wanted)

"""Routes of callers: predictions, verdicts and tasks; the shared parts of all endpoints.

The shared parts are the router, the headers, and the call of one task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partialmethod
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.params import Depends as Dependency

from nunatak_contract import wire
from nunatak_contract.inputs import Input
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import Parameters, PredictManyRequest, PredictRequest, VerdictRequest
from nunatak_contract.wire import (
    DEADLINE_HEADER,
    LINES_TYPE,
    ROUTING_KEY_HEADER,
    PredictManyResponse,
    PredictResponse,
)
from nunatak_server.access.keys import Scope
from nunatak_server.catalog.catalog import VisibleCatalog
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import PUBLIC, caller_of, needs, request_id_of, state_of
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.problems import PROBLEM_TYPE
from nunatak_server.http.replies import (
    TASK_VERSION_HEADER,
    TaskResponse,
    inputs_of,
    lines_response,
    read_headers,
    reply,
    result_fields,
    summaries_of,
    timing_headers,
    verdict_fields,
    wants_lines,
)
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.types import (
    Handling,
    PredictionRequest,
    TaskFailure,
    TaskPrediction,
    prediction_fields,
)
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.rows import Priority

Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Response]])

_PROBLEM: Final = {
    "description": "Any failure, as application/problem+json",
    # A reference by name, because the framework would give a `model` the media type of success.
    "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
# 422 is named too, because clients are generated from the named statuses.
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {"default": _PROBLEM, 422: _PROBLEM}

DeadlineHeader = Annotated[
    int | None, Header(alias=DEADLINE_HEADER, ge=1, le=600_000, description="milliseconds")
]
PriorityHeader = Annotated[
    Priority, Header(alias="x-priority", description="among the requests of the same caller")
]
RoutingKeyHeader = Annotated[
    str | None,
    Header(
        alias=ROUTING_KEY_HEADER,
        min_length=1,
        max_length=256,
        description="requests of one key get one version while a canary runs",
    ),
]
VersionQuery = Annotated[str | None, Query(description="a version, in place of the name's version")]


def runtime_of(request: Request) -> Runtime:
    return state_of(request.scope).runtime


def catalog_of(request: Request) -> VisibleCatalog:
    return VisibleCatalog(runtime_of(request).catalog, caller_of(request.scope))


async def handling_of(
    request: Request,
    deadline_ms: DeadlineHeader = None,
    priority: PriorityHeader = Priority.NORMAL,
    routing_key: RoutingKeyHeader = None,
) -> Handling:
    caller = caller_of(request.scope)
    return Handling(
        default_deadline_s=runtime_of(request).settings.default_deadline_ms / 1000,
        own_deadline_s=None if deadline_ms is None else deadline_ms / 1000,
        caller=caller.name,
        tasks=caller.tasks,
        priority=priority,
        routing_key=routing_key,
    )


async def unrouted_handling_of(
    request: Request, deadline_ms: DeadlineHeader = None, priority: PriorityHeader = Priority.NORMAL
) -> Handling:
    return await handling_of(request, deadline_ms, priority, None)


Routed = Annotated[Handling, Depends(handling_of)]
Unrouted = Annotated[Handling, Depends(unrouted_handling_of)]


class Router(APIRouter):
    """Adds each endpoint with the permission that its callers need, under one or more paths."""

    def _add(
        self,
        method: str,
        access: Dependency,
        *paths: str,
        answer: Any,  # noqa: ANN401 - as the framework's own methods
        **options: Any,  # noqa: ANN401 - as above
    ) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            for path in paths:
                self.add_api_route(
                    path,
                    endpoint,
                    methods=[method],
                    dependencies=[access],
                    response_model=answer,
                    **options,
                )
            return endpoint

        return add

    ask = partialmethod(_add, "POST", needs(Scope.PREDICT))
    read = partialmethod(_add, "GET", needs(Scope.READ))
    read_across_tasks = partialmethod(_add, "GET", needs(Scope.READ, spans_tasks=True))
    change = partialmethod(_add, "POST", needs(Scope.ADMIN))
    assign = partialmethod(_add, "PUT", needs(Scope.ADMIN))
    show = partialmethod(_add, "GET", PUBLIC)


async def ask_task(
    request: Request,
    handling: Handling,
    reference: str,
    inputs: tuple[Input, ...],
    options: Parameters = DEFAULT_OPTIONS,
) -> tuple[TaskPrediction, dict[str, str]]:
    wanted = PredictionRequest(
        references=(reference,), inputs=inputs, options=options, handling=handling
    )
    prediction = await runtime_of(request).service.predict(wanted)
    (result,) = prediction.results
    if isinstance(result, TaskFailure):
        raise result.error
    read = read_headers(
        sum(extent.num_tokens for extent in result.extents),
        is_cut=any(extent.is_cut for extent in result.extents),
    )
    headers = {**timing_headers(prediction.timings), **read}
    return result, {**headers, TASK_VERSION_HEADER: f"{result.task}/{result.version}"}


def reference_text(task: str, version: str | None) -> str:
    return task if version is None else f"{task}/{version}"


LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {LINES_TYPE: {"schema": {"type": "string", "description": "a line per task"}}}}
}

AcceptHeader = Annotated[str | None, Header(description=f"`{LINES_TYPE}`: line by line")]

router = Router(route_class=StrictRoute, responses=PROBLEMS)


@router.ask("/v1/tasks/{task}/predict", answer=PredictResponse)
async def predict(
    request: Request,
    handling: Routed,
    task: str,
    body: PredictRequest,
    version: VersionQuery = None,
) -> Response:
    """Ask one task; `{task}` is `name` or `name@alias`."""
    return await _predict(request, reference_text(task, version), body, handling)


@router.ask("/v1/tasks/{task}/{version}/predict", answer=PredictResponse)
async def predict_version(
    request: Request, handling: Unrouted, task: str, version: str, body: PredictRequest
) -> Response:
    """Ask one version of a task."""
    return await _predict(request, reference_text(task, version), body, handling)


@router.ask("/v1/predict", answer=PredictManyResponse, responses=LINES)
async def predict_many(
    request: Request, handling: Routed, body: PredictManyRequest, accept: AcceptHeader = None
) -> Response:
    """Ask several tasks about the same inputs; each answers or fails separately.

    With `Accept: application/x-ndjson` each task's result is a line, sent as soon as it is there.
    """
    if len(set(body.tasks)) != len(body.tasks):
        raise invalid_request("tasks must name each task once; remove the repetitions")
    wanted = PredictionRequest(
        references=tuple(body.tasks),
        inputs=inputs_of(body.inputs),
        options=body.parameters or DEFAULT_OPTIONS,
        handling=handling,
    )
    service, request_id = runtime_of(request).service, request_id_of(request.scope)
    if wants_lines(accept):
        return await lines_response(service.stream(wanted), body.inputs, request_id=request_id)
    prediction = await service.predict(wanted)
    results = [
        result_fields(result, body.inputs, request_id=request_id) for result in prediction.results
    ]
    return reply({"results": results}, headers=timing_headers(prediction.timings))


@router.ask("/v1/verdicts/{policy}", answer=wire.PolicyVerdict)
async def judge(request: Request, handling: Routed, policy: str, body: VerdictRequest) -> Response:
    """Let a policy decide about texts: allow, flag, mask or block.

    The answer comes as soon as a block is certain; the other tasks are then not asked any further.
    """
    texts = (body.inputs,) if isinstance(body.inputs, str) else tuple(body.inputs)
    judgement = await runtime_of(request).judge.judge(policy, texts, handling=handling)
    fields = verdict_fields(judgement, body.inputs, request_id=request_id_of(request.scope))
    return reply(fields, headers=timing_headers(judgement.timings))


@router.read("/v1/policies", answer=wire.PolicyListing)
async def list_policies(request: Request) -> Response:
    """List the policies of the registry whose tasks the caller may ask."""
    policies = await catalog_of(request).policies()
    return reply(wire.PolicyListing.model_validate({"policies": policies}))


@router.read("/v1/tasks", answer=wire.TaskListing)
async def list_tasks(request: Request) -> Response:
    """List the tasks of the registry that the caller may use."""
    runtime = runtime_of(request)
    resident = runtime.residency.resident()
    summaries = await catalog_of(request).tasks()
    # There may be thousands of tasks, and the event loop belongs to all callers.
    return reply({"tasks": await asyncio.to_thread(summaries_of, summaries, resident)})


@router.read("/v1/tasks/{task}", answer=TaskResponse)
async def show_task(request: Request, task: str, version: VersionQuery = None) -> Response:
    """Show one task, and the manifest of the wanted version."""
    runtime = runtime_of(request)
    reference = TaskReference.parse(reference_text(task, version))
    manifest = await catalog_of(request).resolve(reference)
    summary = await catalog_of(request).task(reference.task)
    (shown,) = summaries_of([summary], runtime.residency.resident())
    return reply({**shown, "manifest": manifest.model_dump(mode="json")})


@router.read("/v1/tasks/{task}/history", answer=wire.TaskHistory)
async def show_history(request: Request, task: str) -> Response:
    """Return who moved a task's aliases or changed their candidates, and when.

    `{task}` is `name`, or `name@alias` for one alias.
    """
    reference = TaskReference.parse(task)
    moves, changes = await catalog_of(request).history(reference)
    history = {"task": reference.task, "events": moves, "candidates": changes}
    return reply(wire.TaskHistory.model_validate(history))


async def _predict(
    request: Request, reference: str, body: PredictRequest, handling: Handling
) -> Response:
    options = body.parameters or DEFAULT_OPTIONS
    result, headers = await ask_task(request, handling, reference, inputs_of(body.inputs), options)
    return reply(prediction_fields(result, body.inputs), headers=headers)

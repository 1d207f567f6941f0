"""Routes of callers: predictions, verdicts and tasks."""

import asyncio
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response

from nunatak_contract import wire
from nunatak_contract.names import TaskReference
from nunatak_contract.requests import PredictManyRequest, PredictRequest, VerdictRequest
from nunatak_contract.wire import LINES_TYPE, PredictManyResponse, PredictResponse
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import request_id_of
from nunatak_server.http.endpoints import (
    PROBLEMS,
    PathReference,
    QueryReference,
    Routed,
    Router,
    Unrouted,
    ask_task,
    catalog_of,
    runtime_of,
)
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.problems import problem_of
from nunatak_server.http.replies import (
    TaskResponse,
    inputs_of,
    lines_response,
    reply,
    result_fields,
    summaries_of,
    timing_headers,
    wants_lines,
)
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.types import Handling, PredictionRequest, prediction_fields
from nunatak_server.verdicts.calls import judge_request

LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {LINES_TYPE: {"schema": {"type": "string", "description": "a line per task"}}}}
}

AcceptHeader = Annotated[str | None, Header(description=f"`{LINES_TYPE}`: line by line")]

router = Router(route_class=StrictRoute, responses=PROBLEMS)


@router.ask("/v1/tasks/{task}/predict", answer=PredictResponse)
async def predict(
    request: Request, handling: Routed, reference: QueryReference, body: PredictRequest
) -> Response:
    """Ask one task; `{task}` is `name` or `name@alias`."""
    return await _predict(request, reference, body, handling)


@router.ask("/v1/tasks/{task}/{version}/predict", answer=PredictResponse)
async def predict_version(
    request: Request, handling: Unrouted, reference: PathReference, body: PredictRequest
) -> Response:
    """Ask one version of a task."""
    return await _predict(request, reference, body, handling)


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
    """Let a policy decide about texts or messages: allow, flag, mask or block.

    The answer comes as soon as a block is certain; the other tasks are then not asked any further.
    """
    runtime, request_id = runtime_of(request), request_id_of(request.scope)
    problem = partial(problem_of, request_id=request_id)
    judgement, fields = await judge_request(
        runtime.judge, runtime.settings, policy, body, handling, problem
    )
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
async def show_task(request: Request, reference: QueryReference) -> Response:
    """Show one task, and the manifest of the wanted version."""
    manifest = await catalog_of(request).resolve(TaskReference.parse(reference))
    summary = await catalog_of(request).task(manifest.task)
    (shown,) = summaries_of([summary], runtime_of(request).residency.resident())
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

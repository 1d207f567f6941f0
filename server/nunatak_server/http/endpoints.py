"""Shared parts of endpoints: the headers, and the call of a task."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request

from nunatak_contract.inputs import Input
from nunatak_contract.wire import DEADLINE_HEADER, ROUTING_KEY_HEADER
from nunatak_server.catalog import VisibleCatalog
from nunatak_server.http.access import caller_of
from nunatak_server.http.problems import PROBLEM_TYPE
from nunatak_server.http.replies import TASK_VERSION_HEADER, read_headers, timing_headers
from nunatak_server.http.state import state_of
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS, PredictionOptions
from nunatak_server.predict.types import PredictionRequest, TaskFailure, TaskPrediction
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.rows import Priority
from nunatak_server.settings import ServerSettings
from nunatak_server.verdicts.judge import Judgement, JudgeRequest

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options in the headers of a request."""

    deadline_ms: int | None
    priority: Priority
    routing_key: str | None = None

    def deadline_s(self, settings: ServerSettings) -> float:
        """Return the deadline in seconds; the settings give the default."""
        return (self.deadline_ms or settings.default_deadline_ms) / 1000


def runtime_of(request: Request) -> Runtime:
    """Return the application's runtime."""
    return state_of(request.scope).runtime


def catalog_of(request: Request) -> VisibleCatalog:
    """Return the catalog of the caller's tasks."""
    return VisibleCatalog(runtime_of(request).catalog, caller_of(request.scope))


def prediction_request(
    request: Request,
    references: tuple[str, ...],
    inputs: tuple[Input, ...],
    *,
    options: PredictionOptions,
    handling: RequestOptions,
) -> PredictionRequest:
    """Return the request to the service."""
    caller = caller_of(request.scope)
    return PredictionRequest(
        references=references,
        inputs=inputs,
        options=options,
        deadline_s=handling.deadline_s(runtime_of(request).settings),
        caller=caller.name,
        tasks=caller.tasks,
        priority=handling.priority,
        routing_key=handling.routing_key,
    )


async def ask_task(
    request: Request,
    reference: str,
    inputs: tuple[Input, ...],
    *,
    options: PredictionOptions,
    handling: RequestOptions,
) -> tuple[TaskPrediction, dict[str, str]]:
    """Ask one task through the service; return its answer and the headers of the answer.

    Raises:
        NunatakError: or any other error of Nunatak: the task cannot answer.
    """
    wanted = prediction_request(request, (reference,), inputs, options=options, handling=handling)
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


async def ask_policy(
    request: Request,
    policy: str,
    texts: tuple[str, ...],
    *,
    handling: RequestOptions,
    stops_early: bool = True,
) -> Judgement:
    """Judge texts by a policy.

    Raises:
        NunatakError: there is no such policy, or the request as a whole cannot be answered.
    """
    own_ms = handling.deadline_ms
    handling = replace(handling, deadline_ms=None)
    asked = prediction_request(request, (), texts, options=DEFAULT_OPTIONS, handling=handling)
    return await runtime_of(request).judge.judge(
        JudgeRequest(
            policy=policy,
            texts=texts,
            request=asked,
            own_deadline_s=None if own_ms is None else own_ms / 1000,
            stops_early=stops_early,
        )
    )


def reference_text(task: str, version: str | None) -> str:
    """Return the reference in a path and a query together."""
    return task if version is None else f"{task}/{version}"

"""Shared parts of endpoints: the headers, and the call of a task."""

from collections.abc import Callable, Coroutine
from functools import partialmethod
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.params import Depends as Dependency

from nunatak_contract.requests import Input, Parameters
from nunatak_contract.wire import DEADLINE_HEADER, ROUTING_KEY_HEADER
from nunatak_server.access.keys import Scope
from nunatak_server.catalog.catalog import VisibleCatalog
from nunatak_server.http.access import PUBLIC, caller_of, needs, state_of
from nunatak_server.http.problems import PROBLEM_TYPE
from nunatak_server.http.replies import TASK_VERSION_HEADER, read_headers, timing_headers
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.types import Handling, PredictionRequest, TaskFailure, TaskPrediction
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

"""Shared parts of endpoints: strict JSON, arguments and headers, and the call of a task.

For each request, the framework decides again how to read each parameter. This takes half of the CPU
time of the whole application. Endpoints here have single values and at most one body, so
`handler_of` reads their arguments in one pass, with the framework's own fields.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partialmethod
from inspect import signature
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute

from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input, Parameters
from nunatak_contract.wire import DEADLINE_HEADER, ROUTING_KEY_HEADER
from nunatak_server.access.keys import Scope
from nunatak_server.catalog.catalog import VisibleCatalog
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import PUBLIC, caller_of, headers_of, needs, state_of
from nunatak_server.http.problems import PROBLEM_TYPE
from nunatak_server.http.replies import TASK_VERSION_HEADER, read_headers, timing_headers
from nunatak_server.outputs.outputs import DEFAULT_OPTIONS
from nunatak_server.predict.types import Handling, PredictionRequest, TaskFailure, TaskPrediction
from nunatak_server.rollouts.rollouts import OWN_KEYS
from nunatak_server.runtime import Runtime
from nunatak_server.scheduler.rows import Priority

Value = TypeVar("Value")
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
        routing_key=routing_key or next(OWN_KEYS),
    )


async def unrouted_handling_of(
    request: Request, deadline_ms: DeadlineHeader = None, priority: PriorityHeader = Priority.NORMAL
) -> Handling:
    return await handling_of(request, deadline_ms, priority, None)


async def reference_in_path(task: str, version: str | None = None) -> str:
    return task if version is None else f"{task}/{version}"


async def reference_in_query(task: str, version: VersionQuery = None) -> str:
    return await reference_in_path(task, version)


Routed = Annotated[Handling, Depends(handling_of)]
Unrouted = Annotated[Handling, Depends(unrouted_handling_of)]
PathReference = Annotated[str, Depends(reference_in_path)]
"""The text of a task reference, from `{task}` and, where the path has it, `{version}`."""
QueryReference = Annotated[str, Depends(reference_in_query)]
"""The same, with the version as a query parameter."""


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


ABSENT: Final = object()
Errors = list[dict[str, Any]]

MAX_BYTES_ON_LOOP: Final = 64 * 1024
"""Most bytes of JSON that the event loop parses and checks. More could block the loop for
milliseconds."""
MISSING: Final = {"type": "missing", "msg": "Field required", "input": None}


class ParsedBody(NamedTuple):
    """The body of a request, read and parsed under the limits."""

    num_bytes: int = 0
    value: object = ABSENT


Handler = Callable[[Request, ParsedBody], Coroutine[Any, Any, Response]]


async def off_loop_if_long(num_bytes: int, work: Callable[..., Value], *arguments: Any) -> Value:  # noqa: ANN401 - any work
    """Return the result of work with a body, which runs on a thread if the body is long."""
    if num_bytes > MAX_BYTES_ON_LOOP:
        return await asyncio.to_thread(work, *arguments)
    return work(*arguments)


def parse_json(body: bytes) -> object:
    """Parse strict JSON: UTF-8, no NaN, no lone surrogates, no field twice, bounded depth.

    A proxy that checks bodies might read a repeated field differently.
    """
    try:
        parsed = orjson.loads(body)
        # The fast parser keeps the last of equal names. Every field has a colon, so with no more
        # colons than fields, no field was dropped. Otherwise another parser checks the names. That
        # parser keeps numbers as text, because a number may have more digits than Python converts.
        if body.count(b":") > _num_fields(parsed):
            json.loads(body, object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str)
    except (orjson.JSONDecodeError, RecursionError):
        # The decoder's own message is left out, because it quotes the body.
        raise NunatakError("invalid_json") from None
    return parsed


def _num_fields(parsed: object) -> int:
    match parsed:
        case dict():
            fields = cast("dict[str, object]", parsed)
            return len(fields) + sum(map(_num_fields, filter(_is_container, fields.values())))
        case list():
            return sum(map(_num_fields, filter(_is_container, cast("list[object]", parsed))))
        case _:
            return 0


def _is_container(value: object) -> bool:
    return type(value) in {dict, list}


def _refuse_doubles(fields: list[tuple[str, object]]) -> None:
    if len({name for name, _ in fields}) < len(fields):
        raise NunatakError("invalid_json")


def handler_of(route: APIRoute) -> Handler:
    """Return a function that reads the arguments of a route's endpoint and calls the endpoint.

    The route itself must have admitted the caller: the access that it names is not called.

    Raises:
        TypeError: the endpoint has an argument of another kind than those that are read here.
    """
    endpoint, arguments = route.endpoint, _Arguments(route.endpoint, route.dependant)

    async def handle(request: Request, body: ParsedBody) -> Response:
        return await endpoint(**await arguments.read(request, body))

    return handle


class _Arguments:
    def __init__(self, call: Callable[..., Any], dependant: Dependant) -> None:
        self._dependencies = [
            (it.name, it.call, _Arguments(it.call, it))
            for it in dependant.dependencies
            if it.name and it.call
        ]
        self._request_name = dependant.request_param_name
        self._path = _parameters(dependant.path_params, "path")
        self._query = _parameters(dependant.query_params, "query")
        headers = _parameters(dependant.header_params, "header")
        self._headers = [(each, each.alias.lower().encode()) for each in headers]
        self._body = [_Parameter(field, "body") for field in dependant.body_params]
        self._reads_body = any(it.body_params for it in (dependant, *dependant.dependencies))
        fields = (*self._path, *self._query, *headers, *self._body)
        named = {self._request_name, *(it[0] for it in self._dependencies)}
        if unread := signature(call).parameters.keys() - named - {it.name for it in fields}:
            raise TypeError(f"{call.__name__} has arguments that nothing reads: {sorted(unread)}")

    async def read(self, request: Request, body: ParsedBody) -> dict[str, Any]:
        if body.num_bytes and body.value != {} and not self._reads_body:
            # An eviction that means one version would be one of all.
            raise invalid_request("the body has no effect; this route reads path and query alone")
        values, errors = await self._find(request, headers_of(request.scope), body)
        if errors:
            raise RequestValidationError(errors)
        return values

    async def _find(
        self, request: Request, sent: Mapping[bytes, bytes], body: ParsedBody
    ) -> tuple[dict[str, Any], Errors]:
        values, errors = dict[str, Any](), Errors()
        for own_name, call, arguments in self._dependencies:
            inner, found = await arguments._find(request, sent, body)  # noqa: SLF001 - of this class
            errors += found
            if not found:
                values[own_name] = await call(**inner)
        if self._request_name:
            values[self._request_name] = request
        for each in self._path:
            each.read(request.path_params.get(each.alias, ABSENT), values, errors)
        query: Mapping[str, str] = request.query_params if request.scope["query_string"] else {}
        for each in self._query:
            each.read(query.get(each.alias, ABSENT), values, errors)
        for each, name in self._headers:
            value = sent[name].decode("latin-1") if name in sent else ABSENT
            each.read(value, values, errors)
        for each in self._body:
            await off_loop_if_long(body.num_bytes, each.read, body.value, values, errors)
        return values, errors


class _Parameter:
    def __init__(self, field: Any, *location: str) -> None:  # noqa: ANN401 - the framework's own field
        self.name: str = field.name
        self.alias: str = field.alias
        self._location = location
        self._is_required: bool = field.field_info.is_required()
        self._default: Any = field.get_default()
        self._validate: Callable[..., tuple[Any, Errors]] = field.validate

    def read(self, value: object, values: dict[str, Any], errors: Errors) -> None:
        if value is not ABSENT:
            values[self.name], found = self._validate(value, values, loc=self._location)
            errors += found
        elif self._is_required:
            errors.append({**MISSING, "loc": self._location})
        else:
            values[self.name] = self._default


def _parameters(fields: Sequence[Any], place: str) -> list[_Parameter]:
    return [_Parameter(field, place, field.alias) for field in fields]

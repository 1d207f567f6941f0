"""Reads the arguments of an endpoint in one pass, with the fields that the framework made for it.

FastAPI finds out what each parameter is, describes it, and validates it. What it does for each
request around that (dependencies, forms, cookies, threads, telemetry) takes as long as all the rest
of the framework, and nothing here uses it.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Errors = list[dict[str, Any]]

MISSING: Final = {"type": "missing", "msg": "Field required", "input": None}


class ReadingRoute(APIRoute):
    """A route whose endpoint gets parts of the request and returns the response itself.

    To be given to an application as it is (`routes`): a router that is included goes another way.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        """Make the route.

        Raises:
            TypeError: the endpoint asks for more than parts of the request.
        """
        super().__init__(*args, **options)
        # Without the stacks of contexts that the framework opens for dependencies.
        self.app = _application(self.get_route_handler())

    def get_route_handler(self) -> Handler:
        """Return what reads the arguments and calls the endpoint."""
        endpoint, dependant = self.endpoint, self.dependant
        if not iscoroutinefunction(endpoint) or _asks_for_more(dependant):
            raise TypeError(
                "expected a coroutine function that takes parts of the path, the query, the "
                f"headers and the body, got {endpoint!r}"
            )
        arguments = _Arguments(dependant)

        async def handle(request: Request) -> Response:
            return await endpoint(**await arguments.read(request))

        return handle


class _Arguments:
    """The parameters of an endpoint, and where each is read."""

    def __init__(self, dependant: Dependant) -> None:
        self._request_name = dependant.request_param_name
        self._path = _fields(dependant.path_params, "path")
        self._query = _fields(dependant.query_params, "query")
        headers = _fields(dependant.header_params, "header")
        self._headers = [(field, field.alias.lower().encode("latin-1")) for field in headers]
        self._body = _fields(dependant.body_params, "body")
        fields = (*self._path, *self._query, *headers, *self._body)
        self._defaults = {it.name: it.default for it in fields if not it.is_required}

    async def read(self, request: Request) -> dict[str, Any]:
        """Return the arguments by name.

        Raises:
            RequestValidationError: some are missing, or are not as they were declared.
        """
        values, errors = self._defaults.copy(), Errors()
        if self._request_name:
            values[self._request_name] = request
        for field in self._path:
            field.read(request.path_params.get(field.alias), values, errors)
        for field in self._query:
            # Mostly there is none, which is quick to see.
            value = request.query_params.get(field.alias) if request.scope["query_string"] else None
            field.read(value, values, errors)
        # Of a header that was sent several times the first counts.
        sent = dict(reversed(request.scope["headers"]))
        for field, name in self._headers:
            field.read(sent[name].decode("latin-1") if name in sent else None, values, errors)
        for field in self._body:
            is_sent = bool(await request.body())
            value = await request.json() if is_sent else None
            field.read_whole(value, values, errors, is_sent=is_sent)
        if errors:
            raise RequestValidationError(errors)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One parameter; `place` is the path, the query, the headers or the body."""

    name: str
    alias: str
    place: str
    is_required: bool
    default: Any
    validate: Callable[..., tuple[Any, Errors]]

    def read(self, value: str | None, values: dict[str, Any], errors: Errors) -> None:
        """Take the value that was sent under the alias, if one was."""
        if value is not None or self.is_required:
            place = (self.place, self.alias)
            self._take(value, place, values, errors, is_sent=value is not None)

    def read_whole(
        self, value: object, values: dict[str, Any], errors: Errors, *, is_sent: bool
    ) -> None:
        """Take a value that is all there is in its place."""
        self._take(value, (self.place,), values, errors, is_sent=is_sent)

    def _take(
        self,
        value: object,
        location: tuple[str, ...],
        values: dict[str, Any],
        errors: Errors,
        *,
        is_sent: bool,
    ) -> None:
        if is_sent:
            values[self.name], found = self.validate(value, values, loc=location)
            errors += found
        elif self.is_required:
            errors.append({**MISSING, "loc": location})


def _fields(fields: Sequence[Any], place: str) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            name=field.name,
            alias=field.alias,
            place=place,
            is_required=field.field_info.is_required(),
            default=field.get_default(),
            validate=field.validate,
        )
        for field in fields
    )


def _asks_for_more(dependant: Dependant) -> bool:
    names = (
        dependant.websocket_param_name,
        dependant.http_connection_param_name,
        dependant.response_param_name,
        dependant.background_tasks_param_name,
        dependant.security_scopes_param_name,
    )
    has_parts_of_body = len(dependant.body_params) > 1
    return bool(
        any(names) or dependant.dependencies or dependant.cookie_params or has_parts_of_body
    )


def _application(handle: Handler) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)

    return answer

"""Reads the arguments of an endpoint in one pass, with the fields that the framework made for it.

FastAPI finds out what each parameter is, describes it, and validates it. What it does for each
request around that (dependencies, forms, cookies, telemetry) takes 0.2 ms of processor for the five
parameters of a prediction, as long as all the rest of the framework, and nothing here uses it.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.routing import request_response

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Errors = list[dict[str, Any]]

MISSING: Final = {"type": "missing", "msg": "Field required", "input": None}


class ReadingRoute(APIRoute):
    """A route whose endpoint gets parts of the request and returns the response itself.

    To be given to an application as it is (`routes`): a router that is included goes another way.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(*args, **options)
        if self._reads_parts_alone:
            # Without the stacks of contexts that the framework opens for dependencies.
            self.app = request_response(self.get_route_handler())

    @property
    def _reads_parts_alone(self) -> bool:
        wanted = self.dependant
        has_more = wanted.dependencies or wanted.cookie_params
        return iscoroutinefunction(self.endpoint) and not has_more

    def get_route_handler(self) -> Handler:
        """Return what reads the arguments and calls the endpoint."""
        if not self._reads_parts_alone:
            return super().get_route_handler()
        endpoint, dependant = self.endpoint, self.dependant
        path = _fields(dependant.path_params, "path")
        query = _fields(dependant.query_params, "query")
        headers = _fields(dependant.header_params, "header")
        body = _fields(dependant.body_params, "body")

        async def handle(request: Request) -> Response:
            values: dict[str, Any] = {}
            errors: Errors = []
            if dependant.request_param_name:
                values[dependant.request_param_name] = request
            for fields, sent in (
                (path, request.path_params),
                (query, request.query_params),
                (headers, request.headers),
            ):
                for field in fields:
                    field.read(sent, values, errors)
            for field in body:
                is_sent = bool(await request.body())
                value = await request.json() if is_sent else None
                field.read_whole(value, values, errors, is_sent=is_sent)
            if errors:
                raise RequestValidationError(errors)
            return await endpoint(**values)

        return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One parameter; `place` is the path, the query, the headers or the body."""

    name: str
    alias: str
    place: str
    is_required: bool
    default: Any
    validate: Callable[..., tuple[Any, Errors]]

    def read(self, sent: Mapping[str, Any], values: dict[str, Any], errors: Errors) -> None:
        """Take the value that stands under the alias."""
        value = sent.get(self.alias)
        self._take(value, (self.place, self.alias), values, errors, is_sent=value is not None)

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
        else:
            values[self.name] = self.default


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

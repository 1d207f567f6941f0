"""The OpenAPI schema, and the pages for people: the overview at `/`, and the API at `/docs`."""

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from nunatak_contract.names import MAX_NAME_LENGTH, MAX_VERSION, NAME_PATTERN
from nunatak_server import page
from nunatak_server.access.keys import Scope
from nunatak_server.http.access import PUBLIC, needs
from nunatak_server.http.middleware import StrictRoute
from nunatak_server.http.replies import reply

SCHEMA_PATH: Final = "/openapi.json"


def integers_up_to(limit: int) -> str:
    digits = str(limit)
    after = len(digits) - 1
    fewer_digits = f"[1-9][0-9]{{0,{after - 1}}}"
    # Numbers with the same count of digits: equal up to one place, smaller there, then any digits.
    smaller = [
        f"{digits[:place]}[{int(place == 0)}-{int(digit) - 1}][0-9]{{{after - place}}}"
        for place, digit in enumerate(digits)
        if int(digit) > int(place == 0)
    ]
    return f"(?:{'|'.join([fewer_digits, *smaller, digits])})"


_NAME: Final = NAME_PATTERN.strip("^$")
_TOO_LONG: Final = f"[^@/]{{{MAX_NAME_LENGTH + 1}}}"
_NOT_TOO_LONG: Final = f"(?!{_TOO_LONG}|[^@]*@{_TOO_LONG})"
NAME: Final = {"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_LENGTH}
REFERENCE: Final = {"type": "string", "pattern": f"^{_NOT_TOO_LONG}{_NAME}(?:@{_NAME})?$"}
VERSION: Final = {"type": "string", "pattern": f"^{integers_up_to(MAX_VERSION)}$"}
WHOLE_REFERENCE: Final = {
    "type": "string",
    "pattern": f"^{_NOT_TOO_LONG}{_NAME}(?:@{_NAME}|/{integers_up_to(MAX_VERSION)})?$",
}
"""A reference in a body, which may also name a version."""


router = APIRouter(route_class=StrictRoute, include_in_schema=False)


@router.get(SCHEMA_PATH, dependencies=[needs(Scope.READ)])
async def schema(request: Request) -> Response:
    """Return the OpenAPI schema."""
    # The first schema takes a second, in which the event loop would stand still.
    return reply(await asyncio.to_thread(request.app.openapi))


def completed(description: dict[str, Any]) -> dict[str, Any]:
    """Add two facts that the framework cannot express.

    One is the grammar of names: an endpoint serves two paths, and a parameter has a different
    grammar in each, but the framework describes a parameter only by its type. The other is the
    optional key, because servers without keys need no scope.
    """
    paths = {
        path: {method: _completed(operation) for method, operation in item.items()}
        for path, item in description["paths"].items()
    }
    return {**description, "paths": paths}


def _completed(operation: dict[str, Any]) -> dict[str, Any]:
    needed: list[dict[str, list[str]]] = operation.get("security", [])
    listed = operation.get("parameters", [])
    grammar = _grammar({(parameter["name"], parameter["in"]) for parameter in listed})
    parameters = [_named(parameter, grammar.get(parameter["name"])) for parameter in listed]
    security: list[dict[str, list[str]]] = [*needed, {}] if needed else []
    return {**operation, "security": security, "parameters": parameters}


def _grammar(places: set[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    # A task next to an alias or a required version cannot name an alias itself.
    is_alone = places.isdisjoint({("alias", "path"), ("alias", "query"), ("version", "path")})
    return {"task": REFERENCE if is_alone else NAME, "alias": NAME, "version": VERSION}


def _named(parameter: dict[str, Any], name: dict[str, Any] | None) -> dict[str, Any]:
    schema = name or parameter["schema"]
    if "anyOf" in schema:
        # A missing parameter is None in Python, but callers cannot send null outside of a body.
        schema = next(one for one in schema["anyOf"] if one != {"type": "null"})
    return {**parameter, "schema": schema}


HTML: Final = "text/html; charset=utf-8"

TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
MEDIA_TYPES: Final[Mapping[str, str]] = {
    it.name: TYPES[ending]
    for it in files(page).iterdir()
    if (ending := it.name.rpartition(".")[2]) in TYPES
}
"""All files by name. No path is ever built from a caller's text."""

HEADERS: Final[Mapping[str, str]] = {
    # Names of tasks, labels and texts are foreign. This policy lets only our scripts run.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Browsers must not use the scripts of an old version of the server.
    "cache-control": "no-cache",
}


@router.get("/", dependencies=[PUBLIC])
async def overview() -> Response:
    """Show tasks, memory and speed, and a box for questions."""
    return await _file("index.html", HTML)


@router.get("/docs", dependencies=[PUBLIC])
async def docs() -> Response:
    """Show the API. Unlike the framework's page, this page loads no scripts from other sites."""
    return await _file("docs.html", HTML)


@router.get("/page/{name}", dependencies=[PUBLIC])
async def asset(name: str) -> Response:
    """Send one of the files of the pages."""
    if name not in MEDIA_TYPES:
        raise HTTPException(404)
    return await _file(name, MEDIA_TYPES[name])


async def _file(name: str, media_type: str) -> Response:
    content = await asyncio.to_thread(files(page).joinpath(name).read_bytes)
    return Response(content, media_type=media_type, headers=dict(HEADERS))

"""Pages for people: the overview at `/`, the API at `/docs`, and the files they are made of."""

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from nunatak_server import page
from nunatak_server.api.limits import StrictRoute

HTML: Final = "text/html; charset=utf-8"
SCRIPT: Final = "text/javascript; charset=utf-8"

MEDIA_TYPES: Final[Mapping[str, str]] = {
    "answers.js": SCRIPT,
    "asking.js": SCRIPT,
    "docs.js": SCRIPT,
    "dom.js": SCRIPT,
    "icon.svg": "image/svg+xml",
    "metrics.js": SCRIPT,
    "panels.js": SCRIPT,
    "page.css": "text/css; charset=utf-8",
    "page.js": SCRIPT,
    "server.js": SCRIPT,
}
"""Every file that may be asked for by name: no path is ever made of what a caller sends."""

HEADERS: Final[Mapping[str, str]] = {
    # Names of tasks, labels and texts come from others: whatever they say, no script but ours runs.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A new version of the server must not meet the scripts of an old one.
    "cache-control": "no-cache",
}

router = APIRouter(route_class=StrictRoute, include_in_schema=False)


@router.get("/")
async def overview() -> Response:
    """Show tasks, memory and speed, and a box to ask in."""
    return await _file("index.html", HTML)


@router.get("/docs")
async def docs() -> Response:
    """Show the API, without the scripts from elsewhere that the framework's own page loads."""
    return await _file("docs.html", HTML)


@router.get("/page/{name}")
async def asset(name: str) -> Response:
    """Send one of the files of the pages."""
    if name not in MEDIA_TYPES:
        raise HTTPException(404)
    return await _file(name, MEDIA_TYPES[name])


async def _file(name: str, media_type: str) -> Response:
    content = await asyncio.to_thread(files(page).joinpath(name).read_bytes)
    return Response(content, media_type=media_type, headers=dict(HEADERS))

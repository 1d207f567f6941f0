"""Limits on what is read from a caller: bytes, time and media type."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from fastapi import Request, Response
from starlette.types import Scope

from nunatak_server.admission import Admission, HeldBytes
from nunatak_server.api.access import Access, access_to, admit, caller_of
from nunatak_server.api.errors import problem_response
from nunatak_server.api.lines import LinesResponse
from nunatak_server.api.reading import ReadingRoute
from nunatak_server.api.strict_json import parse_json
from nunatak_server.errors import (
    BodyTooLargeError,
    ReceiveTimeoutError,
    UnsupportedMediaTypeError,
)
from nunatak_server.errors.known import KnownError
from nunatak_server.settings import ServerSettings
from nunatak_server.time_limits import within

METHODS_WITH_BODY: Final = frozenset({"POST", "PUT"})


class StrictRequest(Request):
    """A request whose body has been read and parsed under our limits."""

    def __init__(self, request: Request, *, body: bytes, parsed: object) -> None:
        super().__init__(request.scope, request.receive)
        self._strict_body = body
        self._strict_json = parsed

    async def body(self) -> bytes:
        """Return the bytes that were read."""
        return self._strict_body

    async def json(self) -> Any:  # noqa: ANN401 - the signature of the base class
        """Return the value that was parsed."""
        return self._strict_json


class StrictRoute(ReadingRoute):
    """A route for those who may use it; reads bodies under limits."""

    @property
    def needed(self) -> Access | None:
        """What a caller must have."""
        return access_to(self.methods or set(), self.path_format)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler of the base class."""
        handle = super().get_route_handler()
        needed = self.needed

        async def handle_strictly(request: Request) -> Response:
            # Before anything of the body is read: strangers get no work done.
            admit(request, needed)
            if request.method not in METHODS_WITH_BODY:
                return await handle(request)
            with admission_of(request).hold_bytes(caller_of(request.scope).name) as held:
                strict = await read_strictly(request, settings_of(request), held=held)
                response = await handle(strict)
                if isinstance(response, LinesResponse):
                    # Its lines are still to be made, from the body.
                    response.hold(held.moved())
                return response

        return handle_strictly

    def answer_failure(self, scope: Scope, error: KnownError) -> Response:
        """Answer a request with an error of the project, as callers of this route read it."""
        return problem_response(scope, error)


def settings_of(request: Request) -> ServerSettings:
    """Return the settings of the application that serves the request."""
    settings: ServerSettings = request.app.state.settings
    return settings


def admission_of(request: Request) -> Admission:
    """Return what counts the bytes of bodies, for all requests together."""
    admission: Admission = request.app.state.runtime.admission
    return admission


def declared_bytes(request: Request) -> int | None:
    """Return how long the body is by its header, if that is said."""
    declared = request.headers.get("content-length", "")
    return int(declared[:20]) if declared.isdecimal() else None


async def read_strictly(
    request: Request, settings: ServerSettings, *, held: HeldBytes
) -> StrictRequest:
    """Read the whole body and parse it, if there is one; its bytes are counted as they come.

    Raises:
        OverloadedError: too many bytes of other bodies are held.
        BodyTooLargeError: more bytes than allowed are declared or come.
        ReceiveTimeoutError: they do not come in time.
        UnsupportedMediaTypeError: the body is not declared as JSON.
        InvalidJsonError: it is not strict JSON.
    """
    limit_s = settings.receive_timeout_s
    reading = _read(request, settings.max_body_bytes, held)
    body = await within(limit_s, reading, late=partial(ReceiveTimeoutError, limit_s))
    if not body:
        return StrictRequest(request, body=body, parsed=None)
    media_type = request.headers.get("content-type", "").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMediaTypeError
    return StrictRequest(request, body=body, parsed=parse_json(body))


async def _read(request: Request, limit_bytes: int, held: HeldBytes) -> bytes:
    if (declared_bytes(request) or 0) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        held.take(len(chunk))
    return bytes(body)

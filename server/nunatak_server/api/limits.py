"""Limits on what is read from a caller: room, bytes, time and media type."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from nunatak_registry import TaskReference
from nunatak_server.admission import Admission, HeldBytes
from nunatak_server.api.access import PREDICT, access_to, admit, caller_of
from nunatak_server.api.disconnects import CLIENT_CLOSED_REQUEST, unless_disconnected
from nunatak_server.api.lines import LinesResponse
from nunatak_server.api.reading import ReadingRoute
from nunatak_server.api.strict_json import parse_json
from nunatak_server.errors import (
    BodyTooLargeError,
    ReceiveTimeoutError,
    UnsupportedMediaTypeError,
)
from nunatak_server.service import PredictionService
from nunatak_server.settings import ServerSettings

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
    """A route for those who may use it; reads bodies under limits, and lets go of who has gone."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler of the base class."""
        handle = super().get_route_handler()
        needed = access_to(self.methods or set(), self.path_format)

        async def handle_strictly(request: Request) -> Response:
            # Before anything of the body is read: strangers get no work done.
            admit(request, needed)
            if request.method not in METHODS_WITH_BODY:
                return await handle(request)
            if needed == PREDICT:
                check_room(request)
            with ExitStack() as holding:
                admission, caller = admission_of(request), caller_of(request.scope)
                held = holding.enter_context(admission.hold_bytes(caller.name))
                try:
                    strict = await read_strictly(request, settings_of(request), held=held)
                except ClientDisconnect:
                    return Response(status_code=CLIENT_CLOSED_REQUEST)
                response = await unless_disconnected(strict, handle(strict))
                if isinstance(response, LinesResponse):
                    # Its lines are still to be made, from the body.
                    response.hold(holding.pop_all())
                return response

        return handle_strictly


def settings_of(request: Request) -> ServerSettings:
    """Return the settings of the application that serves the request."""
    settings: ServerSettings = request.app.state.settings
    return settings


def admission_of(request: Request) -> Admission:
    """Return what counts the bytes of bodies, for all requests together."""
    admission: Admission = request.app.state.runtime.admission
    return admission


def check_room(request: Request) -> None:
    """Refuse a prediction for which there is no room, before anything of its body is read.

    The protocol throws away what then comes of the body, and the connection stays in use: closing
    it would reset it under callers that still send, and make each of them open another. So this is
    only for bodies that are certain to come, and to end soon: others are read first.

    Raises:
        OverloadedError: the queue, or the share that the caller or the task has of it, is full.
        NotReadyError: the server takes no requests.
    """
    num_bytes = _declared_bytes(request)
    if num_bytes is None or num_bytes > settings_of(request).max_body_bytes:
        return
    if "expect" in request.headers:
        return
    task = request.path_params.get("task")
    service: PredictionService = request.app.state.runtime.service
    tasks = () if task is None else (TaskReference.task_in(task),)
    service.check_room(caller_of(request.scope).name, tasks=tasks, num_bytes=num_bytes)


def _declared_bytes(request: Request) -> int | None:
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
    limit = asyncio.timeout(settings.receive_timeout_s)
    try:
        async with limit:
            body = await _read(request, settings.max_body_bytes, held)
    except TimeoutError:
        if limit.expired():
            raise ReceiveTimeoutError(settings.receive_timeout_s) from None
        raise
    if not body:
        return StrictRequest(request, body=body, parsed=None)
    media_type = request.headers.get("content-type", "").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMediaTypeError
    return StrictRequest(request, body=body, parsed=parse_json(body))


async def _read(request: Request, limit_bytes: int, held: HeldBytes) -> bytes:
    if (_declared_bytes(request) or 0) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        held.take(len(chunk))
    return bytes(body)

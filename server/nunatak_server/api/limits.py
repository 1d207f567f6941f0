"""Limits on what is read from a caller: bytes, time, media type and strict JSON."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from nunatak_server.admission import Admission, HeldBytes
from nunatak_server.errors import (
    BodyTooLargeError,
    InvalidJsonError,
    ReceiveTimeoutError,
    UnsupportedMediaTypeError,
)
from nunatak_server.settings import ServerSettings

# Nobody reads it; it is what proxies log for a caller that has gone.
CLIENT_CLOSED_REQUEST: Final = 499
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


class StrictRoute(APIRoute):
    """A route that reads bodies under limits, and gives up when the caller has gone."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler of the base class."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            if request.method not in METHODS_WITH_BODY:
                return await handle(request)
            with admission_of(request).hold_bytes() as held:
                try:
                    strict = await read_strictly(request, settings_of(request), held=held)
                except ClientDisconnect:
                    return Response(status_code=CLIENT_CLOSED_REQUEST)
                return await _unless_disconnected(strict, handle(strict))

        return handle_strictly


def settings_of(request: Request) -> ServerSettings:
    """Return the settings of the application that serves the request."""
    settings: ServerSettings = request.app.state.settings
    return settings


def admission_of(request: Request) -> Admission:
    """Return what counts the bytes of bodies, for all requests together."""
    admission: Admission = request.app.state.runtime.admission
    return admission


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


def parse_json(body: bytes) -> object:
    """Parse strict JSON: UTF-8, no NaN, no lone surrogates, bounded depth.

    Raises:
        InvalidJsonError: it is something else.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # The decoder's own message is left out, because it quotes the body.
        raise InvalidJsonError from None


async def _read(request: Request, limit_bytes: int, held: HeldBytes) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        held.take(len(chunk))
    return bytes(body)


async def _unless_disconnected(
    request: Request, handling: Coroutine[Any, Any, Response]
) -> Response:
    """Await the handling of a request; cancel it when the caller has gone."""
    answer = asyncio.ensure_future(handling)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""Observes every HTTP request: counts and times it, traces it, and writes its line in the log.

Pure ASGI, as the context of a request. Of the request itself only its method, the template of its
route and its id are kept: paths, texts and keys are the caller's. A key's name is the operator's.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nunatak_server.api.access import find_caller
from nunatak_server.api.context import request_id_of
from nunatak_server.observation.logs import fields
from nunatak_server.observation.records import (
    OK,
    PredictionRecord,
    RequestNotes,
    current_notes,
)
from nunatak_server.observation.tracing import RequestSpan
from nunatak_server.protocol import caller_has_gone
from nunatak_server.runtime import Runtime

NO_ROUTE: Final = "none"
"""Stands for the route of requests that no route answers."""
KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"
CLIENT_CLOSED_REQUEST: Final = 499
"""Nobody reads it; it is what proxies log for a caller that has gone."""
PROBES: Final = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""Asked every few seconds by machines: written only at the level of debugging."""

logger = logging.getLogger("nunatak_server.access")


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request, and what is known of its answer so far."""

    method: str
    span: RequestSpan | None
    started: float = field(default_factory=time.perf_counter)
    notes: RequestNotes = field(default_factory=RequestNotes)
    # What is answered outside of all middleware is a failure that nobody foresaw.
    status: int = 500


class ObservingMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and tell of it when it has been answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _begin(scope)
        token = current_notes.set(exchange.notes)

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except asyncio.CancelledError:
            if not caller_has_gone(scope):
                raise
            exchange.status = CLIENT_CLOSED_REQUEST
        finally:
            current_notes.reset(token)
            self._conclude(scope, exchange)

    def _conclude(self, scope: Scope, exchange: _Exchange) -> None:
        route = _route_of(scope)
        seconds = time.perf_counter() - exchange.started
        _runtime_of(scope).metrics.observe_http(
            route=route, method=exchange.method, status=exchange.status, seconds=seconds
        )
        if exchange.span is not None:
            exchange.span.end(route=route, status=exchange.status)
        level = logging.DEBUG if route in PROBES else logging.INFO
        if self._access_log and logger.isEnabledFor(level):
            values: dict[str, object] = {
                "request_id": request_id_of(scope),
                "method": exchange.method,
                "route": route,
                "status": exchange.status,
                "duration_ms": _ms(seconds),
            }
            if exchange.span is not None:
                values["trace_id"] = exchange.span.trace_id
            caller = find_caller(scope)
            if caller is not None:
                values["caller"] = caller.name
            values |= note_fields(exchange.notes)
            logger.log(level, "request", extra=fields(**values))


def _begin(scope: Scope) -> _Exchange:
    method = scope["method"] if scope["method"] in KNOWN_METHODS else OTHER_METHOD
    tracing = _runtime_of(scope).tracing
    span = tracing.begin(method=method, headers=scope["headers"]) if tracing else None
    return _Exchange(method=method, span=span)


def _runtime_of(scope: Scope) -> Runtime:
    runtime: Runtime = scope["app"].state.runtime
    return runtime


def note_fields(notes: RequestNotes) -> dict[str, object]:
    """Return what the log says of what a request was about."""
    if notes.predictions:
        return prediction_fields(notes.predictions)
    return {} if notes.task is None else {"task": notes.task}


def prediction_fields(parts: Sequence[PredictionRecord]) -> dict[str, object]:
    """Return what the log says of a prediction; times are those of its slowest version."""
    versions = list(chain.from_iterable(part.versions for part in parts))
    rows = [each.slowest for each in versions if each.slowest is not None]
    values: dict[str, object] = {
        "tasks": [f"{each.task}/{each.version}" for each in versions],
        "tokenize_ms": _ms(max(part.tokenize_s for part in parts)),
        "load_ms": _ms(max((row.load_s for row in rows), default=0.0)),
        "queue_ms": _ms(max((row.queue_s for row in rows), default=0.0)),
        "compute_ms": _ms(max((row.compute_s for row in rows), default=0.0)),
        "batch_rows": max((row.batch_rows for row in rows), default=0),
    }
    failed = {
        f"{each.task}/{each.version}": each.outcome for each in versions if each.outcome != OK
    }
    return values | {"failed": failed} if failed else values


def _route_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", NO_ROUTE)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

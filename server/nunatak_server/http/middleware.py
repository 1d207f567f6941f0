"""Observes every HTTP request: counts and times it, traces it, and writes its line in the log.

From the request, only the method, the template of the route and the id are kept. Paths, texts and
keys belong to the caller. The name of a key belongs to the operator.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nunatak_server.http.access import find_caller, sharing_headers
from nunatak_server.http.protocol import caller_has_gone, is_given_up
from nunatak_server.http.state import give_id, request_id_of, state_of
from nunatak_server.telemetry.logs import fields
from nunatak_server.telemetry.records import OK, PredictionRecord, RequestNotes, current_notes
from nunatak_server.telemetry.tracing import RequestSpan

NO_ROUTE: Final = "none"
"""The route's name for requests that no route answers."""
KNOWN_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"
CLIENT_CLOSED_REQUEST: Final = 499
"""The status for a caller that has gone. Proxies log the same status."""
GIVEN_UP: Final = 503
"""The status of a cut answer, also after the answer has begun."""
PROBES: Final = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""Routes that machines call every few seconds. Their lines are logged only at level DEBUG."""

logger = logging.getLogger("nunatak_server.access")


@dataclass(slots=True, kw_only=True)
class Exchange:
    method: str
    span: RequestSpan | None
    started: float = field(default_factory=time.perf_counter)
    notes: RequestNotes = field(default_factory=RequestNotes)
    # The status of a failure before the answer.
    status: int = 500


class RequestObserver:
    def __init__(self, *, access_log: bool) -> None:
        self._access_log = access_log

    def begin(self, scope: Scope) -> Exchange:
        method = scope["method"] if scope["method"] in KNOWN_METHODS else OTHER_METHOD
        tracing = state_of(scope).runtime.tracing
        span = tracing.begin(method=method, headers=scope["headers"]) if tracing else None
        return Exchange(method=method, span=span)

    def answer_early(
        self, scope: Scope, answer: Callable[[Scope], Response], *, started: float | None = None
    ) -> Response:
        """Answer a request before all layers, with the layers' headers, and record it."""
        exchange = self.begin(scope)
        if started is not None:
            exchange.started = started
        identity = give_id(scope)
        response = answer(scope)
        response.raw_headers.extend(identity)
        response.headers.update(sharing_headers(scope))
        exchange.status = response.status_code
        self.conclude(scope, exchange)
        return response

    def conclude(self, scope: Scope, exchange: Exchange) -> None:
        route = _route_of(scope)
        seconds = time.perf_counter() - exchange.started
        metrics = state_of(scope).runtime.metrics
        metrics.observe_http(
            route=route, method=exchange.method, status=exchange.status, seconds=seconds
        )
        caller = find_caller(scope)
        if caller is not None:
            metrics.observe_caller(
                caller.name, status=exchange.status, predictions=exchange.notes.predictions
            )
        if exchange.span is not None:
            exchange.span.end(route=route, status=exchange.status)
        level = logging.DEBUG if route in PROBES else logging.INFO
        if self._access_log and logger.isEnabledFor(level):
            values: dict[str, object] = {
                "request_id": request_id_of(scope),
                "replica": state_of(scope).runtime.replica_id,
                "method": exchange.method,
                "route": route,
                "status": exchange.status,
                "duration_ms": _ms(seconds),
            }
            if exchange.span is not None:
                values["trace_id"] = exchange.span.trace_id
            if caller is not None:
                values["caller"] = caller.name
            values |= note_fields(exchange.notes)
            logger.log(level, "request", extra=fields(**values))


class ObservingMiddleware:
    """The outermost layer of the application, which also gives each request its id.

    Pure ASGI: a middleware that wraps requests in its own tasks would hide disconnects.
    """

    def __init__(self, app: ASGIApp, *, observer: RequestObserver) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange, identity = self._observer.begin(scope), give_id(scope)
        token = current_notes.set(exchange.notes)

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *identity]
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except asyncio.CancelledError:
            if caller_has_gone(scope):
                exchange.status = CLIENT_CLOSED_REQUEST
            elif is_given_up(scope):
                exchange.status = GIVEN_UP
            else:
                raise
        finally:
            current_notes.reset(token)
            self._observer.conclude(scope, exchange)


def note_fields(notes: RequestNotes) -> dict[str, object]:
    if notes.predictions:
        return prediction_fields(notes.predictions)
    return {} if notes.task is None else {"task": notes.task}


def prediction_fields(parts: Sequence[PredictionRecord]) -> dict[str, object]:
    tasks, failed = list[str](), dict[str, str]()
    tokenize_s = load_s = queue_s = compute_s = 0.0
    batch_rows = 0
    for part in parts:
        tokenize_s = max(tokenize_s, part.tokenize_s)
        for version in part.versions:
            name, row = f"{version.task}/{version.version}", version.slowest
            tasks.append(name)
            if version.outcome != OK:
                failed[name] = version.outcome
            if row is not None:
                load_s, queue_s = max(load_s, row.load_s), max(queue_s, row.queue_s)
                compute_s = max(compute_s, row.compute_s)
                batch_rows = max(batch_rows, row.batch_rows)
    values: dict[str, object] = {
        "tasks": tasks,
        "tokenize_ms": _ms(tokenize_s),
        "load_ms": _ms(load_s),
        "queue_ms": _ms(queue_s),
        "compute_ms": _ms(compute_s),
        "batch_rows": batch_rows,
    }
    return values | {"failed": failed} if failed else values


def _route_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", NO_ROUTE)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)

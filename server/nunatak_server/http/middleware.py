"""What surrounds every endpoint: observation, access, and limits on bytes, time and media type.

`ObservingMiddleware` counts and times each request, traces it, and writes its line in the log. Of
the request, only the method, the template of the route and the id are kept. Paths, texts and keys
belong to the caller. The name of a key belongs to the operator.

`StrictRoute` checks the caller and reads the body before the framework reads any argument.

`refusal_of` refuses predictions by their heads while the queue has no room. A refusal must cost
little: refusals would take CPU time from the requests that are answered. So the server refuses a
request before the framework works for it, and before its body arrives.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_server.access.keys import Scope as AccessScope
from nunatak_server.errors import DeadlineExceededError, UnknownSignerError, invalid_request
from nunatak_server.http.access import (
    PREDICT,
    Access,
    access_of,
    actor_of,
    admit,
    caller_of,
    find_caller,
    give_id,
    headers_of,
    let_in,
    request_id_of,
    sharing_headers,
    state_of,
)
from nunatak_server.http.endpoints import (
    Handler,
    ParsedBody,
    handler_of,
    off_loop_if_long,
    parse_json,
)
from nunatak_server.http.problems import code_of, problem_response
from nunatak_server.http.protocol import caller_has_gone, is_given_up
from nunatak_server.http.replies import LinesResponse
from nunatak_server.scheduler.admission import HeldBytes
from nunatak_server.scheduler.turns import within
from nunatak_server.telemetry.logs import fields
from nunatak_server.telemetry.metrics import OK, PredictionRecord, RequestNotes, current_notes

if TYPE_CHECKING:
    from nunatak_server.telemetry.spans import OpenSpan

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
    span: "OpenSpan | None"
    started: float = field(default_factory=time.perf_counter)
    notes: RequestNotes = field(default_factory=RequestNotes)
    # The status of a failure before the answer.
    status: int = 500


def begin(scope: Scope) -> Exchange:
    method = scope["method"] if scope["method"] in KNOWN_METHODS else OTHER_METHOD
    tracing = state_of(scope).runtime.tracing
    span = tracing.begin(method=method, headers=scope["headers"]) if tracing else None
    return Exchange(method=method, span=span)


def answer_early(
    scope: Scope, answer: Callable[[Scope], Response], *, started: float | None = None
) -> Response:
    """Answer a request before all layers, with the layers' headers, and record it."""
    exchange = begin(scope)
    if started is not None:
        exchange.started = started
    identity = give_id(scope)
    response = answer(scope)
    response.raw_headers.extend(identity)
    response.headers.update(sharing_headers(scope))
    exchange.status = response.status_code
    conclude(scope, exchange)
    return response


def conclude(scope: Scope, exchange: Exchange) -> None:
    route, state = _route_of(scope), state_of(scope)
    seconds = time.perf_counter() - exchange.started
    metrics = state.runtime.metrics
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
    if state.settings.access_log and logger.isEnabledFor(level):
        values: dict[str, object] = {
            "request_id": request_id_of(scope),
            "replica": state.runtime.replica_id,
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

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange, identity = begin(scope), give_id(scope)
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
            conclude(scope, exchange)


def note_fields(notes: RequestNotes) -> dict[str, object]:
    if notes.predictions or notes.verdict:
        return {**notes.verdict, **prediction_fields(notes.predictions)}
    return {} if notes.task is None else {"task": notes.task}


def prediction_fields(parts: Sequence[PredictionRecord]) -> dict[str, object]:
    named = [(f"{it.task}/{it.version}", it) for part in parts for it in part.versions]
    rows = [it.slowest for _, it in named if it.slowest is not None]
    failed = {name: it.outcome for name, it in named if it.outcome != OK}
    values: dict[str, object] = {
        "tasks": list(dict.fromkeys(name for name, _ in named)),
        "tokenize_ms": _ms(max((it.tokenize_s for it in parts), default=0.0)),
        "load_ms": _ms(max((it.load_s for it in rows), default=0.0)),
        "queue_ms": _ms(max((it.queue_s for it in rows), default=0.0)),
        "compute_ms": _ms(max((it.compute_s for it in rows), default=0.0)),
        "batch_rows": max((it.batch_rows for it in rows), default=0),
    }
    return values | {"failed": failed} if failed else values


def _route_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", NO_ROUTE)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


METHODS_WITH_BODY: Final = frozenset({"POST", "PUT"})
# The audit log leaves out a longer body.
AUDITED_BYTES: Final = 1000
UNKNOWN_END: Final = "the server ended during the request; check whether it changed anything"


class StrictRoute(APIRoute):
    @cached_property
    def needed(self) -> Access | None:
        return access_of(self.dependencies)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = handler_of(self)
        needed = self.needed
        is_act = needed is not None and needed.scope is AccessScope.ADMIN

        async def handle_strictly(request: Request) -> Response:
            # The caller is admitted before the body is read, so that strangers cause no work.
            scope = request.scope
            await let_in(scope, needed)
            count_request(scope, needed)
            self.check_query(request)
            if scope["method"] not in METHODS_WITH_BODY:
                return await handle(request, ParsedBody())
            admission = state_of(scope).runtime.admission
            with admission.hold_bytes(caller_of(scope).name) as held:
                body = await self.read(request, held=held)
                act = partial(self.act, handle) if is_act else handle
                response = await act(request, body)
                if isinstance(response, LinesResponse):
                    # The body is needed after the return, because the lines of the answer are made
                    # later.
                    response.hold(held.moved())
                return response

        async def handle_until_given_up(request: Request) -> Response:
            try:
                return await handle_strictly(request)
            except asyncio.CancelledError:
                if not is_given_up(request.scope):
                    raise
                if is_act and request.method in METHODS_WITH_BODY:
                    # A client that retries after a 503 would make the change a second time.
                    raise DeadlineExceededError(UNKNOWN_END) from None
                raise NunatakError("draining") from None

        return handle_until_given_up

    async def act(self, handle: Handler, request: Request, body: ParsedBody) -> Response:
        """Handle a request of an operator, which the audit log names before and after it."""
        scope, log = request.scope, state_of(request.scope).audit
        if log is None:
            return await handle(request, body)
        known = {
            "request_id": request_id_of(scope),
            "by": actor_of(scope),
            "act": f"{scope['method']} {self.path_format}",
            "object": {**request.query_params, **request.path_params},
            "body": body.value if 0 < body.num_bytes <= AUDITED_BYTES else None,
        }
        async with log.act(known, code_of):
            return await handle(request, body)

    def check_query(self, request: Request) -> None:
        """Refuse a query parameter that would have no effect.

        Probes and balancers may add parameters to the address of a public route.
        """
        if not request.scope["query_string"] or self.needed is None:
            return
        names = [name for name, _ in request.query_params.multi_items()]
        readers = (self.dependant, *self.dependant.dependencies)
        accepted = {it.alias for reader in readers for it in reader.query_params}
        if len(set(names)) == len(names) and accepted.issuperset(names):
            return
        # A name is the caller's text, so the message does not repeat it.
        known = f"only {', '.join(sorted(accepted))}, each once" if accepted else "none"
        raise invalid_request(f"a query parameter has no effect; this route accepts {known}")

    async def read(self, request: Request, *, held: HeldBytes) -> ParsedBody:
        """Read the whole body, if there is one, and parse it. Bytes are counted on arrival."""
        scope, settings = request.scope, state_of(request.scope).settings
        limit_s = settings.receive_timeout_s
        reading = _read(request, settings.max_body_bytes, held)
        late = partial(NunatakError, "receive_timeout", limit_s=limit_s)
        body = await within(limit_s, reading, late=late)
        if not body:
            return ParsedBody()
        check_encoding(scope)
        value = await off_loop_if_long(len(body), self.parse, scope, body)
        return ParsedBody(len(body), value)

    def parse(self, scope: Scope, body: bytes) -> object:
        if media_type_of(scope) != b"application/json":
            raise NunatakError("unsupported_media_type")
        return parse_json(body)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is to this route, as the framework does.

        The framework takes more than a microsecond to find that a path is another route's, and the
        last of the routes comes after seventy others.
        """
        if not scope.get("root_path") and self.path_regex.match(scope["path"]) is None:
            return Match.NONE, {}
        found, child = super().matches(scope)
        if found is Match.PARTIAL and self._is_read_by_head(scope):
            found = Match.FULL
        return found, child

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_read_by_head(scope):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _is_read_by_head(self, scope: Scope) -> bool:
        """Return whether a request wants what GET answers, of which the transport sends the head.

        Monitors and balancers ask so. HEAD is no method of the route, or the schema would list it.
        """
        return scope["method"] == "HEAD" and "GET" in (self.methods or ())

    def parameters_in(self, scope: Scope) -> dict[str, str] | None:
        """Return the path parameters of a request to this route; None for another route.

        The match equals the framework's, without converted parameters and without a root path,
        which no route here has.
        """
        found = self.path_regex.match(scope["path"])
        is_to_this = found is not None and scope["method"] in (self.methods or ())
        return found.groupdict() if found and is_to_this else None

    def answer_failure(self, scope: Scope, error: NunatakError) -> Response:
        return problem_response(scope, error)


def declared_bytes(scope: Scope) -> int | None:
    declared = headers_of(scope).get(b"content-length", b"")
    return int(declared[:20]) if declared.isdigit() else None


def check_encoding(scope: Scope) -> None:
    coding = headers_of(scope).get(b"content-encoding") or b"identity"
    if coding.strip().lower() != b"identity":
        raise NunatakError("compressed_body")


def media_type_of(scope: Scope) -> bytes:
    content_type = headers_of(scope).get(b"content-type", b"")
    return content_type.partition(b";")[0].strip().lower()


async def _read(request: Request, limit_bytes: int, held: HeldBytes) -> bytes:
    if (declared_bytes(request.scope) or 0) > limit_bytes:
        raise NunatakError("body_too_large", limit_bytes=limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise NunatakError("body_too_large", limit_bytes=limit_bytes)
        # The framework ends each body with an empty part.
        if chunk:
            held.take(len(chunk))
    return bytes(body)


def refusal_of(app: FastAPI, routes: Sequence[StrictRoute], scope: Scope) -> Response | None:
    """Return the answer to a request to one of the routes that its head refuses, or None.

    The transport sends the answer before the application knows the request. Nothing is admitted
    here: the matched route still checks the caller itself.
    """
    started = time.perf_counter()
    scope["app"] = app
    state = state_of(scope)
    if state.runtime.service.has_plenty_of_room(state.settings.max_body_bytes):
        return None
    for route in routes:
        parameters = route.parameters_in(scope)
        if parameters is not None:
            matched = {**scope, "route": route, "path_params": parameters}
            try:
                admit(matched, PREDICT)
                check_capacity(matched)
            except UnknownSignerError:
                return None
            except NunatakError as error:
                # Not bound to a name, because the error's traceback would then form a reference
                # cycle.
                return answer_early(
                    matched, partial(route.answer_failure, error=error), started=started
                )
            return None
    return None


def count_request(scope: Scope, needed: Access | None) -> None:
    """Count a request for its caller's quotas, or refuse it before its body is read."""
    # A spent quota must not keep an operator from a rollback.
    if needed is not None and needed.scope is not AccessScope.ADMIN:
        caller = caller_of(scope)
        state_of(scope).runtime.service.count_request(caller.name, caller.quotas)


def check_capacity(scope: Scope) -> None:
    """Refuse a prediction without room, before its body is read.

    The protocol discards the body, and the connection stays open. Closing would reset the
    connection of callers that still send, and each would open another. So the refusal is only for
    bodies that certainly arrive and end soon. Other bodies are read first.
    """
    num_bytes, state = declared_bytes(scope), state_of(scope)
    if num_bytes is None or num_bytes > state.settings.max_body_bytes:
        return
    if b"expect" in headers_of(scope):
        return
    task = scope["path_params"].get("task")
    tasks = () if task is None else (TaskReference.task_in(task),)
    state.runtime.service.check_capacity(caller_of(scope).name, tasks=tasks, num_bytes=num_bytes)

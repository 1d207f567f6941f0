"""Protection of the server from its callers: access, and limits on bytes, time and media type.

`StrictRoute` checks the caller and reads the body before the framework reads any argument.

`LoadShedder` refuses predictions by their heads while the queue has no room. A refusal must cost
little: refusals would take CPU time from the requests that are answered. So the server refuses a
request before the framework works for it, and before its body arrives.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property, partial
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_server.access.keys import Scope as AccessScope
from nunatak_server.errors import DeadlineExceededError, UnknownSignerError
from nunatak_server.http.access import (
    PREDICT,
    Access,
    access_of,
    actor_of,
    admit,
    caller_of,
    let_in,
)
from nunatak_server.http.middleware import RequestObserver
from nunatak_server.http.problems import code_of, problem_response
from nunatak_server.http.protocol import is_given_up
from nunatak_server.http.replies import LinesResponse
from nunatak_server.http.requests import MAX_BYTES_ON_LOOP, parse_json, quick_handler
from nunatak_server.http.state import header_of, request_id_of, state_of
from nunatak_server.scheduler.admission import HeldBytes
from nunatak_server.scheduler.turns import within
from nunatak_server.settings import ServerSettings

METHODS_WITH_BODY: Final = frozenset({"POST", "PUT"})
# The audit log leaves out a longer body.
AUDITED_BYTES: Final = 1000
UNKNOWN_END: Final = "the server ended during the request; check whether it changed anything"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose body was read and parsed under the limits."""

    def __init__(self, request: Request, *, body: bytes, parsed: object) -> None:
        super().__init__(request.scope, request.receive)
        self._strict_body = body
        self._strict_json = parsed

    async def body(self) -> bytes:
        return self._strict_body

    async def json(self) -> Any:  # noqa: ANN401 - the signature of the base class
        return self._strict_json


class StrictRoute(APIRoute):
    @cached_property
    def needed(self) -> Access | None:
        return access_of(self.dependencies)

    def get_route_handler(self) -> Handler:
        handle = quick_handler(self) or super().get_route_handler()
        needed = self.needed
        is_act = needed is not None and needed.scope is AccessScope.ADMIN

        async def handle_strictly(request: Request) -> Response:
            # The caller is admitted before the body is read, so that strangers cause no work.
            scope = request.scope
            await let_in(scope, needed)
            count_request(scope, needed)
            self.check_query(request)
            if scope["method"] not in METHODS_WITH_BODY:
                return await handle(request)
            state = state_of(scope)
            with state.runtime.admission.hold_bytes(caller_of(scope).name) as held:
                strict = await self.read(request, state.settings, held=held)
                response = await (self.act(strict, handle) if is_act else handle(strict))
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

    async def act(self, request: StrictRequest, handle: Handler) -> Response:
        """Handle a request of an operator, which the audit log names before and after it."""
        scope, log = request.scope, state_of(request.scope).audit
        if log is None:
            return await handle(request)
        known = {
            "request_id": request_id_of(scope),
            "by": actor_of(scope),
            "act": f"{scope['method']} {self.path_format}",
            "object": {**request.query_params, **request.path_params},
            "body": await request.json() if len(await request.body()) <= AUDITED_BYTES else None,
        }
        with log.act(known, code_of):
            return await handle(request)

    def check_query(self, request: Request) -> None:
        """Refuse a query parameter that would have no effect.

        Probes and balancers may add parameters to the address of a public route.
        """
        if not request.scope["query_string"] or self.needed is None:
            return
        names = [name for name, _ in request.query_params.multi_items()]
        accepted = {it.alias for it in self.dependant.query_params}
        if len(set(names)) == len(names) and accepted.issuperset(names):
            return
        # A name is the caller's text, so the message does not repeat it.
        known = f"only {', '.join(sorted(accepted))}, each once" if accepted else "none"
        problem = f"a query parameter has no effect; this route accepts {known}"
        raise NunatakError("invalid_request", problem=problem)

    async def read(
        self, request: Request, settings: ServerSettings, *, held: HeldBytes
    ) -> StrictRequest:
        return await read_strictly(request, settings, held=held, parse=self.parse)

    def parse(self, scope: Scope, body: bytes) -> object:
        """Parse a body, which must be declared as JSON."""
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
        return super().matches(scope)

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
    declared = header_of(scope, b"content-length") or b""
    return int(declared[:20]) if declared.isdigit() else None


def media_type_of(scope: Scope) -> bytes:
    content_type = header_of(scope, b"content-type") or b""
    return content_type.partition(b";")[0].strip().lower()


async def read_strictly(
    request: Request,
    settings: ServerSettings,
    *,
    held: HeldBytes,
    parse: Callable[[Scope, bytes], object],
) -> StrictRequest:
    """Read the whole body, if there is one, and parse it. Bytes are counted on arrival."""
    limit_s = settings.receive_timeout_s
    reading = _read(request, settings.max_body_bytes, held)
    body = await within(
        limit_s, reading, late=partial(NunatakError, "receive_timeout", limit_s=limit_s)
    )
    if not body:
        return StrictRequest(request, body=body, parsed=None)
    encoding = header_of(request.scope, b"content-encoding") or b"identity"
    if encoding.strip().lower() != b"identity":
        raise NunatakError("compressed_body")
    scope, is_long = request.scope, len(body) > MAX_BYTES_ON_LOOP
    parsed = await asyncio.to_thread(parse, scope, body) if is_long else parse(scope, body)
    return StrictRequest(request, body=body, parsed=parsed)


async def _read(request: Request, limit_bytes: int, held: HeldBytes) -> bytes:
    if (declared_bytes(request.scope) or 0) > limit_bytes:
        raise NunatakError("body_too_large", limit_bytes=limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise NunatakError("body_too_large", limit_bytes=limit_bytes)
        held.take(len(chunk))
    return bytes(body)


class LoadShedder:
    """Checks the heads of requests to prediction routes, before the application does.

    `LoadShedder` only refuses: the matched route still checks the caller itself.
    """

    def __init__(
        self, app: FastAPI, *, routes: Iterable[StrictRoute], observer: RequestObserver
    ) -> None:
        self._app = app
        self._routes = [route for route in routes if route.needed == PREDICT]
        self._observer = observer

    def refusal_of(self, scope: Scope) -> Response | None:
        """Return the answer to a refused request; the transport sends it. None: not refused."""
        started = time.perf_counter()
        scope["app"] = self._app
        state = state_of(scope)
        if state.runtime.service.has_plenty_of_room(state.settings.max_body_bytes):
            return None
        for route in self._routes:
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
                    return self._observer.answer_early(
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
    if header_of(scope, b"expect") is not None:
        return
    task = scope["path_params"].get("task")
    tasks = () if task is None else (TaskReference.task_in(task),)
    state.runtime.service.check_capacity(caller_of(scope).name, tasks=tasks, num_bytes=num_bytes)

"""Refuses predictions for which there is no room, before the framework does any work for them.

Under overload most requests are refused, and what that costs is taken from those that are answered:
most of a refusal within a route would be what the framework puts around it.
"""

from collections.abc import Iterable

from fastapi import Request, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from nunatak_registry import TaskReference
from nunatak_server.api.access import PREDICT, admit, caller_of
from nunatak_server.api.limits import StrictRoute, declared_bytes, settings_of
from nunatak_server.errors.known import KNOWN_ERRORS
from nunatak_server.service import PredictionService


class RoomMiddleware:
    """The layer around the framework's own, which looks at requests to routes of predictions.

    It refuses, and lets nobody in: the route that the framework finds checks the caller itself.
    """

    def __init__(self, app: ASGIApp, *, routes: Iterable[StrictRoute]) -> None:
        """Look at requests to those of these routes that predict."""
        self._app = app
        self._routes = [route for route in routes if route.needed == PREDICT]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is not Match.FULL:
                continue
            matched = {**scope, **found}
            request = Request(matched)
            try:
                admit(request, PREDICT)
                check_room(request)
            except KNOWN_ERRORS as error:
                # The log and the metrics name the route and the caller.
                scope.update(matched)
                return route.answer_failure(scope, error)
            return None
        return None


def check_room(request: Request) -> None:
    """Refuse a prediction for which there is no room, before anything of its body is read.

    The protocol throws away what then comes of the body, and the connection stays in use: closing
    it would reset it under callers that still send, and make each of them open another. So this is
    only for bodies that are certain to come, and to end soon: others are read first.

    Raises:
        OverloadedError: the queue, or the share that the caller or the task has of it, is full.
        NotReadyError: the server takes no requests.
    """
    num_bytes = declared_bytes(request)
    if num_bytes is None or num_bytes > settings_of(request).max_body_bytes:
        return
    if "expect" in request.headers:
        return
    task = request.path_params.get("task")
    service: PredictionService = request.app.state.runtime.service
    tasks = () if task is None else (TaskReference.task_in(task),)
    service.check_room(caller_of(request.scope).name, tasks=tasks, num_bytes=num_bytes)

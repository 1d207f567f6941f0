"""Room: refuses predictions by their heads while there is no room for them.

A refusal must cost little, or refusing takes the processor from those who are answered. So it is
made before the framework does any work for a request, and before its body comes.
"""

import time
from collections.abc import Iterable

from fastapi import FastAPI, Request, Response
from starlette.routing import Match
from starlette.types import Scope

from nunatak_registry import TaskReference
from nunatak_server.api.access import PREDICT, admit, caller_of
from nunatak_server.api.context import give_id
from nunatak_server.api.limits import StrictRoute, declared_bytes, settings_of
from nunatak_server.api.observing import RequestObserver
from nunatak_server.errors.known import KNOWN_ERRORS
from nunatak_server.service import PredictionService


class RoomCheck:
    """Looks at the heads of requests to routes that predict, before the application does.

    It refuses, and lets nobody in: the route that the framework finds checks the caller itself.
    """

    def __init__(
        self, app: FastAPI, *, routes: Iterable[StrictRoute], observer: RequestObserver
    ) -> None:
        """Look at requests to those of these routes of `app` that predict."""
        self._app = app
        self._routes = [route for route in routes if route.needed == PREDICT]
        self._observer = observer

    def refusal_of(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused, which is then as good as sent."""
        started = time.perf_counter()
        scope["app"] = self._app
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
                exchange = self._observer.begin(matched)
                exchange.started = started
                header = give_id(matched)
                response = route.answer_failure(matched, error)
                response.raw_headers.append(header)
                exchange.status = response.status_code
                self._observer.conclude(matched, exchange)
                return response
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

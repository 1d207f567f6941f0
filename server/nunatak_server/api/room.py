"""Room: refuses predictions by their heads while there is no room for them.

A refusal must cost little, or refusing takes the processor from those who are answered. So it is
made before the framework does any work for a request, and before its body comes.
"""

import time
from collections.abc import Iterable
from functools import partial

from fastapi import FastAPI, Response
from starlette.types import Scope

from nunatak_registry import TaskReference
from nunatak_server.api.access import PREDICT, admit, caller_of
from nunatak_server.api.app_state import state_of
from nunatak_server.api.context import header_of
from nunatak_server.api.limits import StrictRoute, declared_bytes
from nunatak_server.api.observing import RequestObserver
from nunatak_server.errors.known import KNOWN_ERRORS


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
        state = state_of(scope)
        if state.runtime.service.has_plenty_of_room(state.settings.max_body_bytes):
            return None
        for route in self._routes:
            parameters = route.parameters_in(scope)
            if parameters is not None:
                matched = {**scope, "route": route, "path_params": parameters}
                try:
                    admit(matched, PREDICT)
                    check_room(matched)
                except KNOWN_ERRORS as error:
                    # Without a name here, which the traceback of the error would hold in a cycle.
                    return self._observer.answer_early(
                        matched, partial(route.answer_failure, error=error), started=started
                    )
                return None
        return None


def check_room(scope: Scope) -> None:
    """Refuse a prediction for which there is no room, before anything of its body is read.

    The protocol throws away what then comes of the body, and the connection stays in use: closing
    it would reset it under callers that still send, and make each of them open another. So this is
    only for bodies that are certain to come, and to end soon: others are read first.

    Raises:
        OverloadedError: the queue, or the share that the caller or the task has of it, is full.
        NotReadyError: the server takes no requests.
    """
    num_bytes, state = declared_bytes(scope), state_of(scope)
    if num_bytes is None or num_bytes > state.settings.max_body_bytes:
        return
    if header_of(scope, b"expect") is not None:
        return
    task = scope["path_params"].get("task")
    tasks = () if task is None else (TaskReference.task_in(task),)
    state.runtime.service.check_room(caller_of(scope).name, tasks=tasks, num_bytes=num_bytes)

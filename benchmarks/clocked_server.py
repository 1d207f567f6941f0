"""A server that counts its processor time: the child process of `serving_overhead.py`.

    python benchmarks/clocked_server.py served   the server, configured by NUNATAK_* variables
    python benchmarks/clocked_server.py bare     a route of the same framework that answers at once

It prints its address once it takes requests, and one line for each line that it reads: the seconds
of the processor that the process has used, and those of them that forward passes have used.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from nunatak_server.compute import BatchCompute
from nunatak_server.serve import serve
from nunatak_server.settings import ServerSettings

FORWARD = "forward"
"""What the compute module calls the function that is counted."""
ANSWER = [{"label": "calm", "score": 0.9}, {"label": "urgent", "score": 0.1}]


class Question(BaseModel):
    """What the bare route is asked."""

    inputs: str
    parameters: dict[str, Any]


class Clock:
    """Counts the processor time of one function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted; it must keep to the thread that calls it."""

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started

        return run

    def report(self) -> None:
        """Answer each line of standard input with the times so far."""
        for _ in sys.stdin:
            print(time.process_time(), self.seconds, flush=True)


def main() -> None:
    """Serve until killed."""
    clock = Clock()
    threading.Thread(target=clock.report, daemon=True).start()
    if sys.argv[1] == "bare":
        serve_bare()
    else:
        compute = sys.modules[BatchCompute.__module__]
        setattr(compute, FORWARD, clock.around(getattr(compute, FORWARD)))
        serve(ServerSettings(), announce=announce)


def serve_bare() -> None:
    """Serve one route that reads a question and answers it at once."""
    app = FastAPI()

    @app.post("/v1/tasks/{task}/predict")
    async def predict(task: str, body: Question) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction] - by its route
        return {"task": task, "version": len(body.inputs), "outputs": ANSWER}

    config = uvicorn.Config(app, port=0, http="httptools", access_log=False, log_level="error")
    bare = uvicorn.Server(config)
    threading.Thread(target=announce_bare, args=(bare,), daemon=True).start()
    bare.run()


def announce_bare(bare: uvicorn.Server) -> None:
    """Print the address once there is one."""
    while not bare.started:
        time.sleep(0.01)
    host, port = bare.servers[0].sockets[0].getsockname()[:2]
    announce(f"http://{host}:{port}")


def announce(address: str) -> None:
    """Print the address on a line of its own."""
    print(address, flush=True)


if __name__ == "__main__":
    main()

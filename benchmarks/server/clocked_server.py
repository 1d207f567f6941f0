"""A server that counts its CPU time: the child process of `serving_overhead`.

Its argument is the kind of server; `computing` also needs the number of tokens:

    served      the server, configured by NUNATAK_* variables
    computing   a route of the same framework that answers after a forward pass on a thread

`computing` reads no text and runs one row of the given number of tokens. The rest of its CPU time
is the least that this framework needs.

The server prints its address when it accepts requests. For each line of its standard input, the
server prints its CPU seconds outside of forwards.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import HeadOnly
from nunatak_model import (
    BranchSpec,
    Encoding,
    Row,
    build_branch,
    convert_branch,
    default_head,
    forward,
    initial_parameters,
)
from nunatak_server.engine.backbones import load_serving_backbone
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.processes.serving import serve
from nunatak_server.settings import ServerSettings

FORWARD = "forward"
"""Name of the counted function in the compute module."""
ANSWER = [{"label": "calm", "score": 0.9}, {"label": "urgent", "score": 0.1}]


class Question(BaseModel):
    """The body of a request to the bare route."""

    inputs: str
    parameters: dict[str, Any]


class Clock:
    """Counts the CPU seconds of forward passes."""

    def __init__(self) -> None:
        self.forward_s = 0.0
        self._is_running = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass, counted; the pass must stay on the calling thread."""

        def run(*rows: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
            if self._is_running:
                # This forward runs between two layers of another one, whose time includes it.
                return function(*rows, **options)
            self._is_running, started = True, time.thread_time()
            try:
                return function(*rows, **options)
            finally:
                self._is_running = False
                self.forward_s += time.thread_time() - started

        return run

    def report(self) -> None:
        """Answer each line of standard input with the CPU seconds outside of forwards."""
        for _ in sys.stdin:
            print(time.process_time() - self.forward_s, flush=True)


def main() -> None:
    clock = Clock()
    threading.Thread(target=clock.report, daemon=True).start()
    match sys.argv[1:]:
        case ["computing", num_tokens]:
            serve_bare(computing(clock.around(forward), int(num_tokens)))
        case ["served"]:
            compute = sys.modules[BatchCompute.__module__]
            setattr(compute, FORWARD, clock.around(getattr(compute, FORWARD)))
            serve(ServerSettings(), announce=partial(print, flush=True))
        case unknown:
            raise SystemExit(f"no such kind of server: {unknown}")


def computing(run: Callable[..., Any], num_tokens: int) -> Callable[[], None]:
    """Return a function that runs one row through the forward pass."""
    settings = ServerSettings()
    torch.set_num_threads(settings.compute_threads or torch.get_num_threads())
    backbone = load_serving_backbone(settings)
    spec = BranchSpec(
        method=HeadOnly(),
        head=default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2),
    )
    parameters = initial_parameters(spec, backbone, generator=torch.Generator().manual_seed(0))
    branch = convert_branch(build_branch(spec, backbone.config, parameters), backbone)
    encoding = Encoding(token_ids=(1,) * num_tokens, type_ids=(0,) * num_tokens)
    return torch.inference_mode()(lambda: run(backbone, [Row(encoding=encoding, branch=branch)]))


def serve_bare(before: Callable[[], None]) -> None:
    """Serve one route that reads a question, runs something on another thread, and answers."""
    app, thread = FastAPI(), ThreadPoolExecutor(1)

    @app.post("/v1/tasks/{task}/predict")
    async def predict(task: str, body: Question) -> dict[str, Any]:
        await asyncio.get_running_loop().run_in_executor(thread, before)
        return {"task": task, "version": len(body.inputs), "outputs": ANSWER}

    config = uvicorn.Config(app, port=0, http="httptools", access_log=False, log_level="error")
    bare = uvicorn.Server(config)
    threading.Thread(target=announce, args=(bare,), daemon=True).start()
    bare.run()


def announce(bare: uvicorn.Server) -> None:
    while not bare.started:
        time.sleep(0.01)
    host, port = bare.servers[0].sockets[0].getsockname()[:2]
    print(f"http://{host}:{port}", flush=True)


if __name__ == "__main__":
    main()

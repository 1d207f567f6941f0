"""Tenants for the benchmarks of a server: tasks on the embedded backbone, callers, an operator.

The server runs in its own process, behind real HTTP. A caller is a thread with one kept-alive
connection: the caller sends a request, waits for the answer, and sends the next request.
"""

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness.makers import LABELS, TaskPlan, draft
from benchmarks.harness.pinning import Cores, pinned
from nunatak_contract.enums import HeadKind
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import Method, TopK
from nunatak_model import Backbone, default_head
from nunatak_registry import Registry

TOP_LAYER = TopK(num_layers=1)
TEXTS = tuple(f"{word} is my parcel, and who can tell me more about it?" for word in (
    "where", "when", "what", "how", "why", "lost", "green", "late"
))  # fmt: skip
LOGITS = {"function_to_apply": "none", "top_k": len(LABELS)}
READY = "Nunatak is ready on "


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer of a task about one text, and the seconds of its request."""

    task: str
    text: str
    status: int
    body: dict[str, Any]
    seconds: float
    compute_ms: float = 0.0
    """Milliseconds of the forward pass, from the answer's header."""


class Caller:
    """One kept-alive connection."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self.compute_ms = 0.0
        """Milliseconds of the forward pass of the last answer."""

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Send one request and read its answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"content-type": "application/json"}
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        self.compute_ms = float(answer.headers.get("x-compute-ms", 0))
        return answer.status, json.loads(answer.read())

    def ask(self, task: str, text: str) -> Asked:
        """Ask one task about one text."""
        started = time.perf_counter()
        body = {"inputs": text, "parameters": LOGITS}
        status, answer = self.call("POST", f"/v1/tasks/{task}/predict", body)
        seconds = time.perf_counter() - started
        return Asked(
            task=task,
            text=text,
            status=status,
            body=answer,
            seconds=seconds,
            compute_ms=self.compute_ms,
        )

    def ask_many(self, tasks: Sequence[str], texts: Sequence[str]) -> list[Asked]:
        """Ask tasks about texts in one request; return one answer for each pair."""
        started = time.perf_counter()
        body = {"inputs": list(texts), "tasks": list(tasks), "parameters": LOGITS}
        status, answer = self.call("POST", "/v1/predict", body)
        seconds = time.perf_counter() - started
        nothing: list[dict[str, Any]] = [{}] * len(tasks)
        results: list[dict[str, Any]] = answer.get("results", nothing)
        return [
            Asked(
                task=task,
                text=text,
                status=status if "outputs" in result else http.client.SERVICE_UNAVAILABLE,
                body={**result, "outputs": result.get("outputs", {position: []})[position]},
                seconds=seconds,
            )
            for task, result in zip(tasks, results, strict=True)
            for position, text in enumerate(texts)
        ]


def publish(
    registry: Registry, backbone: Backbone, task: str, seed: int, *, method: Method = TOP_LAYER
) -> TaskManifest:
    """Publish a version with the initial parameters of training, plus noise."""
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=len(LABELS))
    plan = TaskPlan(name=task, method=method, seed=seed, head=head, probe=TEXTS[:2])
    made = draft(plan, backbone)
    return registry.publish(made.manifest, made.blobs)


@contextlib.contextmanager
def server(registry: str, *, task_memory_bytes: int, cores: Cores = None) -> Generator[str]:
    """Run `nunatak serve` in its own process, on these cores; yield the server's address."""
    command = [sys.executable, "-m", "nunatak_cli", "serve", "--registry", registry, "--port", "0"]
    command += ["--task-memory-bytes", str(task_memory_bytes)]
    with subprocess.Popen(  # noqa: S603 - the command is ours
        pinned(command, cores),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    ) as process:
        if process.stdout is None:
            raise RuntimeError("the server's output was asked for and is not there")
        try:
            lines = (line for line in process.stdout if line.startswith(READY))
            yield next(lines).removeprefix(READY).strip()
        finally:
            process.terminate()


def ask_for(
    address: str,
    seconds: float,
    ask: Callable[[Caller, random.Random], list[Asked]],
    *,
    callers: int,
    seed: int,
) -> list[Asked]:
    """Let callers ask for `seconds`; each caller has its own connection and seed."""
    end = time.perf_counter() + seconds

    def repeat(number: int) -> list[Asked]:
        draw, caller, answers = random.Random(seed + number), Caller(address), list[Asked]()
        while time.perf_counter() < end:
            answers += ask(caller, draw)
        return answers

    with ThreadPoolExecutor(callers) as pool:
        return [asked for answers in pool.map(repeat, range(callers)) for asked in answers]

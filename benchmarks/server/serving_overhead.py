"""Overhead: the time, CPU time and throughput that serving costs on top of the forward pass.

Time and CPU time: one caller sends one short new text at a time, on the embedded backbone, without
a trunk cache. A bare route of the framework runs in turns with the server, and also runs a forward
pass of as many tokens on a thread. Code runs two to three times slower after such a pause than in a
tight loop, because caches and CPUs have gone cold.

Throughput: more callers than the server can answer run in turns with the mixed forward alone, which
computes the same rows in batches of 64. The backbone has the shape of BERT base and random weights.
Processes have one compute thread.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import OK, HTTPConnection
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.harness.makers import LABELS, publish
from benchmarks.harness.recording import ROOT, Sheet, figures_parser, open_sheet
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import served_backbone
from nunatak_model import DEFAULT_BACKBONE, Backbone, Branch, Row, forward, load_backbone
from nunatak_registry import Registry
from nunatak_versions import load_task

TASKS = ("tone", "mood", "intent", "spam")
WORDS = ("where", "when", "parcel", "lost", "green", "late", "please", "call", "me", "back")
NUM_WORDS = 16
NUM_TOKENS = NUM_WORDS + 2
TEXTS = (
    " ".join(WORDS[int(digit)] for digit in f"{number:0{NUM_WORDS}d}")
    for number in itertools.count()
)
"""Texts of equally many words, each of which is used once."""
CALLERS, TEXTS_PER_REQUEST = 4, 16
LOGITS = {"function_to_apply": "none", "top_k": len(LABELS)}
ROWS_PER_FORWARD = 64
"""The most rows of a batch of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedServer:
    """A server process that reports its CPU time."""

    process: "subprocess.Popen[str]"
    address: str

    def outside_s(self) -> float:
        """Return the CPU seconds so far outside of forwards."""
        print(file=self.process.stdin, flush=True)
        return float(next(iter(self.process.stdout or ())))

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.address.removeprefix("http://"), timeout=120)


@contextmanager
def clocked(*kind: str, **settings: object) -> Generator[ClockedServer]:
    """Run a server process on one compute thread."""
    chosen = {"port": 0, "compute_threads": 1, "trunk_cache_bytes": 0} | settings
    environment = {f"NUNATAK_{name.upper()}": str(value) for name, value in chosen.items()}
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "benchmarks.server.clocked_server", *kind],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
    ) as process:
        try:
            address = next(iter(process.stdout or ()), "").strip()
            if not address:
                raise SystemExit("the server ended before it listened; `nunatak serve` tells why")
            yield ClockedServer(process=process, address=address)
        finally:
            process.kill()


def main() -> None:
    parser = figures_parser(__doc__, rounds=9, parts=("one", "many"))
    parser.add_argument("--requests", type=int, default=300, help="of one round")
    parser.add_argument("--seconds", type=float, default=20, help="of one round of throughput")
    options, sheet = open_sheet(parser)
    torch.set_num_threads(1)
    if "one" in options.parts:
        one_caller(sheet, options.requests)
    if "many" in options.parts:
        saturation(sheet, options.seconds)


def one_caller(sheet: Sheet, num_requests: int) -> None:
    """Record the time and the CPU time of one request, without its forward."""
    backbone = load_backbone(DEFAULT_BACKBONE)
    check_lengths(backbone)
    kinds = (("served",), ("computing", str(NUM_TOKENS)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        publish_tasks(folder, backbone)
        servers = [running.enter_context(clocked(*kind, registry=folder)) for kind in kinds]
        rounds = [
            [ask_one(server, num_requests) for server in servers] for _ in range(sheet.rounds + 1)
        ]
    # The first round warms up.
    served, computing = zip(*rounds[1:], strict=True)
    extra = [one.extra_ms for one in served]
    sheet.record("server.overhead.p50_ms", extra, unit="ms beyond the forward", goal="<= 3")
    for identifier, asked, goal in (
        ("server.overhead.cpu_ms", served, "<= 0.5"),
        ("server.overhead.cpu_ms.bare_route_computing", computing, None),
    ):
        times, unit = [one.cpu_ms for one in asked], "ms of CPU time per request"
        sheet.record(identifier, times, unit=unit, goal=goal)
    ratios = [ours.cpu_ms / theirs.cpu_ms for ours, theirs in zip(served, computing, strict=True)]
    unit = "times a bare route, a forward in both"
    sheet.record("server.overhead.cpu_ratio", ratios, unit=unit)


class OneCaller(NamedTuple):
    """The median time beyond the forward, and the mean CPU time, of the requests of one round."""

    extra_ms: float
    cpu_ms: float


def ask_one(server: ClockedServer, num_requests: int) -> OneCaller:
    connection, before = server.connect(), server.outside_s()
    times = [ask(connection, "tone", next(TEXTS)) for _ in range(num_requests)]
    took, computed = map(median, zip(*times, strict=True))
    return OneCaller(took - computed, 1000 * (server.outside_s() - before) / num_requests)


def ask(connection: HTTPConnection, task: str, inputs: str | Sequence[str]) -> tuple[float, float]:
    """Return the milliseconds of one request, and those of its forward pass."""
    started = time.perf_counter()
    body = json.dumps({"inputs": inputs, "parameters": LOGITS})
    headers = {"content-type": "application/json"}
    connection.request("POST", f"/v1/tasks/{task}/predict", body, headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != OK:
        raise SystemExit(f"the server refused: {said.decode()}")
    took_ms = 1000 * (time.perf_counter() - started)
    return took_ms, float(answer.headers.get("x-compute-ms", 0))


def saturation(sheet: Sheet, seconds: float) -> None:
    """Compare the rows per second of an overloaded server with those of the forward alone."""
    with tempfile.TemporaryDirectory() as folder:
        source, registry = backbone_folder(Shape.BERT_BASE, Path(folder)), f"{folder}/registry"
        publish_tasks(registry, load_backbone(source))
        backbone = served_backbone(source, dtype=torch.float32)
        check_lengths(backbone)
        branches = load_branches(registry, backbone)
        with clocked("served", backbone=source, registry=registry) as server:
            rounds = [
                served_rate(server, seconds) / bare_rate(backbone, branches, seconds)
                for _ in range(sheet.rounds + 1)
            ]
    unit = "of the rows per second of the forward alone"
    # The first round warms up.
    sheet.record("server.overhead.saturation_ratio", rounds[1:], unit=unit, goal=">= 0.9")


def served_rate(server: ClockedServer, seconds: float) -> float:
    """Return the rows per second of callers without pauses, each of whom asks about many texts."""
    started = time.perf_counter()

    def ask_on(number: int) -> int:
        connection, draw, num_rows = server.connect(), random.Random(number), 0
        while time.perf_counter() < started + seconds:
            texts = [next(TEXTS) for _ in range(TEXTS_PER_REQUEST)]
            ask(connection, draw.choice(TASKS), texts)
            num_rows += TEXTS_PER_REQUEST
        return num_rows

    with ThreadPoolExecutor(CALLERS) as pool:
        num_rows = sum(pool.map(ask_on, range(CALLERS)))
    return num_rows / (time.perf_counter() - started)


def bare_rate(backbone: Backbone, branches: Sequence[Branch], seconds: float) -> float:
    """Return the rows per second of the forward, batch after batch, without tokenization."""
    num_rows, took = 0, 0.0
    while took < seconds:
        texts = [next(TEXTS) for _ in range(ROWS_PER_FORWARD)]
        rows = [
            Row(encoding=encoding, branch=branches[index // TEXTS_PER_REQUEST])
            for index, encoding in enumerate(backbone.tokenizer.encode(texts, max_length=128))
        ]
        started = time.perf_counter()
        with torch.inference_mode():
            forward(backbone, rows)
        took += time.perf_counter() - started
        num_rows += len(rows)
    return num_rows / took


def check_lengths(backbone: Backbone) -> None:
    """Check that texts are read whole: two texts that are cut could be equal inputs."""
    (encoding,) = backbone.tokenizer.encode([next(TEXTS)], max_length=128)
    if encoding.num_tokens != NUM_TOKENS:
        raise SystemExit(f"a text of {NUM_WORDS} words has {encoding.num_tokens} tokens")


def publish_tasks(folder: str, backbone: Backbone) -> None:
    with Registry.open(folder) as registry:
        for seed, task in enumerate(TASKS):
            publish(registry, backbone, task, seed)


def load_branches(folder: str, backbone: Backbone) -> list[Branch]:
    """Load the tasks in the form that the server holds."""
    with Registry.open(folder) as registry:
        manifests = [registry.resolve(task) for task in TASKS]
        return [load_task(it, registry.read_blob(it), backbone).branch for it in manifests]


if __name__ == "__main__":
    main()

"""Overhead: the time, CPU time and throughput that serving costs on top of the forward pass.

Time and CPU time: one caller sends one short new text at a time, on the embedded backbone, without
a trunk cache. A bare route of the framework runs in turns with the server, and also runs a forward
pass of as many tokens on a thread. Code runs two to three times slower after such a pause than in a
tight loop, because caches and CPUs have gone cold.

Throughput: more callers than the server can answer run in turns with the mixed forward alone, which
computes the same rows in batches of 64. The backbone has the shape of BERT base and random weights.
The loss has two causes: smaller batches (CPU time of a row), and time without a forward. Processes
have one compute thread.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.harness.recording import ROOT, Sheet, figures_parser, open_sheet
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import served_backbone
from benchmarks.server.tenants import Caller, ask_for, publish
from nunatak_model import DEFAULT_BACKBONE, Backbone, Branch, Row, forward, load_backbone
from nunatak_registry import Registry
from nunatak_versions import load_task

TASKS = ("tone", "mood", "intent", "spam")
WORDS = ("where", "when", "parcel", "lost", "green", "late", "please", "call", "me", "back")
NUM_WORDS = 16
NUM_TOKENS = NUM_WORDS + 2
CALLERS, TEXTS_PER_REQUEST = 4, 16
ROWS_PER_FORWARD = 64
"""The most rows of a batch of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """The CPU seconds that a server has used so far, in all and in its forward passes."""

    total_s: float
    forward_s: float
    forward_wall_s: float
    num_rows: int

    def since(self, before: "Used") -> "Used":
        """Return the difference between two readings."""
        return Used(
            total_s=self.total_s - before.total_s,
            forward_s=self.forward_s - before.forward_s,
            forward_wall_s=self.forward_wall_s - before.forward_wall_s,
            num_rows=self.num_rows - before.num_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedServer:
    """A server process that reports its CPU time."""

    process: "subprocess.Popen[str]"
    address: str

    def used(self) -> Used:
        """Return the CPU time so far."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the server was started without pipes")
        print(file=self.process.stdin, flush=True)
        return Used(**json.loads(self.process.stdout.readline()))


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
        if process.stdout is None:
            raise RuntimeError("the server was started without pipes")
        try:
            yield ClockedServer(process=process, address=process.stdout.readline().strip())
        finally:
            process.kill()


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=9)
    parser.add_argument("--requests", type=int, default=300, help="of one round")
    parser.add_argument("--seconds", type=float, default=20, help="of one round of throughput")
    parser.add_argument("parts", nargs="*", default=["one", "many"], metavar="one|many")
    options, sheet = open_sheet(parser)
    torch.set_num_threads(1)
    if "one" in options.parts:
        one_caller(sheet, options.requests)
    if "many" in options.parts:
        saturation(sheet, options.seconds)


def one_caller(sheet: Sheet, num_requests: int) -> None:
    """Record the time and the CPU time of one request, without its forward."""
    texts, backbone = fresh_texts(), load_backbone(DEFAULT_BACKBONE)
    check_lengths(backbone)
    kinds = (("served",), ("computing", str(NUM_TOKENS)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        publish_tasks(folder, backbone)
        servers = [running.enter_context(clocked(*kind, registry=folder)) for kind in kinds]
        rounds = [
            [ask_one(server, texts, num_requests) for server in servers]
            for _ in range(sheet.rounds + 1)
        ]
    # The first round warms up.
    served, computing = zip(*rounds[1:], strict=True)
    unit = "ms of CPU time per request"
    extra = [one.extra_ms for one in served]
    sheet.record("server.overhead.p50_ms", extra, unit="ms beyond the forward", goal="<= 3")
    for identifier, asked, goal in (
        ("server.overhead.cpu_ms", served, "<= 0.5"),
        ("server.overhead.cpu_ms.bare_route_computing", computing, None),
    ):
        sheet.record(identifier, [one.cpu_ms for one in asked], unit=unit, goal=goal)
    ratios = [ours.cpu_ms / theirs.cpu_ms for ours, theirs in zip(served, computing, strict=True)]
    unit = "times a bare route, a forward in both"
    sheet.record("server.overhead.cpu_ratio", ratios, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCaller:
    """Medians and means of one round."""

    extra_ms: float
    cpu_ms: float


def ask_one(server: ClockedServer, texts: "itertools.count[int]", num_requests: int) -> OneCaller:
    """Ask one text after another."""
    caller = Caller(server.address)
    took, computed = list[float](), list[float]()
    before = server.used()
    for _ in range(num_requests):
        asked = caller.ask("tone", text_of(next(texts)))
        if asked.status != 200:
            raise SystemExit(f"the server refused: {asked}")
        took.append(asked.seconds * 1000)
        computed.append(asked.compute_ms)
    used = server.used().since(before)
    outside_s = used.total_s - used.forward_s
    return OneCaller(
        extra_ms=median(took) - median(computed), cpu_ms=1000 * outside_s / num_requests
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Figures of one round; the CPU time is only that of the forward passes."""

    rows_per_s: float
    cpu_s_per_row: float
    busy_share: float
    """Share of the round in which a forward ran."""


def saturation(sheet: Sheet, seconds: float) -> None:
    """Compare the rows per second of an overloaded server with those of the forward alone."""
    texts = fresh_texts()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        backbone_path = backbone_folder(Shape.BERT_BASE, Path(folder))
        site = {"backbone": backbone_path, "registry": Path(folder) / "registry"}
        publish_tasks(str(site["registry"]), load_backbone(site["backbone"]))
        backbone = served_backbone(site["backbone"], dtype=torch.float32)
        check_lengths(backbone)
        branches = load_branches(str(site["registry"]), backbone)
        server = running.enter_context(clocked("served", **site))
        rounds = [
            (
                served_throughput(server, texts, seconds),
                bare_throughput(backbone, branches, texts, seconds),
            )
            for _ in range(sheet.rounds + 1)
        ]
    served, alone = zip(*rounds[1:], strict=True)
    record_throughput(sheet, "server.overhead.saturation_ratio", served, alone)


def record_throughput(
    sheet: Sheet, identifier: str, served: Sequence[Throughput], alone: Sequence[Throughput]
) -> None:
    """Record the share of the forward's throughput that the server reaches, and the losses."""
    pairs = list(zip(served, alone, strict=True))
    ratios = [ours.rows_per_s / theirs.rows_per_s for ours, theirs in pairs]
    batches = [theirs.cpu_s_per_row / ours.cpu_s_per_row for ours, theirs in pairs]
    busy = [ours.busy_share for ours in served]
    unit = "of the rows per second of the forward alone"
    sheet.record(identifier, ratios, unit=unit, goal=">= 0.9")
    sheet.record(f"{identifier}.batches", batches, unit="of its rows per second of CPU time")
    sheet.record(f"{identifier}.busy", busy, unit="of the time in a forward")


def served_throughput(
    server: ClockedServer, texts: "itertools.count[int]", seconds: float
) -> Throughput:
    """Let callers ask without pauses; each request asks one task about many texts."""
    before, started = server.used(), time.perf_counter()
    asked = ask_for(
        server.address,
        seconds,
        lambda caller, draw: caller.ask_many(
            [draw.choice(TASKS)], [text_of(next(texts)) for _ in range(TEXTS_PER_REQUEST)]
        ),
        callers=CALLERS,
        seed=0,
    )
    took = time.perf_counter() - started
    used = server.used().since(before)
    refused = [one for one in asked if one.status != 200]
    if refused:
        raise SystemExit(f"the server refused: {refused[0]}")
    return Throughput(
        rows_per_s=len(asked) / took,
        cpu_s_per_row=used.forward_s / used.num_rows,
        busy_share=used.forward_wall_s / took,
    )


def bare_throughput(
    backbone: Backbone, branches: Sequence[Branch], texts: "itertools.count[int]", seconds: float
) -> Throughput:
    """Run such rows through the forward, batch after batch, without the time of tokenization."""
    num_rows, took, used = 0, 0.0, 0.0
    while took < seconds:
        encodings = backbone.tokenizer.encode(
            [text_of(next(texts)) for _ in range(ROWS_PER_FORWARD)], max_length=128
        )
        rows = [
            Row(encoding=encoding, branch=branches[index // TEXTS_PER_REQUEST])
            for index, encoding in enumerate(encodings)
        ]
        started, started_at = time.thread_time(), time.perf_counter()
        with torch.inference_mode():
            forward(backbone, rows)
        used += time.thread_time() - started
        took += time.perf_counter() - started_at
        num_rows += len(rows)
    return Throughput(rows_per_s=num_rows / took, cpu_s_per_row=used / num_rows, busy_share=1.0)


def check_lengths(backbone: Backbone) -> None:
    """Check that texts are read whole: two texts that are cut could be equal inputs."""
    (encoding,) = backbone.tokenizer.encode([text_of(0)], max_length=128)
    if encoding.num_tokens != NUM_TOKENS:
        raise SystemExit(f"a text of {NUM_WORDS} words has {encoding.num_tokens} tokens")


def publish_tasks(folder: str, backbone: Backbone) -> None:
    """Publish a version of each task."""
    with Registry.open(folder) as registry:
        for seed, task in enumerate(TASKS):
            publish(registry, backbone, task, seed)


def load_branches(folder: str, backbone: Backbone) -> list[Branch]:
    """Load the tasks in the form that the server holds."""
    with Registry.open(folder) as registry:
        manifests = [registry.resolve(task) for task in TASKS]
        return [load_task(it, registry.read_blob(it), backbone).branch for it in manifests]


def fresh_texts() -> "itertools.count[int]":
    """Return a counter of texts, so that each number is used once."""
    return itertools.count()


def text_of(number: int) -> str:
    """Return the text of a number; all texts have equally many words."""
    digits = [WORDS[int(digit)] for digit in f"{number:0{NUM_WORDS}d}"]
    return " ".join(digits)


if __name__ == "__main__":
    main()

"""Overhead: what serving adds to the forward pass, in time, processor time and throughput.

Time and processor time: one caller, one short text at a time that was never asked before, on the
embedded backbone, without a trunk cache. Throughput: more callers than the server can answer, shape
of BERT base with random weights, against the same rows through the mixed forward alone, in turns.
Processes are measured with one compute thread, so that a thread's time is a forward's time.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from fanout import save_random_bert
from recording import FIGURES, record
from tenants import Caller, ask_for, publish
from workload import served_backbone

from nunatak_artifact import load_task
from nunatak_model import DEFAULT_BACKBONE, Backbone, Branch, Row, forward, load_backbone
from nunatak_registry import Registry

SCRIPT = Path(__file__).with_name("clocked_server.py")
TASKS = ("tone", "mood", "intent", "spam")
WORDS = ("where", "when", "parcel", "lost", "green", "late", "please", "call", "me", "back")
NUM_WORDS = 16
CALLERS, TEXTS_PER_REQUEST = 4, 16
ROWS_PER_FORWARD = 64
"""As many as a batch of the server may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedServer:
    """A server process that tells how much processor time it has used."""

    process: "subprocess.Popen[str]"
    address: str

    def seconds(self) -> tuple[float, float]:
        """Processor time of the process, and of its forward passes."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the server was started without pipes")
        print(file=self.process.stdin, flush=True)
        total, inside = self.process.stdout.readline().split()
        return float(total), float(inside)


@contextmanager
def clocked(kind: str, **settings: object) -> Generator[ClockedServer]:
    """Run a server process on one compute thread."""
    chosen = {"port": 0, "compute_threads": 1, "trunk_cache_bytes": 0} | settings
    environment = {f"NUNATAK_{name.upper()}": str(value) for name, value in chosen.items()}
    with subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, str(SCRIPT), kind],
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=300, help="of one round")
    parser.add_argument("--seconds", type=float, default=20, help="of one round of throughput")
    parser.add_argument("--parts", nargs="*", default=["one", "many"], metavar="one|many")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "one" in options.parts:
        one_caller(options)
    if "many" in options.parts:
        saturation(options)


def one_caller(options: argparse.Namespace) -> None:
    """Time and processor time of one request, beyond its forward."""
    texts = fresh_texts()
    with tempfile.TemporaryDirectory() as folder:
        publish_tasks(folder, load_backbone(DEFAULT_BACKBONE))
        with clocked("served", registry=folder) as served, clocked("bare") as bare:
            extra, used, floor = list[float](), list[float](), list[float]()
            for number in range(options.rounds + 1):
                ours = ask_one(served, texts, options.requests)
                theirs = ask_one(bare, texts, options.requests)
                if number:  # the first round warms up
                    extra.append(ours.extra_ms)
                    used.append(ours.cpu_ms)
                    floor.append(theirs.cpu_ms)
    note("server.overhead.p50_ms", extra, "ms beyond the forward", options, goal="<= 3")
    note("server.overhead.cpu_ms", used, "ms of processor per request", options, goal="<= 0.5")
    note("server.overhead.cpu_ms.bare_route", floor, "ms of processor per request", options)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCaller:
    """Medians and means of one round."""

    extra_ms: float
    cpu_ms: float


def ask_one(server: ClockedServer, texts: "itertools.count[int]", num_requests: int) -> OneCaller:
    """Ask one text after another."""
    caller = Caller(server.address)
    took, computed = list[float](), list[float]()
    total, inside = server.seconds()
    for _ in range(num_requests):
        asked = caller.ask("tone", text_of(next(texts)))
        took.append(asked.seconds * 1000)
        computed.append(asked.compute_ms)
    total_after, inside_after = server.seconds()
    outside = (total_after - total) - (inside_after - inside)
    return OneCaller(extra_ms=median(took) - median(computed), cpu_ms=1000 * outside / num_requests)


def saturation(options: argparse.Namespace) -> None:
    """Rows per second of a server that has more to do than it can, against the forward alone."""
    texts, ratios = fresh_texts(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        site = {"backbone": Path(folder) / "backbone", "registry": Path(folder) / "registry"}
        for path in site.values():
            path.mkdir()
        save_random_bert(site["backbone"])
        publish_tasks(str(site["registry"]), load_backbone(site["backbone"]))
        backbone = served_backbone(site["backbone"], dtype=torch.float32)
        branches = load_branches(str(site["registry"]), backbone)
        with clocked("served", **site) as server:
            for number in range(options.rounds + 1):
                served = served_rows_per_s(server, texts, options.seconds)
                alone = bare_rows_per_s(backbone, branches, texts, options.seconds)
                if number:
                    ratios.append(served / alone)
    unit = "of the rows per second of the forward alone"
    note("server.overhead.saturation_ratio", ratios, unit, options, goal=">= 0.9")


def served_rows_per_s(
    server: ClockedServer, texts: "itertools.count[int]", seconds: float
) -> float:
    """Let callers ask all the time, each one task about many texts."""
    started = time.perf_counter()
    asked = ask_for(
        server.address,
        seconds,
        lambda caller, draw: caller.ask_many(
            [draw.choice(TASKS)], [text_of(next(texts)) for _ in range(TEXTS_PER_REQUEST)]
        ),
        callers=CALLERS,
        seed=0,
    )
    if any(one.status != 200 for one in asked):
        raise SystemExit(f"the server refused: {asked[0]}")
    return len(asked) / (time.perf_counter() - started)


def bare_rows_per_s(
    backbone: Backbone, branches: Sequence[Branch], texts: "itertools.count[int]", seconds: float
) -> float:
    """Run the same kind of rows through the forward, batch after batch; texts are read before."""
    num_rows, spent = 0, 0.0
    while spent < seconds:
        encodings = backbone.tokenizer.encode(
            [text_of(next(texts)) for _ in range(ROWS_PER_FORWARD)], max_length=128
        )
        rows = [
            Row(encoding=encoding, branch=branches[index // TEXTS_PER_REQUEST])
            for index, encoding in enumerate(encodings)
        ]
        started = time.perf_counter()
        with torch.inference_mode():
            forward(backbone, rows)
        spent += time.perf_counter() - started
        num_rows += len(rows)
    return num_rows / spent


def publish_tasks(folder: str, backbone: Backbone) -> None:
    """Publish a version of each task."""
    with Registry.open(folder) as registry:
        for seed, task in enumerate(TASKS):
            publish(registry, backbone, task, seed)


def load_branches(folder: str, backbone: Backbone) -> list[Branch]:
    """The tasks as the server holds them."""
    with Registry.open(folder) as registry:
        manifests = [registry.resolve(task) for task in TASKS]
        return [load_task(it, registry.read_blob(it), backbone).branch for it in manifests]


def fresh_texts() -> "itertools.count[int]":
    """Numbers of texts, each used once."""
    return itertools.count()


def text_of(number: int) -> str:
    """The text of a number: as many words for each."""
    digits = [WORDS[int(digit)] for digit in f"{number:0{NUM_WORDS}d}"]
    return " ".join(digits)


def note(
    identifier: str,
    samples: Sequence[float],
    unit: str,
    options: argparse.Namespace,
    *,
    goal: str | None = None,
) -> None:
    """Record a figure and print it."""
    command = f"python benchmarks/serving_overhead.py --rounds {options.rounds}"
    figure = record(
        identifier, samples, unit=unit, goal=goal, command=command, file=options.figures
    )
    held = "" if goal is None else f", goal {goal}: {'met' if figure.met else 'missed'}"
    print(f"{identifier}: {figure.value:g} {unit} ({figure.low:g} to {figure.high:g}{held})")


if __name__ == "__main__":
    main()

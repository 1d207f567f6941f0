"""What glibc's allocator keeps of versions that were evicted, by its settings, and what these cost.

16 versions of one top layer are loaded as by the server, asked in one batch, and dropped, again and
again; each setting in a process of its own, in turns. `trim` is what the server does: glibc as it
comes, asked for what was freed, here after every fifth batch and there every five seconds at most.
The others are set by glibc's variables of the environment.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import torch
from recording import FIGURES, record
from rounds import interleave
from tenants import TEXTS, publish

from nunatak_artifact import PARAMETERS_ROLE
from nunatak_model import (
    DEFAULT_BACKBONE,
    Backbone,
    Branch,
    Row,
    forward,
    load_backbone,
    pack_backbone,
)
from nunatak_registry import Registry
from nunatak_server.residency.giving_way import GivingWay
from nunatak_server.residency.host import HostTier
from nunatak_server.residency.loading import VersionLoading
from nunatak_server.residency.memory_return import find_memory_return

NUM_VERSIONS, NUM_THREADS = 16, 2
NUM_CYCLES, BATCHES_PER_CYCLE = 8, 5
TEXTS_PER_VERSION = 4
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "trim": {},
    "arena": {"MALLOC_ARENA_MAX": "1"},
    "trim_threshold": {"MALLOC_TRIM_THRESHOLD_": "131072"},
    "mmap_threshold": {"MALLOC_MMAP_THRESHOLD_": "131072"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one process; `kept` is a share of the bytes that the dropped versions had."""

    kept: float
    forward_s: float


def main() -> None:
    """Measure and record, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, folder = options.measure
        print(json.dumps(asdict(measure(folder, trims=name == "trim"))))
        return
    measured = {name: list[Measured]() for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        with Registry.open(folder) as registry:
            backbone = load_backbone(DEFAULT_BACKBONE)
            for seed in range(NUM_VERSIONS):
                publish(registry, backbone, f"task-{seed}", seed=seed)
        runs = {name: partial(run, name, folder, measured[name]) for name in SETTINGS}
        interleave(runs, options.rounds, warm_up=0)
    command = f"python benchmarks/allocator.py --rounds {options.rounds}"
    for name, found in measured.items():
        slower = [
            mine.forward_s / base.forward_s
            for mine, base in zip(found, measured["default"], strict=True)
        ]
        for what, samples, unit in (
            ("kept", [it.kept for it in found], "of the bytes of versions that are gone"),
            ("forward", slower, "times a forward with glibc as it comes"),
        ):
            identifier = f"server.allocator.{name}.{what}"
            figure = record(identifier, samples, unit=unit, command=command, file=options.figures)
            print(f"{figure.id}: {figure.value:g} ({figure.low:g} to {figure.high:g}) {unit}")


def run(name: str, folder: str, measured: list[Measured]) -> float:
    """Measure one setting in a process of its own; returns how long that took, in seconds."""
    started = time.perf_counter()
    found = subprocess.run(  # noqa: S603 - our own interpreter and script
        [sys.executable, __file__, "--measure", name, folder],
        env=os.environ | SETTINGS[name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured.append(Measured(**json.loads(found.stdout)))
    return time.perf_counter() - started


def measure(folder: str, *, trims: bool) -> Measured:
    """Load, ask and drop versions, and see what is left of them."""
    torch.set_num_threads(1)
    backbone = pack_backbone(load_backbone(DEFAULT_BACKBONE))
    give_back, process = find_memory_return(), psutil.Process()
    if give_back is None:
        raise SystemExit("expected glibc, which can be asked to return what was freed")
    with Registry.open(folder) as registry, ThreadPoolExecutor(NUM_THREADS) as threads:
        manifests = [registry.resolve(summary.name) for summary in registry.tasks()]
        tier = HostTier(partial(registry.read_blob, role=PARAMETERS_ROLE), budget_bytes=0)
        load = VersionLoading(backbone, tier, give_way=GivingWay(lambda: False))
        # What loads and batches need for themselves is there from then on.
        num_bytes = sum(task.num_bytes for task in threads.map(load, manifests))
        branches = [task.branch for task in threads.map(load, manifests[:1])]
        ask(backbone, branches)
        del branches
        give_back()
        before, forwards = process.memory_info().rss, list[float]()
        for _ in range(NUM_CYCLES):
            branches = [task.branch for task in threads.map(load, manifests)]
            forwards += [ask(backbone, branches) for _ in range(BATCHES_PER_CYCLE)]
            del branches
            if trims:
                give_back()
        kept = (process.memory_info().rss - before) / num_bytes
    return Measured(kept=kept, forward_s=median(forwards))


def ask(backbone: Backbone, branches: Sequence[Branch]) -> float:
    """Run one batch of all branches; returns the seconds of the processor that it took."""
    encodings = backbone.tokenizer.encode(TEXTS[:TEXTS_PER_VERSION], max_length=128)
    rows = [Row(encoding=it, branch=branch) for branch in branches for it in encodings]
    started = time.thread_time()
    with torch.inference_mode():
        forward(backbone, rows)
    return time.thread_time() - started


if __name__ == "__main__":
    main()

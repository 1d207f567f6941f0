"""The race of gateways: five classifiers about every text, one trunk against five full models.

One server runs at a time, on all cores, and the client is a process of its own. A round starts
every server once, in shuffled order. Each server answers requests one after another, and then those
of 16 clients. The memory is measured after that. Every request asks all five tasks about a new
text. All systems serve the same five tasks, and must give the same answers before they are timed.

Two systems hold five full models with packed linear layers: transformers' models in one process
with a scheduler each, and our own engine with five `full` tasks. The ratios are over whichever of
the two is better, in each measure.

Our server also answers five tasks of one way alone: three top layers, low-rank updates from the
middle, and heads. The race itself asks a mix of them.

Our server and onnxruntime race in 8-bit integers, too. Their ratios are over onnxruntime.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from benchmarks.harness.makers import HEAD as HEAD_OF_BERT
from benchmarks.harness.makers import LABELS, TaskPlan, publish_missing
from benchmarks.harness.open_loop import LoadClient, percentile
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import Times, ratios
from benchmarks.harness.shapes import Shape
from benchmarks.savings.clients import client_of
from benchmarks.savings.race import run_round
from benchmarks.savings.systems import (
    PEERS_FOLDER,
    Deployment,
    Desk,
    Started,
    System,
    interpreter_of,
)
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import HeadOnly, Lora, Method, TopK
from nunatak_loadtest.scenarios import Scenario
from nunatak_loadtest.traffic import Requests
from nunatak_model import Backbone, default_head

PREFIX = "race.five"
SHAPES = {"modernbert": Shape.MODERNBERT, "minilm": Shape.MINILM, "tiny": Shape.TINY_MODERNBERT}
COUNT, CLIENTS = 5, 16
TOP, MIDDLE, HEAD = "top-3", "lora-middle", "head"
MIX = (TOP, MIDDLE, HEAD, TOP, HEAD)
"""The ways of the five tasks of the race."""
FULL_MODELS = (System.PACKED_MODELS, System.NUNATAK_FULL)
"""The systems that hold five full models with packed linear layers."""
ONNXRUNTIMES = (System.ONNXRUNTIME, System.ONNXRUNTIME_INT8)
"""Sequential systems of another runtime, in float32 and in 8-bit integers."""
RACERS = (
    *(System.NUNATAK, System.NUNATAK_INT8, *FULL_MODELS),
    *(System.FULL_MODELS, *ONNXRUNTIMES),
)
TEXTS = Scenario(name="five", words=32, sigma=0.25)
EXPORTER = PEERS_FOLDER / "onnx_export.py"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The number of requests of one server in one round."""

    sequential: int
    concurrent: int


EFFORTS = {
    Shape.MODERNBERT: Effort(sequential=12, concurrent=48),
    Shape.MINILM: Effort(sequential=100, concurrent=320),
    Shape.TINY_MODERNBERT: Effort(sequential=5, concurrent=20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The answers of a server under one load."""

    per_s: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One server in one round."""

    sequential: Timed
    concurrent: Timed
    alone: Mapping[str, Timed]
    """Requests one after another for five tasks of one way; our server only."""
    pss_mib: float
    rss_mib: float


Measure = Callable[[Turn], float]


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "sequential_per_s": (lambda it: it.sequential.per_s, "requests/s, one after another"),
    "sequential_p50_ms": (lambda it: it.sequential.p50_ms, "ms, one after another"),
    "sequential_p95_ms": (lambda it: it.sequential.p95_ms, "ms, one after another"),
    "c16_per_s": (lambda it: it.concurrent.per_s, f"requests/s of {CLIENTS} clients"),
    "c16_p50_ms": (lambda it: it.concurrent.p50_ms, f"ms, {CLIENTS} clients"),
    "c16_p95_ms": (lambda it: it.concurrent.p95_ms, f"ms, {CLIENTS} clients"),
    "pss_mib": (lambda it: it.pss_mib, "MiB PSS of all its processes"),
    "rss_mib": (lambda it: it.rss_mib, "MiB RSS of all its processes"),
}
GOALS = (
    ("sequential", "sequential_per_s", "of the requests/s", ">= 3.0", max),
    ("c16.p95", "c16_p95_ms", f"of the p95 of {CLIENTS} clients", "<= 0.35", min),
    ("memory", "pss_mib", "of the memory (PSS)", "<= 0.35", min),
)
"""Figure, measure, unit, goal, and which value of the rivals is the better one."""
INT8_GOALS = (
    ("sequential", "sequential_per_s", "of the requests/s", (">= 2.5", ">= 1.3")),
    ("c16", "c16_per_s", f"of the requests/s of {CLIENTS} clients", (">= 4", ">= 2.5")),
    ("memory", "pss_mib", "of the memory (PSS)", ("<= 0.75", None)),
)
"""Figure, measure, unit, and the goals over onnxruntime in float32 and in 8-bit integers."""


def main() -> None:
    parser = figures_parser(__doc__, rounds=2, parts=SHAPES)
    parser.set_defaults(parts=["modernbert", "minilm"])
    options, sheet = open_sheet(parser)
    torch.set_num_threads(1)
    desk = Desk()
    for name in options.parts:
        shape = SHAPES[name]
        deployments = deploy(desk, shape)
        tasks = deployments[System.NUNATAK].tasks
        rounds = [
            run_round(
                deployments,
                partial(take_turn, tasks=tasks, effort=EFFORTS[shape], seed=seed),
                seed=seed,
            )
            for seed in range(sheet.rounds)
        ]
        record(name, rounds, sheet)


def ways(backbone: Backbone) -> dict[str, Method]:
    middle = backbone.config.num_layers // 2
    return {
        TOP: TopK(num_layers=3),
        MIDDLE: Lora(rank=16, alpha=32.0, targets=tuple(LinearMap), first_layer=middle),
        HEAD: HeadOnly(),
    }


def deploy(desk: Desk, shape: Shape) -> dict[System, Deployment]:
    """Make the tasks of all systems where they are missing."""
    backbone = desk.backbone(shape)
    usual = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=len(LABELS))
    # MiniLM is a sentence encoder, whose usual head no class of transformers has.
    head = HEAD_OF_BERT if shape is Shape.MINILM else usual
    methods = ways(backbone)

    def plan(way: str, number: int) -> TaskPlan:
        name = f"{way}-{number}"
        seed = 10 * list(methods).index(way) + number
        return TaskPlan(name=name, method=methods[way], seed=seed, head=head)

    mixed = [plan(way, MIX[:number].count(way)) for number, way in enumerate(MIX)]
    all_plans = [plan(way, number) for way in methods for number in range(COUNT)]
    # A batch must hold the trunk and the branch of the longest text.
    most = max(4096, 2 * backbone.config.max_tokens)
    options = ("--max-batch-tokens", str(most))
    shared = desk.deployment(shape, "five", all_plans, full_models=mixed, options=options)
    ours = replace(shared, tasks=tuple(it.name for it in mixed))
    publish_missing(ours.folder / "int8", mixed, backbone, integers=True)
    folders = [str(it) for it in ours.folders(System.ONNXRUNTIME)]
    python = str(interpreter_of(System.ONNXRUNTIME))
    subprocess.run([python, str(EXPORTER), *folders], check=True)  # noqa: S603 - our own script
    # One at a time, because all full models at once would not fit the memory.
    merged = (replace(it, is_merged=True) for it in mixed)
    parts = [desk.deployment(shape, "five-full", [it], options=options) for it in merged]
    return dict.fromkeys(RACERS, ours) | {
        System.NUNATAK_INT8: replace(ours, registry=ours.folder / "int8"),
        System.NUNATAK_FULL: parts[0].of(ours.tasks),
    }


async def take_turn(started: Started, tasks: Sequence[str], effort: Effort, *, seed: int) -> Turn:
    # No text comes twice to a server, because a cache would answer it.
    texts = Requests(TEXTS, tasks, seed=seed)
    async with client_of(started) as client:

        async def ask(asked: Sequence[str], requests: int, *, clients: int) -> Timed:
            drawn = [texts.draw_text() for _ in range(requests)]
            return await timed(client, asked, drawn, clients=clients)

        await ask(tasks, CLIENTS, clients=CLIENTS)
        sequential = await ask(tasks, effort.sequential, clients=1)
        concurrent = await ask(tasks, effort.concurrent, clients=CLIENTS)
        # Measured before tasks of other sets are loaded.
        pss, rss = started.memory()
        alone = dict[str, Timed]()
        for way in (TOP, MIDDLE, HEAD) if started.system is System.NUNATAK else ():
            five = [f"{way}-{number}" for number in range(COUNT)]
            await ask(five, 2, clients=1)
            alone[way] = await ask(five, effort.sequential, clients=1)
    return Turn(
        sequential=sequential,
        concurrent=concurrent,
        alone=alone,
        pss_mib=pss / MIB,
        rss_mib=rss / MIB,
    )


async def timed(
    client: LoadClient, tasks: Sequence[str], texts: Sequence[str], *, clients: int
) -> Timed:
    """Send each text once; every client waits for an answer before the next request."""
    waiting, times_ms = iter(texts), list[float]()

    async def ask_in_turn() -> None:
        for text in waiting:
            began = time.perf_counter()
            await client.ask(tasks, text)
            times_ms.append(1e3 * (time.perf_counter() - began))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(ask_in_turn())
    seconds = time.perf_counter() - began
    return Timed(
        per_s=len(texts) / seconds, p50_ms=percentile(times_ms, 50), p95_ms=percentile(times_ms, 95)
    )


def record(name: str, rounds: Sequence[Mapping[System, Turn]], sheet: Sheet) -> None:
    """Record the ratios over the better of the systems of full models, then all measures."""
    found: dict[str, Times] = {
        it: {system: [measure(turns[system]) for turns in rounds] for system in rounds[0]}
        for it, (measure, _) in MEASURES.items()
    }
    for part, measured, unit, goal, better in GOALS:
        times = found[measured]
        rival = better(FULL_MODELS, key=lambda it: median(times[it]))
        samples, of = ratios(times, System.NUNATAK, rival), f"of five packed full models ({rival})"
        sheet.record(f"{PREFIX}.{part}.{name}", samples, unit=f"{unit} {of}", goal=goal)
    for place, rival in enumerate(ONNXRUNTIMES):
        for part, measured, unit, goals in INT8_GOALS:
            samples = ratios(found[measured], System.NUNATAK_INT8, rival)
            identifier = f"{PREFIX}.int8.{part}.{name}.vs.{rival}"
            told = f"{unit} of five models in {rival}"
            sheet.record(identifier, samples, unit=told, goal=goals[place])
    for system in rounds[0]:
        for measured, (_, unit) in MEASURES.items():
            identifier = f"{PREFIX}.{name}.{system}.{measured}"
            sheet.record(identifier, found[measured][system], unit=unit)
    for way in rounds[0][System.NUNATAK].alone:
        sheet.record(
            f"{PREFIX}.{name}.{System.NUNATAK}.sequential_per_s.{way}",
            [turns[System.NUNATAK].alone[way].per_s for turns in rounds],
            unit=f"requests/s, five tasks of {way}",
        )


if __name__ == "__main__":
    main()

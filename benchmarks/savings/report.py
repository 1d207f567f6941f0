"""What one shared backbone saves in deployment: memory and throughput of whole servers.

Arguments choose parts. Each part appends its figures; `make figures` writes the page of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import linear_regression, median

import torch

from benchmarks.harness.makers import BOTTLENECK, HEAD, LORA, TOP_LAYER, plans
from benchmarks.harness.recording import Sheet, figures_parser
from benchmarks.harness.shapes import Shape
from benchmarks.savings.footprint import WITHOUT_CACHE, pss_bytes
from benchmarks.savings.race import Effort, highest_rate, run_round
from benchmarks.savings.systems import WORK, Deployment, Desk, System, cores_of, keep_off
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_loadtest.scenarios import scenario_named
from nunatak_model import BranchSpec, parameter_shapes

MIXED = (LORA, TOP_LAYER, BOTTLENECK)
FLOAT32_BYTES, TASKS_SHOWN = 4, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The sizes of all measurements."""

    counts: tuple[int, ...]
    """Numbers of tasks of our server's memory lines."""
    copies: Mapping[Shape, tuple[int, ...]]
    """Numbers of full models; the lines are extrapolated beyond the last number."""
    processes: tuple[int, ...]
    settling_s: float
    """Seconds between the last answer and the measurement of the memory."""
    race_shape: Shape
    race_tasks: int
    own_layers: int
    racers: tuple[System, ...]
    effort: Effort
    goals: Mapping[str, str]
    """The goal of each scenario: our rate over that of the best baseline."""


EXTENTS = {
    "full": Extent(
        counts=(1, 25, 50, 75, 100),
        copies={Shape.MINILM: (1, 8, 16, 32), Shape.BERT_BASE: (1, 4, 8)},
        processes=(1, 2, 4),
        settling_s=6.0,
        race_shape=Shape.MINILM,
        race_tasks=16,
        own_layers=2,
        racers=(
            *(System.NUNATAK, System.NUNATAK_BFLOAT16),
            *(System.FULL_MODELS, System.PEFT_SWITCH, System.PEFT_MIXED),
        ),
        effort=Effort(look_s=5.0, requests=200, longest_s=20.0),
        goals={"single": ">= 1.3", "fanout8": ">= 2"},
    ),
    "smoke": Extent(
        counts=(1, 3),
        copies={Shape.TINY: (1, 2)},
        processes=(),
        settling_s=0.0,
        race_shape=Shape.TINY,
        race_tasks=2,
        own_layers=1,
        racers=(System.NUNATAK, System.NUNATAK_BFLOAT16, System.FULL_MODELS),
        effort=Effort(look_s=0.5, requests=5, longest_s=1.0),
        goals={"single": ">= 1.3"},
    ),
}
"""`smoke` runs for a few seconds and only tests the code; its figures mean nothing."""


def main() -> None:
    parser = figures_parser(__doc__, rounds=1, parts=PARTS)
    parser.add_argument("--extent", choices=EXTENTS, default="full")
    parser.add_argument("--cores", default="0", help="of the systems, such as 0,1; `any`: no pin")
    parser.add_argument("--work", type=Path, default=WORK)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cores = cores_of(options.cores)
    keep_off(cores)
    for name in options.parts:
        command = f"python -m benchmarks.savings.report {name} --rounds {options.rounds}"
        sheet = Sheet(command=command, file=options.figures, rounds=options.rounds)
        PARTS[name](Desk(work=options.work, cores=cores), EXTENTS[options.extent], sheet)


def memory(desk: Desk, extent: Extent, sheet: Sheet) -> None:
    """Memory over the number of tasks: ours, full models in one process, a process per task."""
    for shape, copies in extent.copies.items():
        wanted = plans(max(extent.counts), MIXED)
        ours = desk.deployment(shape, "mixed", wanted, options=WITHOUT_CACHE)
        line = partial(_record_line, sheet, shape, settling_s=extent.settling_s)
        slope = line(System.NUNATAK, ours, extent.counts)
        shapes = (parameter_shapes(BranchSpec(method=it, head=HEAD), desk.backbone(shape).config)
                  for it in MIXED)  # fmt: skip
        sizes = [sum(torch.Size(it).numel() for it in them.values()) for them in shapes]
        ratio = slope / (FLOAT32_BYTES * sum(sizes) / len(sizes))
        unit = "PSS per further task over its parameter bytes"
        sheet.record(f"report.slope.{shape}", [ratio], unit=unit, goal="<= 1.1")
        adapters = plans(max(copies), (LORA,))
        apart = desk.deployment(shape, "lora", [], full_models=adapters, adapters=adapters)
        apart = apart.of(tuple(plan.name for plan in adapters))
        line(System.FULL_MODELS, apart, copies)
        if extent.processes:
            for system in (System.PROCESSES_PRIVATE, System.PROCESSES_MAPPED):
                line(system, apart, extent.processes)


def races(desk: Desk, extent: Extent, sheet: Sheet) -> None:
    """Race all systems, in turns, for the throughput that keeps the p99 objective."""
    shape = extent.race_shape
    first = desk.backbone(shape).config.num_layers - extent.own_layers
    method = Lora(rank=8, first_layer=first, alpha=16.0, targets=QUERY_AND_VALUE)
    wanted = plans(extent.race_tasks, (method,), prefix="race")
    deployment = desk.deployment(shape, "race", wanted, full_models=wanted, adapters=wanted)
    for workload, goal in extent.goals.items():
        scenario = scenario_named(workload)
        rounds = [
            run_round(
                dict.fromkeys(extent.racers, deployment),
                partial(highest_rate, scenario=scenario, effort=extent.effort, seed=seed),
                seed=seed,
            )
            for seed in range(sheet.rounds)
        ]
        name = f"report.throughput.{workload}"
        found = {it: [of_round[it].goodput_per_s for of_round in rounds] for it in extent.racers}
        for system, values in found.items():
            unit = f"requests/s with 99 of 100 within {scenario.p99_ms:g} ms"
            sheet.record(f"{name}.{system}_per_s", values, unit=unit)
        ours, rounded = found[System.NUNATAK], found[System.NUNATAK_BFLOAT16]
        best = max((it for it in extent.racers if not it.is_ours), key=lambda it: median(found[it]))
        for identifier, above, below, unit, wished in (
            (f"{name}.bfloat16", rounded, ours, "times that in float32", None),
            (name, ours, found[best], f"times {best}, the best baseline", goal),
        ):
            ratios = [up / down for up, down in zip(above, below, strict=True) if down > 0]
            if ratios:
                sheet.record(identifier, ratios, unit=unit, goal=wished)


def _record_line(
    sheet: Sheet,
    shape: Shape,
    system: System,
    deployment: Deployment,
    counts: tuple[int, ...],
    *,
    settling_s: float,
) -> float:
    """Record the memory of a system, and return its bytes per further task."""
    found = pss_bytes(system, deployment, counts, settling_s=settling_s)
    line = linear_regression([float(it) for it in counts], [float(it) for it in found])
    name, slope = f"report.memory.{shape}.{system}", line.slope
    sheet.record(f"{name}_mb_per_task", [slope / 1e6], unit="MB of PSS per further task")
    whole = line.intercept + TASKS_SHOWN * slope
    unit = f"GB of PSS with {TASKS_SHOWN} tasks, on the line through 1 to {max(counts)} tasks"
    sheet.record(f"{name}_gb_of_{TASKS_SHOWN}", [whole / 1e9], unit=unit)
    return slope


PARTS: Mapping[str, Callable[[Desk, Extent, Sheet], None]] = {"memory": memory, "race": races}

if __name__ == "__main__":
    main()

"""What one shared backbone saves in deployment: memory and throughput of whole servers.

Arguments choose parts. Each part appends its figures; `make figures` writes the page of them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch

from benchmarks.harness.makers import BOTTLENECK, HEAD, LORA, TOP_LAYER, TaskPlan, plans
from benchmarks.harness.pinning import cores_of, keep_off
from benchmarks.harness.recording import Sheet, figures_parser
from benchmarks.harness.shapes import Shape
from benchmarks.savings.desk import FULL, SMOKE, WORK, Desk
from benchmarks.savings.footprint import WITHOUT_CACHE, footprint
from benchmarks.savings.race import run_round
from benchmarks.savings.systems import Deployment, System
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_loadtest.scenarios import scenario_named
from nunatak_model import BranchSpec, parameter_shapes

EXTENTS = {"full": FULL, "smoke": SMOKE}
MIXED = (LORA, TOP_LAYER, BOTTLENECK)
FLOAT32_BYTES, TASKS_SHOWN = 4, 100


def main() -> None:
    parser = figures_parser(__doc__, rounds=1)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
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
        extent = EXTENTS[options.extent]
        PARTS[name](Desk(work=options.work, sheet=sheet, extent=extent, cores=cores))


def memory(desk: Desk) -> None:
    """Memory over the number of tasks: ours, full models in one process, a process per task."""
    for shape, counts in desk.extent.ours.items():
        wanted = plans(max(counts), MIXED)
        ours = desk.deployment(shape, "mixed", wanted, options=WITHOUT_CACHE)
        slope = _record_line(desk, shape, System.NUNATAK, ours, counts)
        shapes = (parameter_shapes(BranchSpec(method=it, head=HEAD), desk.backbone(shape).config)
                  for it in MIXED)  # fmt: skip
        sizes = [sum(torch.Size(it).numel() for it in them.values()) for them in shapes]
        ratio = slope / (FLOAT32_BYTES * sum(sizes) / len(sizes))
        unit = "PSS per further task over its parameter bytes"
        desk.sheet.record(f"report.slope.{shape}", [ratio], unit=unit, goal="<= 1.1")
        copies = desk.extent.copies[shape]
        adapters = plans(max(copies), (LORA,))
        apart = desk.deployment(shape, "lora", [], full_models=adapters, adapters=adapters)
        few = tuple(it for it in desk.extent.processes if it <= max(copies))
        systems = {System.PROCESSES_PRIVATE: few, System.PROCESSES_MAPPED: few} if few else {}
        for system, numbers in (systems | {System.FULL_MODELS: copies}).items():
            _record_line(desk, shape, system, _with_tasks(apart, adapters), numbers)


def races(desk: Desk) -> None:
    """Race all systems, in turns, for the throughput that keeps the p99 objective."""
    extent, count = desk.extent, desk.extent.race_tasks
    shape = Shape.MINILM if Shape.MINILM in extent.ours else Shape.TINY
    first = desk.backbone(shape).config.num_layers - (2 if count > 2 else 1)
    method = Lora(rank=8, first_layer=first, alpha=16.0, targets=QUERY_AND_VALUE)
    wanted = plans(count, (method,), prefix="race")
    deployment = desk.deployment(shape, "race", wanted, full_models=wanted, adapters=wanted)
    for workload, goal in extent.race_goals.items():
        scenario = scenario_named(workload)
        rounds = [
            run_round(extent.racers, deployment, scenario, extent.race_effort, seed=seed)
            for seed in range(desk.sheet.rounds)
        ]
        name = f"report.throughput.{workload}"
        found = {it: [of_round[it] for of_round in rounds] for it in extent.racers}
        for system, values in found.items():
            unit = f"requests/s with 99 of 100 within {scenario.p99_ms:g} ms"
            desk.sheet.record(f"{name}.{system}_per_s", values, unit=unit)
        ours, rounded = found[System.NUNATAK], found[System.NUNATAK_BFLOAT16]
        best = max((it for it in extent.racers if not it.is_ours), key=lambda it: median(found[it]))
        for identifier, above, below, unit, wished in (
            (f"{name}.bfloat16", rounded, ours, "times that in float32", None),
            (name, ours, found[best], f"times {best}, the best baseline", goal),
        ):
            ratios = [up / down for up, down in zip(above, below, strict=True) if down > 0]
            if ratios:
                desk.sheet.record(identifier, ratios, unit=unit, goal=wished)


def _record_line(
    desk: Desk, shape: Shape, system: System, deployment: Deployment, counts: tuple[int, ...]
) -> float:
    """Record the memory of a system, and return its bytes per further task."""
    line = footprint(system, deployment, counts, settling_s=desk.extent.settling_s)
    name, slope = f"report.memory.{shape}.{system}", line.slope_bytes
    desk.sheet.record(f"{name}_mb_per_task", [slope / 1e6], unit="MB of PSS per further task")
    whole = line.base_bytes + TASKS_SHOWN * slope
    unit = f"GB of PSS with {TASKS_SHOWN} tasks, on the line through 1 to {max(counts)} tasks"
    desk.sheet.record(f"{name}_gb_of_{TASKS_SHOWN}", [whole / 1e9], unit=unit)
    return slope


def _with_tasks(deployment: Deployment, wanted: list[TaskPlan]) -> Deployment:
    return deployment.of(tuple(plan.name for plan in wanted))


PARTS: Mapping[str, Callable[[Desk], None]] = {"memory": memory, "race": races}

if __name__ == "__main__":
    main()

"""The parts of the savings report: each measures, keeps its results and appends its figures."""

from statistics import median

from benchmarks.harness.makers import BOTTLENECK, HEAD, LORA, SMALL_HEAD, TOP_LAYER, TaskPlan, plans
from benchmarks.harness.shapes import Shape
from benchmarks.savings.desk import Desk, Extent
from benchmarks.savings.fanout import bound, speed_ups
from benchmarks.savings.footprint import (
    WITHOUT_CACHE,
    Footprint,
    footprint,
    memory_points,
    runtime_bytes,
)
from benchmarks.savings.many import measure_cold, measure_many, start_seconds
from benchmarks.savings.race import Turn, run_round
from benchmarks.savings.results import (
    FanOutLine,
    FanOutPoint,
    ManyTasks,
    MemoryLine,
    Race,
    Racer,
    SavedCell,
)
from benchmarks.savings.systems import Deployment, System
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_loadtest import load_scenario
from nunatak_loadtest.report import QUANTILES
from nunatak_loadtest.samples import percentile
from nunatak_model import (
    Backbone,
    BranchSpec,
    dedicated_parameters,
    model_size,
    parameter_shapes,
    parameters_saved,
)

MIXED = (LORA, TOP_LAYER, BOTTLENECK)
FLOAT32_BYTES = 4


def memory(desk: Desk) -> None:
    """Memory over the number of tasks: ours, full models in one process, a process per task."""
    for shape, counts in desk.extent.ours.items():
        if desk.is_done(f"memory-{shape}-{System.FULL_MODELS}"):
            continue
        backbone = desk.backbone(shape)
        wanted = plans(max(counts), MIXED)
        deployment = desk.deployment(shape, "mixed", wanted, options=WITHOUT_CACHE)
        line = footprint(System.NUNATAK, deployment, counts, settling_s=desk.extent.settling_s)
        kept = _keep_line(desk, shape, backbone, System.NUNATAK, line, MIXED)
        ratio = kept.slope_bytes / kept.parameter_bytes_per_task
        unit = "PSS per further task over its parameter bytes"
        desk.sheet.record(f"report.slope.{shape}", [ratio], unit=unit, goal="<= 1.1")
        copies = desk.extent.copies[shape]
        adapters = plans(max(copies), (LORA,))
        apart = desk.deployment(shape, "lora", [], full_models=adapters, adapters=adapters)
        apart = _with_tasks(apart, adapters)
        systems = dict[System, tuple[int, ...]]()
        if desk.extent.processes:
            few = tuple(it for it in desk.extent.processes if it <= max(copies))
            systems |= {System.PROCESSES_PRIVATE: few, System.PROCESSES_MAPPED: few}
        # Measured last: this result marks the shape as done.
        systems[System.FULL_MODELS] = copies
        for system, numbers in systems.items():
            line = footprint(system, apart, numbers, settling_s=desk.extent.settling_s)
            _keep_line(desk, shape, backbone, system, line, (LORA,))


def saved(desk: Desk) -> None:
    """Measure the paper's table in deployment: the growth of our server against full models.

    The formula counts parameters. The full models therefore have all their parameters in memory, as
    after some traffic. A second figure compares with models whose files are mapped, and whose
    embeddings are hardly read yet. Our server holds the backbone layers that its tasks read.
    """
    shape, extent = desk.extent.saved_shape, desk.extent
    backbone = desk.backbone(shape)
    layers, most = backbone.config.num_layers, max(extent.saved_tasks)
    tiny = plans(1, (LORA,))
    nothing = desk.deployment(Shape.TINY, "runtime", tiny, options=WITHOUT_CACHE, full_models=tiny)
    ours_alone = runtime_bytes(System.NUNATAK, nothing, settling_s=extent.settling_s)
    copies = plans(most, (TopK(num_layers=1),), prefix="copy")
    apart = _with_tasks(desk.deployment(shape, "copies", [], full_models=copies), copies)
    copied, mapped = (
        _grown(system, apart, nothing, extent)
        for system in (System.FULL_MODELS_PRIVATE, System.FULL_MODELS)
    )
    for frozen in extent.saved_frozen:
        if desk.is_done(f"saved-{shape}.t{most}.n{frozen}"):
            continue
        wanted = plans(most, (TopK(num_layers=layers - frozen),), prefix=f"n{frozen}")
        options = (*WITHOUT_CACHE, "--backbone-layers", str(frozen))
        deployment = desk.deployment(shape, f"n{frozen}", wanted, options=options)
        ours = memory_points(
            System.NUNATAK, deployment, extent.saved_tasks, settling_s=extent.settling_s
        )
        for mine, models, lazy in zip(ours, copied, mapped, strict=True):
            server = mine.pss_bytes - ours_alone
            cell = SavedCell(
                origin=desk.origin(),
                backbone=shape,
                num_tasks=mine.tasks,
                num_frozen=frozen,
                formula_share=parameters_saved(
                    model_size(backbone.config, HEAD), num_tasks=mine.tasks, num_frozen=frozen
                ),
                measured_share=1 - server / models,
                server_bytes=server,
                full_models_bytes=models,
            )
            name = f"{shape}.t{mine.tasks}.n{frozen}"
            desk.keep(f"saved-{name}", cell)
            desk.sheet.record(
                f"report.saved.{name}",
                [cell.measured_share],
                unit=f"of the memory of full models; formula {cell.formula_share:.3f}",
                goal=f">= {cell.formula_share - 0.02:.3f}",
            )
            unit = "of the memory of full models, mapped, of which each has answered one text"
            desk.sheet.record(f"report.saved_mapped.{name}", [1 - server / lazy], unit=unit)


def _grown(
    system: System, deployment: Deployment, nothing: Deployment, extent: Extent
) -> list[int]:
    """Return the bytes of a baseline at each number of tasks, without its runtime."""
    settling_s = extent.settling_s
    alone = runtime_bytes(system, nothing, settling_s=settling_s)
    grown = memory_points(system, deployment, extent.saved_tasks, settling_s=settling_s)
    return [point.pss_bytes - alone for point in grown]


def races(desk: Desk) -> None:
    """Race all systems, in turns, for the throughput that keeps the p99 objective."""
    count = desk.extent.race_tasks
    own = 2 if count > 2 else 1
    for workload, common in desk.extent.common_rates_per_s.items():
        if desk.is_done(f"race-{workload}"):
            continue
        backbone = desk.backbone(_race_shape(desk))
        first = backbone.config.num_layers - own
        wanted = plans(
            count,
            (Lora(rank=8, first_layer=first, alpha=16.0, targets=QUERY_AND_VALUE),),
            prefix="race",
        )
        deployment = desk.deployment(
            _race_shape(desk), "race", wanted, full_models=wanted, adapters=wanted
        )
        scenario = load_scenario(workload).model_copy(update={"num_tasks": count})
        turns = list[dict[System, Turn]]()
        for number in range(desk.extent.rounds):
            print(f"{workload}, round {number + 1} of {desk.extent.rounds}", flush=True)
            turns.append(
                dict(
                    run_round(
                        desk.extent.racers,
                        deployment,
                        scenario,
                        desk.extent.race_effort,
                        common_rate_per_s=common,
                        seed=number,
                    )
                )
            )
        race = Race(
            origin=desk.origin(),
            workload=workload,
            title=scenario.title,
            objective_p99_ms=scenario.objectives.p99_ms,
            dtype="float32 unless a name says otherwise",
            common_rate_per_s=common,
            racers=tuple(_racer(system, turns) for system in desk.extent.racers),
        )
        desk.keep(f"race-{workload}", race)
        _record_race(desk, workload, turns)


def many(desk: Desk) -> None:
    """Compare the throughput of very many tasks with that of a few, in one server."""
    counts = desk.extent.many
    shape = _race_shape(desk)
    wanted = plans(max(counts), (LORA,), prefix="many", head=SMALL_HEAD)
    deployment = desk.deployment(shape, "many", wanted)
    seconds, burst = desk.extent.many_seconds, desk.extent.many_burst
    points, rates = measure_many(
        deployment, counts, rounds=desk.extent.rounds, seconds=seconds, burst=burst
    )
    title = "LoRA rank 8, all in memory"
    kept = ManyTasks(origin=desk.origin(), backbone=shape, title=title, points=tuple(points))
    desk.keep("many", kept)
    for popularity, rounds in rates.items():
        suffix = "" if popularity == "uniform" else f".{popularity}"
        for place, count in enumerate(counts[1:], start=1):
            ratios = [it[place] / it[0] for it in rounds]
            unit = f"of the throughput with {counts[0]} tasks"
            name = f"report.many.throughput_ratio_{count}{suffix}"
            desk.sheet.record(name, ratios, unit=unit, goal=">= 0.9")
    largest = points[len(counts) - 1]
    desk.sheet.record("report.many.pss_gib", [largest.pss_bytes / 2**30], unit="GiB PSS")
    desk.sheet.record("report.many.start_s", [largest.start_s], unit="s until ready")
    few = plans(counts[0], (LORA,), prefix="many", head=SMALL_HEAD)
    start_s = start_seconds(desk.deployment(shape, "few", few))
    unit = f"s until ready, with {counts[0]} tasks in the registry"
    desk.sheet.record("report.many.start_few_s", [start_s], unit=unit)
    room = max(1, max(counts) // 5)
    cold = measure_cold(deployment, room=room, seconds=seconds, burst=burst)
    title = f"LoRA rank 8, room for {room:,}"
    kept = ManyTasks(origin=desk.origin(), backbone=shape, title=title, points=tuple(cold))
    desk.keep("many-room", kept)
    for point in cold:
        name = f"report.many.cold.{point.popularity}"
        unit = f"of the requests loaded their task, with room for {room} of {point.tasks}"
        desk.sheet.record(f"{name}.share", [point.cold_share], unit=unit)
        desk.sheet.record(f"{name}.per_s", [point.throughput_per_s], unit="requests/s")
        desk.sheet.record(f"{name}.p99_ms", [point.p99_ms], unit="ms at half of that")


def fan_out(desk: Desk) -> None:
    """Measure the speed-up of one request for T tasks, over HTTP, next to its bound."""
    shape, counts, own = _race_shape(desk), desk.extent.fan_out, 1
    layers = desk.backbone(shape).config.num_layers
    deployment = desk.deployment(
        shape, "fanout", plans(max(counts), (TopK(num_layers=own),), prefix="fan")
    )
    rounds = speed_ups(deployment, counts, rounds=20 * desk.extent.rounds)
    points = list[FanOutPoint]()
    for place, count in enumerate(counts):
        ratios = [it[place] for it in rounds]
        limit = bound(count, layers, own)
        points.append(FanOutPoint(tasks=count, speed_up=median(ratios), bound=limit))
        unit = f"times faster than {count} requests; bound by layers {limit:.2f}"
        desk.sheet.record(f"report.fanout.t{count}", ratios, unit=unit)
    title = f"One text, T tasks with {own} own layer of {layers}, over HTTP"
    desk.keep("fanout", FanOutLine(origin=desk.origin(), title=title, points=tuple(points)))


def _keep_line(
    desk: Desk,
    shape: Shape,
    backbone: Backbone,
    system: System,
    line: Footprint,
    methods: tuple[Method, ...],
) -> MemoryLine:
    sizes = [_parameter_bytes(backbone, method) for method in methods]
    kept = MemoryLine(
        origin=desk.origin(),
        backbone=shape,
        system=system,
        title=system.heading,
        is_ours=system is System.NUNATAK,
        points=line.points,
        base_bytes=line.base_bytes,
        slope_bytes=line.slope_bytes,
        parameter_bytes_per_task=sum(sizes) / len(sizes),
        full_model_bytes=FLOAT32_BYTES * dedicated_parameters(backbone.config, HEAD),
    )
    desk.keep(f"memory-{shape}-{system}", kept)
    name = f"report.memory.{shape}.{system}_mb_per_task"
    desk.sheet.record(name, [line.slope_bytes / 1e6], unit="MB of PSS per further task")
    return kept


def _parameter_bytes(backbone: Backbone, method: Method) -> int:
    shapes = parameter_shapes(BranchSpec(method=method, head=HEAD), backbone.config)
    return FLOAT32_BYTES * sum(_product(shape) for shape in shapes.values())


def _product(shape: tuple[int, ...]) -> int:
    number = 1
    for extent in shape:
        number *= extent
    return number


def _with_tasks(deployment: Deployment, wanted: list[TaskPlan]) -> Deployment:
    return deployment.of(tuple(plan.name for plan in wanted))


def _race_shape(desk: Desk) -> Shape:
    return Shape.MINILM if Shape.MINILM in desk.extent.ours else Shape.TINY


def _racer(system: System, turns: list[dict[System, Turn]]) -> Racer:
    common = sorted(it for turn in turns for it in turn[system].common_ms)
    return Racer(
        system=system,
        title=system.heading,
        is_ours=system.is_ours,
        rounds=tuple(turn[system].best for turn in turns),
        rates=tuple(rate for turn in turns for rate in turn[system].rates),
        quantiles_ms=tuple(percentile(common, it) for it in QUANTILES) if common else (),
    )


def _record_race(desk: Desk, workload: str, turns: list[dict[System, Turn]]) -> None:
    goals = {"fanout8": ">= 2", "single": ">= 1.3"}
    rivals = [system for system in desk.extent.racers if not system.is_ours]
    goodputs = {
        system: [turn[system].best.goodput_per_s for turn in turns] for system in desk.extent.racers
    }
    for system, values in goodputs.items():
        unit = "requests/s with p99 within the objective"
        desk.sheet.record(f"report.throughput.{workload}.{system}_per_s", values, unit=unit)
    rounded, plain = goodputs[System.NUNATAK_BFLOAT16], goodputs[System.NUNATAK]
    gains = [fast / slow for fast, slow in zip(rounded, plain, strict=True) if slow > 0]
    if gains:
        name, unit = f"report.throughput.{workload}.bfloat16", "times that in float32"
        desk.sheet.record(name, gains, unit=unit)
    best = max(rivals, key=lambda system: median(goodputs[system]))
    ratios = [
        ours / theirs
        for ours, theirs in zip(goodputs[System.NUNATAK], goodputs[best], strict=True)
        if theirs > 0
    ]
    if ratios:
        name, unit = f"report.throughput.{workload}", f"times {best.heading}, the best baseline"
        desk.sheet.record(name, ratios, unit=unit, goal=goals[workload])

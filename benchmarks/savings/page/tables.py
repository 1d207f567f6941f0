"""The tables of the report, as plain rows for both HTML and Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.savings.page.facts import (
    FEWEST_REQUESTS,
    TOO_FEW,
    Facts,
    bytes_at,
    cost_per_million,
    crossover,
    gigabytes,
    is_measured,
    kept_rounds,
    per_second,
    seconds_asked,
    tasks_that_fit,
)
from benchmarks.savings.results import (
    FanOutLine,
    ManyTasks,
    MemoryLine,
    Origin,
    Race,
    Racer,
    SavedCell,
)
from nunatak_loadtest.report import KeptRun

NOT_RECORDED = "not recorded"
COLUMNS_OF_ORIGIN = ("command", "commit", "date", "hardware", "versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The file name of a plot, and the content of the plot in words."""

    name: str
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table with its plots and the text above."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: tuple[Plot, ...] = ()


def all_sheets(facts: Facts) -> list[Sheet]:
    """Return every table that has results, in the order of the page."""
    return [
        *(memory_sheet(facts.lines_of(it), it) for it in facts.backbones()),
        *([saved_sheet(facts.saved)] if facts.saved else []),
        *(race_sheet(race, facts.price_per_hour) for race in facts.races),
        *(fan_out_sheet(line) for line in facts.fan_out),
        *(many_sheet(many) for many in facts.many),
        *(run_sheet(run) for run in facts.runs),
        origin_sheet(facts),
    ]


def memory_sheet(lines: Sequence[MemoryLine], backbone: str) -> Sheet:
    """Return the memory of every system, and the number of tasks from which ours needs less."""
    ours = lines[0]
    most = max(line.points[-1].tasks for line in lines)
    rows = list[tuple[str, ...]]()
    for line in lines:
        measured = line.points[-1].tasks
        mark = "" if measured >= most else f" (measured to {measured})"
        cross = None if line.is_ours else crossover(ours, line)
        last = line.points[-1]
        rows.append(
            (
                line.title,
                gigabytes(bytes_at(line, most)) + mark,
                gigabytes(line.slope_bytes),
                f"{line.slope_bytes / line.parameter_bytes_per_task:.2f}",
                f"{tasks_that_fit(line):,}",
                "-" if cross is None else f"{cross:.1f} tasks",
                f"{gigabytes(last.rss_bytes)} / {gigabytes(last.uss_bytes)}",
            )
        )
    return Sheet(
        title=f"Memory, {backbone}",
        note="PSS of all processes of a system, measured from outside. Shared pages count once. "
        "Values beyond the measured numbers of tasks follow the fitted line. Parameter bytes "
        "are the parameters of a task alone; the cache of texts, of a fixed size, is off.",
        header=(
            "system",
            f"{most} tasks",
            "per further task",
            "over its parameter bytes",
            "tasks in 24 GiB",
            "ours takes less from",
            "RSS / USS at the last point",
        ),
        rows=tuple(rows),
        plots=(
            Plot(
                name=f"memory-{backbone}",
                alt=f"Memory of every system over its number of tasks, {backbone}",
            ),
        ),
    )


def saved_sheet(cells: Sequence[SavedCell]) -> Sheet:
    """Return the papers' table, next to the savings of the running server."""
    ordered = sorted(cells, key=lambda it: (it.num_tasks, it.num_frozen))
    return Sheet(
        title="The published savings, in deployment",
        note="The growth of the server process (PSS above a server with almost no weights), "
        "compared with a process with as many full models, and with the formula of Lee et al. "
        "(What Would Elsa Do?, sec. 3) for parameters.",
        header=("backbone", "tasks", "frozen layers", "formula", "measured", "server", "models"),
        rows=tuple(
            (
                cell.backbone,
                str(cell.num_tasks),
                str(cell.num_frozen),
                f"{cell.formula_share:.3f}",
                f"{cell.measured_share:.3f}",
                gigabytes(cell.server_bytes),
                gigabytes(cell.full_models_bytes),
            )
            for cell in ordered
        ),
        plots=(
            Plot(
                name="saved",
                alt="Share of the memory saved over the number of tasks: measured points on the "
                "lines of the published formula",
            ),
        ),
    )


def race_sheet(race: Race, price_per_hour: float) -> Sheet:
    """Return the throughput that keeps the objective, and the cost of a million requests."""
    rows = list[tuple[str, ...]]()
    for racer in race.racers:
        rates = [it.goodput_per_s for it in racer.rounds]
        rows.append(
            (
                racer.title,
                per_second(median(rates)),
                f"{per_second(min(rates))} to {per_second(max(rates))} ({len(rates)})",
                *_measured_there(racer, cost_per_million(median(rates), price_per_hour)),
            )
        )
    return Sheet(
        title=race.title,
        note=f"Highest rate of the open loop at which 99 of 100 requests are answered within "
        f"{race.objective_p99_ms:g} ms, {race.dtype}, all systems in turns on the same cores; 0 "
        "if no rate that was tried met this objective. Requests and seconds cover all rounds at "
        f"that rate; of a round with fewer than {FEWEST_REQUESTS} requests the table gives no p99 "
        f"and no cost. Cost at {price_per_hour:g} per hour for the machine.",
        header=(
            "system",
            "requests/s",
            "rounds",
            "requests",
            "seconds",
            "p50 ms there",
            "p99 ms there",
            "cost of a million requests",
        ),
        rows=tuple(rows),
        plots=(
            Plot(
                name=f"throughput-{race.workload}",
                alt=f"Requests a second of every system at the objective: {race.title}",
            ),
            Plot(
                name=f"latency-over-load-{race.workload}",
                alt=f"p99 latency of every system over the rate it was asked at: {race.title}",
            ),
            Plot(
                name=f"cdf-{race.workload}",
                alt=f"Latencies of every system at one rate: {race.title}",
            ),
        ),
    )


def _measured_there(racer: Racer, cost: float | None) -> tuple[str, ...]:
    """Return requests, seconds, p50, p99 and cost at the goodput; dashes without a goodput."""
    kept = kept_rounds(racer)
    if not kept:
        return ("-",) * 5
    p99 = f"{median(it.p99_ms for it in kept):.0f}" if is_measured(racer) else TOO_FEW
    price = "-" if cost is None else f"{cost:.2f}"
    return (
        f"{sum(it.requests for it in kept):,}",
        f"{sum(seconds_asked(it) for it in kept):.0f}",
        f"{median(it.p50_ms for it in kept):.0f}",
        p99,
        price if is_measured(racer) else TOO_FEW,
    )


def fan_out_sheet(line: FanOutLine) -> Sheet:
    """Return the speed-up next to its bound."""
    return Sheet(
        title="Fan-out",
        note=line.title,
        header=("tasks", "times faster", "bound by layers"),
        rows=tuple((str(it.tasks), f"{it.speed_up:.2f}", f"{it.bound:.2f}") for it in line.points),
        plots=(
            Plot(
                name="fanout",
                alt="How many times faster tasks are asked at once than one by one, with the "
                "factor by counted layers",
            ),
        ),
    )


def many_sheet(many: ManyTasks) -> Sheet:
    """Return the throughput over very many tasks."""
    return Sheet(
        title=f"Very many tasks, {many.title}",
        note=f"One server, {many.backbone}. Latencies at half of the throughput, with the "
        "requests and seconds of that measurement; a cold request is one whose task was not in "
        "memory.",
        header=(
            "tasks",
            "popularity",
            "requests/s",
            "requests",
            "seconds",
            "p50 ms",
            "p99 ms",
            "cold",
            "PSS",
            "filled in",
        ),
        rows=tuple(
            (
                f"{it.tasks:,}",
                it.popularity,
                f"{it.throughput_per_s:.1f}",
                NOT_RECORDED if it.requests is None else f"{it.requests:,}",
                NOT_RECORDED if it.seconds is None else f"{it.seconds:.0f}",
                f"{it.p50_ms:.0f}",
                p99_of(it.p99_ms, it.requests),
                f"{it.cold_share:.1%}",
                gigabytes(it.pss_bytes),
                f"{it.fill_s:.0f} s",
            )
            for it in many.points
        ),
        plots=(Plot(name="many", alt=f"Requests a second over the number of tasks, {many.title}"),)
        if len({it.tasks for it in many.points}) > 1
        else (),
    )


def p99_of(ms: float, requests: int | None) -> str:
    """Return a p99 as text; with too few requests, say so instead."""
    is_known = requests is None or requests >= FEWEST_REQUESTS
    return f"{ms:.0f}" if is_known else TOO_FEW


def run_sheet(run: KeptRun) -> Sheet:
    """Return one run of a scenario."""
    report = run.report
    name, objectives = report.job.scenario.name, report.job.scenario.objectives
    latency, asked = report.overall.latency, report.asked
    cached = "not told" if asked.cache_hit_share is None else f"{asked.cache_hit_share:.1%}"
    peak = report.process_peak
    pss = peak.pss_bytes if peak is not None else report.memory.process.pss_bytes
    answered = report.overall.requests - report.overall.failures
    rows = (
        ("requests", f"{report.overall.requests}, {report.overall.failures} failed"),
        ("seconds", f"{report.span_s:.0f}"),
        ("answers/s", f"{report.overall.requests_per_s:.1f}"),
        (
            "p50 / p95 / p99 / longest",
            "-"
            if latency is None
            else f"{latency.p50_ms:.1f} / {latency.p95_ms:.1f} / "
            f"{p99_of(latency.p99_ms, answered)} / "
            f"{latency.max_ms:.1f} ms",
        ),
        (f"within {objectives.p99_ms:g} ms", f"{report.verdict.attained_share:.1%}"),
        ("objective", "met" if report.verdict.met else "missed"),
        ("generator late (p99)", f"{report.generator.lag_p99_ms:.1f} ms"),
        ("counts", "yes" if report.generator.valid else "no: the generator was late"),
        ("steady after warm-up", {True: "yes", False: "no", None: "-"}[report.warm_up.steady]),
        (
            "share of the top task / top tenth",
            f"{asked.top_task_share:.1%} / {asked.top_tenth_share:.1%} of {asked.tasks} tasks",
        ),
        ("trunk states from the cache", cached),
        ("highest PSS", "-" if pss is None else gigabytes(pss)),
        ("saved against full models", f"{report.memory.saved_share:.1%}"),
    )
    plots = [
        Plot(name=f"run-{name}-cdf", alt=f"Latencies of scenario {name}"),
        Plot(name=f"run-{name}-fairness", alt=f"p99 latency of every task of scenario {name}"),
    ]
    if len(report.watched) > 1:
        memory = f"Memory of the server through scenario {name}"
        plots.append(Plot(name=f"run-{name}-memory", alt=memory))
    return Sheet(
        title=f"Scenario {name}",
        note=f"{report.job.scenario.title}. Server {report.server.version} on "
        f"{report.server.device} ({report.server.dtype}).",
        header=("what", "measured"),
        rows=rows,
        plots=tuple(plots),
    )


def origin_sheet(facts: Facts) -> Sheet:
    """Return the commands, commits and machines behind the results."""
    measured = (*facts.memory, *facts.saved, *facts.races, *facts.fan_out, *facts.many)
    rows = dict.fromkeys(_origin_row(it.origin) for it in measured)
    for run in facts.runs:
        report = run.report
        command = f"nunatak loadtest run {report.job.scenario.name} --server {report.job.server}"
        rows[command, "-", "-", "-", f"nunatak {report.server.version}"] = None
    return Sheet(
        title="How it was measured",
        note="Run these again to get these results.",
        header=COLUMNS_OF_ORIGIN,
        rows=tuple(rows),
    )


def _origin_row(origin: Origin) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {number}" for name, number in origin.versions.items())
    return origin.command, origin.commit, origin.date, origin.hardware, versions

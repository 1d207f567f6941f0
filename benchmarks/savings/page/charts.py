"""The plots of the report, from the results only. A plot without results is left out."""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.harness.palette import OURS, SERIES, looks_of
from benchmarks.savings.page.canvas import INK, blank, legend_below
from benchmarks.savings.page.facts import BUDGET_BYTES, Facts, asked_how, bytes_at
from benchmarks.savings.page.race_charts import draw_quantiles, draw_race, label_cdf
from benchmarks.savings.results import FanOutLine, ManyTasks, MemoryLine, SavedCell
from nunatak_loadtest.report import KeptRun

WIDEST, NARROWER = 4.0, 1.0
"""Width of the first line of a memory plot, in points, and the decrease from line to line. Lines
that coincide therefore remain visible."""


def draw_all(facts: Facts) -> dict[str, Figure]:
    """Draw every plot that has results; return the plots by the names of their files."""
    drawn = {
        f"memory-{backbone}": draw_memory(facts.lines_of(backbone), backbone)
        for backbone in facts.backbones()
    }
    if facts.saved:
        drawn["saved"] = draw_saved(facts.saved)
    for race in facts.races:
        drawn |= draw_race(race)
    for line in facts.fan_out:
        drawn["fanout"] = draw_fan_out(line)
    for many in facts.many:
        if len({point.tasks for point in many.points}) > 1:
            drawn["many"] = draw_many(many)
    for run in facts.runs:
        drawn |= draw_run(run)
    return drawn


def draw_run(run: KeptRun) -> dict[str, Figure]:
    """Draw the measurements of a run."""
    name = run.report.job.scenario.name
    drawn = {f"run-{name}-cdf": draw_run_cdf(run), f"run-{name}-fairness": draw_fairness(run)}
    if len(run.report.watched) > 1:
        drawn[f"run-{name}-memory"] = draw_watched(run)
    return drawn


def draw_memory(lines: Sequence[MemoryLine], backbone: str) -> Figure:
    """Draw PSS over tasks: measured points and straight lines, dashed beyond the points."""
    figure, axes = blank(7.0, 5.0, f"Memory over tasks, {backbone} (dashed: extrapolated)")
    most = max(point.tasks for line in lines for point in line.points)
    for place, (line, look) in enumerate(
        zip(lines, looks_of([it.system for it in lines]), strict=True)
    ):
        width = max(1.2, WIDEST - place * NARROWER)
        last = line.points[-1].tasks
        for begin, end, style in ((0, last, "-"), (last, most, "--")):
            if end > begin:
                ys = [(line.base_bytes + line.slope_bytes * it) / 1e9 for it in (begin, end)]
                axes.plot([begin, end], ys, ls=style, color=look.colour, lw=width)
        tasks = [point.tasks for point in line.points]
        sizes = [point.pss_bytes / 1e9 for point in line.points]
        axes.plot(tasks, sizes, look.marker, ms=6, color=look.colour, label=line.title)
    ours = lines[0]
    if ours.is_ours:
        start, per_task = ours.base_bytes, ours.parameter_bytes_per_task
        ys = [(start + per_task * it) / 1e9 for it in (0, most)]
        axes.plot([0, most], ys, ls=":", color=INK, label="formula: what a task owns")
    highest = max(bytes_at(line, most) for line in lines)
    if highest > BUDGET_BYTES:
        label = f"a machine of {BUDGET_BYTES / 2**30:g} GiB"
        axes.axhline(BUDGET_BYTES / 1e9, color=INK, lw=1.2, ls="-.", label=label)
    axes.set_xlabel("tasks")
    axes.set_ylabel("memory of all processes, GB (PSS)")
    axes.set_ylim(bottom=0)
    legend_below(figure)
    return figure


def draw_saved(cells: Sequence[SavedCell]) -> Figure:
    """Draw the saved share over tasks: for each N, the formula as a line, the figures as points."""
    title = f"Memory saved in deployment, {cells[0].backbone} (lines: published formula)"
    figure, axes = blank(6.5, 4.4, title)
    depths = sorted({cell.num_frozen for cell in cells})
    for depth, look in zip(depths, SERIES, strict=False):
        its = sorted((c for c in cells if c.num_frozen == depth), key=lambda c: c.num_tasks)
        tasks = [cell.num_tasks for cell in its]
        axes.plot(tasks, [cell.formula_share for cell in its], color=look.colour, lw=1.2)
        measured = [cell.measured_share for cell in its]
        label = f"{depth} frozen layers"
        axes.plot(tasks, measured, look.marker, color=look.colour, label=label)
    axes.set_xlabel("tasks")
    axes.set_ylabel("share of the memory saved")
    axes.set_xticks(sorted({cell.num_tasks for cell in cells}))
    axes.set_ylim(0, 1)
    legend_below(figure, columns=3)
    return figure


def draw_run_cdf(run: KeptRun) -> Figure:
    """Latencies of one run."""
    scenario = run.report.job.scenario
    figure, axes = blank(6.0, 4.0, f"Latency of scenario {scenario.name}")
    draw_quantiles(axes, run.report.quantiles_ms, OURS, scenario.name)
    limit = scenario.objectives.p99_ms
    axes.axvline(limit, color=INK, lw=1.2, ls="--", label=f"objective: p99 of {limit:g} ms")
    label_cdf(axes, [*run.report.quantiles_ms, limit])
    legend_below(figure)
    return figure


def draw_fairness(run: KeptRun) -> Figure:
    """Draw the p99 of every task over the number of the task's requests."""
    figure, axes = blank(5.5, 3.6, "Fairness: one point a task")
    for statistics in run.report.tasks.values():
        if statistics.latency is not None:
            ms = statistics.latency.p99_ms
            axes.plot(statistics.requests, ms, "o", ms=4, color=OURS.colour)
    axes.set_xlabel("requests of the task")
    axes.set_ylabel("p99 latency of the task, ms")
    axes.set_ylim(bottom=0)
    return figure


def draw_watched(run: KeptRun) -> Figure:
    """Draw the memory of the server process during the run."""
    figure, axes = blank(5.5, 4.0, "Memory of the server through the run")
    watched = run.report.watched
    times = [it.at_s - watched[0].at_s for it in watched]
    for name, look, sizes in (
        ("RSS", SERIES[1], [it.rss_bytes for it in watched]),
        ("PSS", SERIES[0], [it.pss_bytes for it in watched]),
        ("USS", SERIES[2], [it.uss_bytes for it in watched]),
    ):
        pairs = [(at, size / 1e6) for at, size in zip(times, sizes, strict=True) if size]
        xs, ys = [at for at, _ in pairs], [size for _, size in pairs]
        axes.plot(xs, ys, color=look.colour, label=name)
    axes.set_xlabel("seconds since the first sample")
    axes.set_ylabel("memory, MB")
    axes.set_ylim(bottom=0)
    legend_below(figure, columns=3)
    return figure


def draw_fan_out(line: FanOutLine) -> Figure:
    """Draw the speed-up over tasks, with the bound as a dashed line."""
    figure, axes = blank(6.0, 4.2, line.title)
    tasks = [point.tasks for point in line.points]
    measured = [it.speed_up for it in line.points]
    axes.plot(tasks, measured, "o-", color=OURS.colour, label="measured")
    bounds = [it.bound for it in line.points]
    axes.plot(tasks, bounds, "--", color=INK, label="if every layer cost the same")
    axes.set_xticks(tasks)
    axes.set_xlabel("tasks asked of one text")
    axes.set_ylabel("times faster than one by one")
    axes.set_ylim(bottom=0)
    legend_below(figure)
    return figure


def draw_many(many: ManyTasks) -> Figure:
    """Throughput over very many tasks."""
    figure, axes = blank(6.5, 4.4, f"Throughput over tasks, {many.title}, {many.backbone}")
    names = list(dict.fromkeys(point.popularity for point in many.points))
    for name, look in zip(names, SERIES, strict=False):
        its = [point for point in many.points if point.popularity == name]
        tasks, rates = [it.tasks for it in its], [it.throughput_per_s for it in its]
        axes.plot(tasks, rates, marker=look.marker, color=look.colour, label=asked_how(name))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tasks in use")
    axes.set_ylabel("requests/s")
    legend_below(figure)
    return figure

"""The plots of the report; each is drawn from the results alone, and only where there are any.

Colours and grey text are legible on white and on black, since the page follows the reader's theme.
"""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_loadtest.page.facts import BUDGET_BYTES, Facts, bytes_at, goodput
from nunatak_loadtest.report import QUANTILES
from nunatak_loadtest.results import FanOutLine, ManyTasks, MemoryLine, Race, Run, SavedCell

INK, OURS, ALSO_OURS = "#7d8590", "#2a9d8f", "#8fcdc4"
OTHERS = ("#c77d4f", "#8d6cab", "#b5a642", "#5b8db8", "#b56576", "#6c757d", "#9a8c98")
mpl.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def draw_all(facts: Facts) -> dict[str, Figure]:
    """Every plot that has results, by the name of its file."""
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


def draw_race(race: Race) -> dict[str, Figure]:
    """What a race has measured."""
    drawn = {f"throughput-{race.workload}": draw_goodput(race)}
    if any(racer.rates for racer in race.racers):
        drawn[f"latency-over-load-{race.workload}"] = draw_load(race)
    if any(racer.quantiles_ms for racer in race.racers):
        drawn[f"cdf-{race.workload}"] = draw_race_cdf(race)
    return drawn


def draw_run(run: Run) -> dict[str, Figure]:
    """What a run has measured."""
    name = run.report.job.scenario.name
    drawn = {f"run-{name}-cdf": draw_run_cdf(run), f"run-{name}-fairness": draw_fairness(run)}
    if len(run.report.watched) > 1:
        drawn[f"run-{name}-memory"] = draw_watched(run)
    return drawn


def draw_memory(lines: Sequence[MemoryLine], backbone: str) -> Figure:
    """PSS over tasks: measured points, straight lines, dashed where nothing was measured."""
    figure, axes = _axes(7.0, 4.2)
    most = max(point.tasks for line in lines for point in line.points)
    for line, colour in zip(lines, _colours(lines), strict=False):
        last = line.points[-1].tasks
        for begin, end, style in ((0, last, "-"), (last, most, "--")):
            if end > begin:
                ys = [(line.base_bytes + line.slope_bytes * it) / 1e9 for it in (begin, end)]
                axes.plot([begin, end], ys, ls=style, color=colour, lw=2 if line.is_ours else 1.4)
        tasks = [point.tasks for point in line.points]
        sizes = [point.pss_bytes / 1e9 for point in line.points]
        axes.plot(tasks, sizes, "o", ms=4, color=colour, label=line.title)
    ours = lines[0]
    if ours.is_ours:
        start, per_task = ours.base_bytes, ours.parameter_bytes_per_task
        ys = [(start + per_task * it) / 1e9 for it in (0, most)]
        axes.plot([0, most], ys, ls=":", color=INK, label="formula: what a task owns")
    highest = max(bytes_at(line, most) for line in lines)
    if highest > BUDGET_BYTES:
        axes.axhline(BUDGET_BYTES / 1e9, color="#d1495b", lw=1, label="24 GiB")
    axes.set_xlabel("tasks")
    axes.set_ylabel("memory of all processes, GB (PSS)")
    axes.set_title(f"Memory over tasks, {backbone} (dashed: extrapolated)")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def draw_saved(cells: Sequence[SavedCell]) -> Figure:
    """Saved share over tasks: formula as a line for each N, measured as points."""
    figure, axes = _axes(6.0, 3.8)
    depths = sorted({cell.num_frozen for cell in cells})
    for depth, colour in zip(depths, (OURS, *OTHERS), strict=False):
        its = sorted((c for c in cells if c.num_frozen == depth), key=lambda c: c.num_tasks)
        tasks = [cell.num_tasks for cell in its]
        axes.plot(tasks, [cell.formula_share for cell in its], color=colour, lw=1)
        measured = [cell.measured_share for cell in its]
        axes.plot(tasks, measured, "o", color=colour, label=f"{depth} frozen layers")
    axes.set_xlabel("tasks")
    axes.set_ylabel("share saved")
    axes.set_title(f"Saved in deployment, {cells[0].backbone} (lines: published formula)")
    axes.set_ylim(0, 1)
    axes.legend()
    return figure


def draw_goodput(race: Race) -> Figure:
    """Throughput that keeps the objective, with the lowest and highest round."""
    rates = goodput(race)
    figure, axes = _axes(7.5, 0.45 * len(rates) + 1.3)
    rounds = {it.title: [turn.goodput_per_s for turn in it.rounds] for it in race.racers}
    ours = {it.title for it in race.racers if it.is_ours}
    titles = list(reversed(rates))
    spread = [
        [rates[it] - min(rounds[it]) for it in titles],
        [max(rounds[it]) - rates[it] for it in titles],
    ]
    colours = [OURS if it in ours else OTHERS[-2] for it in titles]
    axes.barh(titles, [rates[it] for it in titles], xerr=spread, color=colours, ecolor=INK)
    for row, title in enumerate(titles):
        axes.text(max(rounds[title]), row, f"  {rates[title]:.0f}", va="center", fontsize=9)
    axes.set_xlabel(f"requests/s with 99 of 100 within {race.objective_p99_ms:g} ms")
    axes.set_title(race.title)
    axes.margins(x=0.12)
    return figure


def draw_load(race: Race) -> Figure:
    """p99 over the offered rate, every trial a point; the objective as a line."""
    figure, axes = _axes(6.5, 4.0)
    for racer, colour in zip(race.racers, _colours(race.racers), strict=False):
        trials = sorted((it.offered_per_s, it.p99_ms) for it in racer.rates if it.p99_ms > 0)
        xs, ys = [rate for rate, _ in trials], [ms for _, ms in trials]
        axes.plot(xs, ys, "o-", ms=3, lw=1, color=colour, label=racer.title)
    axes.axhline(race.objective_p99_ms, color="#d1495b", lw=1, ls="--", label="objective")
    axes.set_yscale("log")
    axes.set_xlabel("offered requests/s (open loop)")
    axes.set_ylabel("p99, ms")
    axes.set_title(f"Latency over load: {race.title}")
    axes.legend()
    return figure


def draw_race_cdf(race: Race) -> Figure:
    """Latencies of all systems at the rate that each was asked at."""
    figure, axes = _axes(6.5, 4.0)
    for racer, colour in zip(race.racers, _colours(race.racers), strict=False):
        _cdf(axes, racer.quantiles_ms, colour, racer.title)
    _label_cdf(axes, f"Latency at {race.common_rate_per_s or 0:g} requests/s")
    axes.legend()
    return figure


def draw_run_cdf(run: Run) -> Figure:
    """Latencies of one run."""
    figure, axes = _axes(5.5, 3.6)
    _cdf(axes, run.report.quantiles_ms, OURS, run.report.job.scenario.name)
    limit = run.report.job.scenario.objectives.p99_ms
    axes.axvline(limit, color="#d1495b", lw=1, ls="--")
    _label_cdf(axes, f"Latency of scenario {run.report.job.scenario.name}")
    return figure


def draw_fairness(run: Run) -> Figure:
    """p99 of every task over how often it was asked."""
    figure, axes = _axes(5.5, 3.6)
    for statistics in run.report.tasks.values():
        if statistics.latency is not None:
            axes.plot(statistics.requests, statistics.latency.p99_ms, "o", ms=4, color=OURS)
    axes.set_xlabel("requests of the task")
    axes.set_ylabel("p99 of the task, ms")
    axes.set_title("Fairness: one point a task")
    axes.set_ylim(bottom=0)
    return figure


def draw_watched(run: Run) -> Figure:
    """Memory of the server process through the run."""
    figure, axes = _axes(5.5, 3.6)
    watched = run.report.watched
    times = [it.at_s - watched[0].at_s for it in watched]
    for name, colour, sizes in (
        ("RSS", OTHERS[0], [it.rss_bytes for it in watched]),
        ("PSS", OURS, [it.pss_bytes for it in watched]),
        ("USS", OTHERS[3], [it.uss_bytes for it in watched]),
    ):
        pairs = [(at, size / 1e6) for at, size in zip(times, sizes, strict=True) if size]
        axes.plot([at for at, _ in pairs], [size for _, size in pairs], color=colour, label=name)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MB")
    axes.set_title("Memory of the server through the run")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def draw_fan_out(line: FanOutLine) -> Figure:
    """Speed-up over tasks, its bound dashed."""
    figure, axes = _axes(5.5, 3.8)
    tasks = [point.tasks for point in line.points]
    axes.plot(tasks, [it.speed_up for it in line.points], "o-", color=OURS, label="measured")
    axes.plot(tasks, [it.bound for it in line.points], "--", color=INK, label="bound by layers")
    axes.set_xlabel("tasks asked of one text")
    axes.set_ylabel("times faster than one by one")
    axes.set_title(line.title)
    axes.legend()
    return figure


def draw_many(many: ManyTasks) -> Figure:
    """Throughput and memory over very many tasks."""
    figure, axes = _axes(6.0, 3.8)
    names = list(dict.fromkeys(point.popularity for point in many.points))
    for name, colour in zip(names, (OURS, OTHERS[0]), strict=False):
        its = [point for point in many.points if point.popularity == name]
        tasks, rates = [it.tasks for it in its], [it.throughput_per_s for it in its]
        axes.plot(tasks, rates, "o-", color=colour, label=f"{name}: requests/s")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tasks in use")
    axes.set_ylabel("requests/s")
    axes.set_title(many.title)
    axes.legend(loc="lower left")
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.grid(visible=True, color=INK, alpha=0.18, lw=0.6)
    return figure, axes


def _colours(systems: Sequence[object]) -> list[str]:
    ours, rest = iter((OURS,)), iter(OTHERS)
    return [
        next(ours, ALSO_OURS) if getattr(it, "is_ours", False) else next(rest, INK)
        for it in systems
    ]


def _cdf(axes: Axes, quantiles_ms: Sequence[float], colour: str, label: str) -> None:
    shares = [percent / 100 for percent in QUANTILES]
    if quantiles_ms:
        axes.plot(quantiles_ms, shares, drawstyle="steps-post", color=colour, label=label)


def _label_cdf(axes: Axes, title: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("ms, from the instant the request was due")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1.01)
    axes.set_title(title)

"""The result of a run as tables for a terminal, with the report's figures rounded."""

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_loadtest.report import LoadReport
from nunatak_loadtest.samples import RequestStatistics
from nunatak_loadtest.scenario import Arrivals, Closed, Gamma, Poisson

MOST_TASKS = 24
"""Most rows of the table of tasks, which shows the tasks with most requests."""


def render(report: LoadReport) -> Group:
    """Requests, objectives and memory of a run."""
    failures = _failures(report)
    return Group(
        Text(
            f"{describe(report.job.scenario.arrivals)} for {report.span_s:.1f} s against "
            f"{report.server.name} {report.server.version} on {report.server.device} "
            f"({report.server.dtype})"
        ),
        _request_table(report),
        *([failures] if failures is not None else []),
        _verdict(report),
        _memory_table(report),
    )


def describe(arrivals: Arrivals) -> str:
    """Arrivals in a few words."""
    match arrivals:
        case Closed(users=users, steps=()):
            return f"{users} users, each waiting for its answer,"
        case Closed(steps=steps):
            return f"{', '.join(str(step.users) for step in steps)} users in steps"
        case Poisson(rate_per_s=rate):
            return f"{rate:g} requests/s, Poisson arrivals,"
        case Gamma(rate_per_s=rate, cv=cv):
            return f"{rate:g} requests/s in bursts (Gamma, cv {cv:g})"


def _request_table(report: LoadReport) -> Table:
    table = Table(title="Requests", title_justify="left", title_style="bold")
    table.add_column("task", overflow="fold")
    for heading in ("answers/s", "p50 ms", "p95 ms", "p99 ms", "compute ms", "batch", "failed"):
        table.add_column(heading, justify="right")
    most_asked = sorted(report.tasks.items(), key=lambda item: -item[1].requests)
    shown = most_asked if len(most_asked) > MOST_TASKS else list(report.tasks.items())
    for task, statistics in shown[:MOST_TASKS]:
        table.add_row(task, *_figures(statistics))
    if len(shown) > MOST_TASKS:
        table.add_row(f"... and {len(shown) - MOST_TASKS} more", *[""] * 7)
    table.add_section()
    table.add_row("all", *_figures(report.overall), style="bold")
    return table


def _figures(statistics: RequestStatistics) -> tuple[str, ...]:
    latency = statistics.latency
    return (
        f"{statistics.requests_per_s:.1f}",
        _rounded(latency and latency.p50_ms),
        _rounded(latency and latency.p95_ms),
        _rounded(latency and latency.p99_ms),
        _rounded(statistics.mean_compute_ms),
        _rounded(statistics.mean_batch_size),
        f"{statistics.failures} of {statistics.requests}",
    )


def _failures(report: LoadReport) -> Text | None:
    codes = report.overall.failure_codes
    if not codes:
        return None
    counts = ", ".join(f"{code} ({count})" for code, count in codes.items())
    return Text(f"failures: {counts}", style="red")


def _verdict(report: LoadReport) -> Text:
    objectives, verdict = report.job.scenario.objectives, report.verdict
    outcome = "met" if verdict.met else "missed"
    lines = [
        f"objective: 99 of 100 requests within {objectives.p99_ms:g} ms",
        f"{verdict.attained_share:.1%} were: {outcome}",
    ]
    if not report.generator.valid:
        lines.append(
            f"the generator itself was {report.generator.lag_p99_ms:.1f} ms late (p99), so this "
            "run does not count; ask less often or from another machine"
        )
    if report.warm_up.steady is False:
        lines.append("the server was not steady after the warm-up")
    if report.asked.cache_hit_share is not None:
        lines.append(
            f"{report.asked.cache_hit_share:.1%} of trunk states came from the server's cache"
        )
    return Text("\n".join(lines))


def _memory_table(report: LoadReport) -> Table:
    memory = report.memory
    table = Table(title="Memory", title_justify="left", title_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_row(f"backbone {memory.backbone.name}", decimal(memory.backbone.bytes))
    for task in memory.tasks[:MOST_TASKS]:
        table.add_row(f"task {task.task}/{task.version} ({task.method})", decimal(task.bytes))
    if len(memory.tasks) > MOST_TASKS:
        rest = sum(task.bytes for task in memory.tasks[MOST_TASKS:])
        table.add_row(f"... and {len(memory.tasks) - MOST_TASKS} more", decimal(rest))
    table.add_section()
    table.add_row("all of this, shared", decimal(memory.shared_bytes))
    table.add_row("one full model per task instead", decimal(memory.dedicated_bytes))
    table.add_row("saved", f"{memory.saved_share:.1%}")
    table.add_section()
    for heading, figure in _process_figures(report):
        table.add_row(heading, "-" if figure is None else decimal(figure))
    return table


def _process_figures(report: LoadReport) -> tuple[tuple[str, int | None], ...]:
    peak = report.process_peak
    if peak is not None:
        source, name = peak, "server process, peak"
    else:
        source, name = report.memory.process, "server process, as it reports"
    return ((f"{name} PSS", source.pss_bytes), (f"{name} RSS", source.rss_bytes))


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

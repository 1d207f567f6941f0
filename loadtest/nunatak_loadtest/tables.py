"""The result of a run as tables for a terminal, with the report's figures rounded."""

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_contract.memory import MemoryReport
from nunatak_loadtest.report import LoadReport
from nunatak_loadtest.samples import RequestStatistics, RunPart

MOST_TASKS = 24
"""Most rows of the table of tasks, which shows the tasks with most requests."""


def render(report: LoadReport) -> Group:
    """Whether the run counts; then its requests, its course, objectives and memory."""
    server = report.server
    return Group(
        *_doubts(report),
        Text(report.job.title),
        Text(f"{server.name} {server.version} on {server.device} ({server.dtype})"),
        _request_table(report),
        *([_stage_table("Steps", report.steps)] if report.steps else []),
        *([_stage_table("Over time", report.windows)] if len(report.windows) > 1 else []),
        *_failures(report),
        _verdict(report),
        *_memory_tables(report),
    )


def _doubts(report: LoadReport) -> Iterator[Text]:
    if report.doubts:
        yield Text("THIS RUN DOES NOT COUNT", style="bold red")
    for doubt in report.doubts:
        yield Text(f"- {doubt}", style="red")


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


def _stage_table(title: str, stages: Sequence[RunPart]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    if stages[0].users is not None:
        table.add_column("users", justify="right")
    for heading in ("seconds", "answers/s", "p50 ms", "p95 ms", "p99 ms", "failed"):
        table.add_column(heading, justify="right")
    for stage in stages:
        rate, p50, p95, p99, *_, failed = _figures(stage.statistics)
        users = [] if stage.users is None else [str(stage.users)]
        end_s = stage.begin_s + stage.seconds
        table.add_row(
            *users, f"{_tenths(stage.begin_s)} to {_tenths(end_s)}", rate, p50, p95, p99, failed
        )
    return table


def _failures(report: LoadReport) -> Iterator[Text]:
    codes = report.overall.failure_codes
    if codes:
        counts = ", ".join(f"{code} ({count})" for code, count in codes.items())
        yield Text(f"failures: {counts}", style="red")


def _verdict(report: LoadReport) -> Text:
    objectives, verdict = report.job.scenario.objectives, report.verdict
    outcome = "met" if verdict.met else "missed"
    lines = [
        f"objective: 99 of 100 requests within {objectives.p99_ms:g} ms",
        f"{verdict.attained_share:.1%} were: {outcome}",
    ]
    if report.warm_up.steady is False:
        lines.append("the server was not steady after the warm-up")
    if report.asked.cache_hit_share is not None:
        lines.append(
            f"{report.asked.cache_hit_share:.1%} of trunk states came from the server's cache"
        )
    if report.job.scenario.repeats_texts:
        lines.append("the scenario repeats texts, and the cache of the server knows those")
    if report.job.left_out:
        lines.append(
            f"left out, because they read no single text: {', '.join(report.job.left_out)}"
        )
    return Text("\n".join(lines))


def _memory_tables(report: LoadReport) -> Iterator[Table | Text]:
    if report.memory is None:
        yield Text("no memory: that needs a key with the scope `read` for all tasks")
    else:
        yield _memory_table(report, report.memory)


def _memory_table(report: LoadReport, memory: MemoryReport) -> Table:
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
    for heading, figure in _process_figures(report, memory):
        table.add_row(heading, "-" if figure is None else decimal(figure))
    return table


def _process_figures(
    report: LoadReport, memory: MemoryReport
) -> tuple[tuple[str, int | None], ...]:
    peak = report.process_peak
    if peak is not None:
        source, name = peak, "server process, peak"
    else:
        source, name = memory.process, "server process, as it reports"
    return ((f"{name} PSS", source.pss_bytes), (f"{name} RSS", source.rss_bytes))


def _tenths(seconds: float) -> str:
    return f"{round(seconds, 1):g}"


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

"""The result of a run, as a value and as tables."""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_client.results import MemoryReport, ServerInfo
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.samples import RequestStatistics, Sample, span_s
from nunatak_loadtest.settings import LoadTestSettings


class ProcessPeak(BaseModel):
    """Highest memory of the server process during the run, seen from outside."""

    model_config = ConfigDict(frozen=True)

    samples: int
    rss_bytes: int
    pss_bytes: int | None
    uss_bytes: int | None

    @classmethod
    def of(cls, samples: Sequence[MemorySample]) -> Self | None:
        """Summarise; `None` where the process could not be watched."""
        if not samples:
            return None
        return cls(
            samples=len(samples),
            rss_bytes=max(sample.rss_bytes for sample in samples),
            pss_bytes=_highest(sample.pss_bytes for sample in samples),
            uss_bytes=_highest(sample.uss_bytes for sample in samples),
        )


class LoadReport(BaseModel):
    """Everything a run has measured."""

    model_config = ConfigDict(frozen=True)

    settings: LoadTestSettings
    server: ServerInfo
    span_s: float
    overall: RequestStatistics
    tasks: dict[str, RequestStatistics]
    memory: MemoryReport
    process_peak: ProcessPeak | None


def build_report(
    settings: LoadTestSettings,
    samples: Sequence[Sample],
    *,
    server: ServerInfo,
    memory: MemoryReport,
    watched: Sequence[MemorySample],
) -> LoadReport:
    """Put the measurements together."""
    span = span_s(samples)
    return LoadReport(
        settings=settings,
        server=server,
        span_s=span,
        overall=RequestStatistics.of(samples, span_s=span),
        tasks={
            task: RequestStatistics.of(
                [sample for sample in samples if sample.task == task], span_s=span
            )
            for task in settings.user.tasks
        },
        memory=memory,
        process_peak=ProcessPeak.of(watched),
    )


def render(report: LoadReport) -> Group:
    """Tables for people; figures are those of `report`, only rounded."""
    failures = _failures(report)
    return Group(
        Text(
            f"{report.settings.users} users for {report.span_s:.1f} s against "
            f"{report.server.name} {report.server.version} on {report.server.device} "
            f"({report.server.dtype})"
        ),
        _request_table(report),
        *([failures] if failures is not None else []),
        _memory_table(report),
    )


def _request_table(report: LoadReport) -> Table:
    table = Table(title="Requests", title_justify="left", title_style="bold")
    table.add_column("task", overflow="fold")
    for heading in ("answers/s", "p50 ms", "p95 ms", "p99 ms", "compute ms", "batch", "failed"):
        table.add_column(heading, justify="right")
    for task, statistics in report.tasks.items():
        table.add_row(task, *_figures(statistics))
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


def _memory_table(report: LoadReport) -> Table:
    memory = report.memory
    table = Table(title="Memory", title_justify="left", title_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_row(f"backbone {memory.backbone.name}", decimal(memory.backbone.bytes))
    for task in memory.tasks:
        table.add_row(f"task {task.task}/{task.version} ({task.method})", decimal(task.bytes))
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


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

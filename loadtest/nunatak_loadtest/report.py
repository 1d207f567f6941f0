"""The report of a run as a value, and as tables for a terminal.

It shows the memory of a server process on this machine, measured from outside, next to the ledger
that the server keeps. RSS counts shared pages in full, PSS in proportion to their users, USS not at
all. If the process ended, the machine would regain an amount between USS and PSS.
"""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from itertools import pairwise
from urllib.parse import urlsplit

import psutil
from pydantic import BaseModel, Field
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nunatak_client import Client, MemoryReport, PermissionDeniedError, ServerInfo
from nunatak_contract.plain_text import percent
from nunatak_loadtest.scenarios import Scenario

LATE, IN_TIME = "late", "in time"
LATE_LIMIT_MS = 5
"""Limit of the p99 of the lateness. A later generator sends another load than it was to send."""
FEWEST_ANSWERS = 100
"""With fewer answers, the slowest of a hundred is not known."""
MOST_TASKS = 24


class MemorySample(BaseModel, frozen=True):
    """The memory of a server at one moment; None for what the key or the system does not show."""

    at_s: float = Field(description="by the clock of the machine, since 1970")
    ledger: MemoryReport | None
    rss_bytes: int | None = None
    pss_bytes: int | None = None
    uss_bytes: int | None = None


def cache_hit_share(samples: Sequence[MemorySample]) -> float | None:
    """Return the share of trunk states that were there; None if not one process was sampled."""
    counts = [(it.hits, it.misses) for it in (s.ledger.trunk_cache for s in samples if s.ledger)]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)]
    # The counts of a process never fall: another one of the server has answered.
    if not steps or min(map(min, steps)) < 0:
        return None
    hits, misses = (sum(it) for it in zip(*steps, strict=True))
    return hits / (hits + misses) if hits + misses else 0.0


def ledger_of(client: Client) -> MemoryReport | None:
    try:
        return client.memory()
    except PermissionDeniedError:
        return None


def listening_pid(server: str) -> int | None:
    """The process on this machine that listens at a loopback URL; None if it cannot be found."""
    url = urlsplit(server)
    try:
        is_here = url.hostname == "localhost" or ip_address(url.hostname or "").is_loopback
    except ValueError:
        return None
    if not is_here:
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    pids = {
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    }
    return next(iter(pids)) if len(pids) == 1 else None


def process_bytes(pid: int | None) -> dict[str, int | None]:
    if pid is None:
        return {}
    try:
        process = psutil.Process(pid)
        try:
            full = process.memory_full_info()
        except psutil.AccessDenied:
            return {"rss_bytes": process.memory_info().rss}
    except psutil.NoSuchProcess:
        return {}
    return {
        "rss_bytes": full.rss,
        "pss_bytes": getattr(full, "pss", None),
        "uss_bytes": getattr(full, "uss", None),
    }


class Started(BaseModel, frozen=True, extra="forbid"):
    scenario: Scenario
    server: str
    info: ServerInfo
    tasks: tuple[str, ...] = Field(description="policies, in a scenario of verdicts")
    left_out: tuple[str, ...] = Field(
        description="tasks that read no single text, or need another backbone"
    )
    repeats_texts: bool
    seed: int
    workers: int


class Timed(BaseModel, frozen=True, extra="forbid"):
    """Requests of one name, failed ones included. Locust rounds percentiles to two digits."""

    requests: int
    failures: int
    answers_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class LoadReport(BaseModel, frozen=True, extra="forbid"):
    started: Started
    overall: Timed
    by_name: dict[str, Timed]
    failure_codes: dict[str, int]
    attained_share: float = Field(description="of requests, answered within the objective's p99")
    late_p99_ms: float = Field(description="from the due time to the sending; open loop")
    server_ms: dict[str, float] = Field(description="means that the server's headers report")
    cache_hit_share: float | None = Field(description="of trunk states that the server had already")
    memory: tuple[MemorySample, ...]
    doubts: tuple[str, ...] = Field(description="why the run does not count; empty if it does")

    @property
    def is_met(self) -> bool:
        """Whether 99 of 100 requests were answered within the objective."""
        return self.overall.requests > 0 and self.attained_share >= 0.99

    @property
    def ledger(self) -> MemoryReport | None:
        return next((it.ledger for it in reversed(self.memory) if it.ledger is not None), None)


def doubts_of(overall: Timed, late_ms: float) -> Iterator[str]:
    """Why a run does not count: its p99 lateness, failures, or too few answers."""
    if late_ms > LATE_LIMIT_MS:
        yield (
            f"requests left {late_ms:g} ms late (p99, at most {LATE_LIMIT_MS:g} ms may be): all "
            "users waited for answers, or the generator is slow; ask less often or with more "
            "processes"
        )
    if overall.failures:
        yield (
            f"{overall.failures} of {overall.requests} requests failed, and a quick failure makes "
            "a server look fast"
        )
    answers = overall.requests - overall.failures
    if answers < FEWEST_ANSWERS:
        yield f"{answers} answers are too few for a p99 (at least {FEWEST_ANSWERS}); run longer"


def render(report: LoadReport) -> Group:
    """Whether the run counts; then its requests, its objective and the memory."""
    info, scenario = report.started.info, report.started.scenario
    doubts = [Text(f"- {doubt}", style="red") for doubt in report.doubts]
    return Group(
        *([Text("THIS RUN DOES NOT COUNT", style="bold red")] if doubts else []),
        *doubts,
        Text(f"{scenario.title or scenario.name}; {scenario.seconds:g} s"),
        Text(f"{info.name} {info.version} on {info.device} ({info.dtype})"),
        _request_table(report),
        Text("\n".join(_remarks(report))),
        *_memory_tables(report),
    )


def _request_table(report: LoadReport) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("requests", overflow="fold")
    for heading in ("answers/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "failed"):
        table.add_column(heading, justify="right")
    most_asked = sorted(report.by_name.items(), key=lambda item: -item[1].requests)
    for name, statistics in most_asked[:MOST_TASKS]:
        table.add_row(name, *_figures(statistics))
    if len(most_asked) > MOST_TASKS:
        table.add_row(f"... and {len(most_asked) - MOST_TASKS} more", *[""] * 6)
    table.add_row("all", *_figures(report.overall), style="bold")
    return table


def _figures(it: Timed) -> tuple[str, ...]:
    times = (it.p50_ms, it.p95_ms, it.p99_ms, it.max_ms)
    return (
        f"{it.answers_per_s:.1f}",
        *(f"{time:.0f}" for time in times),
        f"{it.failures} of {it.requests}",
    )


def _remarks(report: LoadReport) -> Iterator[str]:
    if report.failure_codes:
        counts = ", ".join(f"{code} ({count})" for code, count in report.failure_codes.items())
        yield f"failures: {counts}"
    limit, outcome = report.started.scenario.p99_ms, "met" if report.is_met else "missed"
    yield f"objective: 99 of 100 requests within {limit:g} ms"
    yield f"{percent(report.attained_share)} were: {outcome}"
    if report.server_ms:
        means = ", ".join(f"{name} {value:.1f}" for name, value in report.server_ms.items())
        yield f"the server's own times, means: {means}"
    if report.cache_hit_share is not None:
        yield f"{percent(report.cache_hit_share)} of trunk states came from the server's cache"
    if report.started.repeats_texts:
        yield "the texts repeat, and the cache of the server knows those"
    if report.started.left_out:
        left_out = ", ".join(report.started.left_out)
        yield f"left out, because they read no single text or need another backbone: {left_out}"


def _memory_tables(report: LoadReport) -> Iterator[Table | Text]:
    memory = report.ledger
    if memory is None:
        yield Text("no memory: that needs a key with the scope `read` for all tasks")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("memory", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_row(f"backbone {memory.backbone.name}", decimal(memory.backbone.bytes))
    for task in memory.tasks[:MOST_TASKS]:
        table.add_row(f"task {task.task}/{task.version} ({task.method})", decimal(task.bytes))
    if len(memory.tasks) > MOST_TASKS:
        rest = sum(task.bytes for task in memory.tasks[MOST_TASKS:])
        table.add_row(f"... and {len(memory.tasks) - MOST_TASKS} more", decimal(rest))
    table.add_row("all of this, shared", decimal(memory.shared_bytes))
    table.add_row("one full model per task instead", decimal(memory.dedicated_bytes))
    table.add_row("saved", percent(memory.saved_share))
    for name in ("pss_bytes", "rss_bytes"):
        found = (getattr(it, name) for it in report.memory)
        seen = max((it for it in found if it is not None), default=None)
        source = "peak" if seen is not None else "as it reports"
        figure = seen if seen is not None else getattr(memory.process, name)
        heading = f"server process, {source} {name.removesuffix('_bytes').upper()}"
        table.add_row(heading, "-" if figure is None else decimal(figure))
    yield table

"""The result of a run, as a value."""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from nunatak_client.results import MemoryReport, ServerInfo
from nunatak_loadtest.job import Job
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.popularity import top_shares
from nunatak_loadtest.samples import RequestStatistics, Sample, percentile, span_s
from nunatak_loadtest.scenario import Closed, Objectives

QUANTILES = (*(float(percent) for percent in range(100)), 99.5, 99.9, 100.0)
LAG_LIMIT_MS = 5.0
"""A generator that is later than this in one request of a hundred measures itself."""


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


class Verdict(BaseModel):
    """The run held against its objectives; a request without an answer misses them."""

    model_config = ConfigDict(frozen=True)

    attained_share: float = Field(description="of requests, answered within the objective's p99")
    error_share: float
    met: bool

    @classmethod
    def of(cls, samples: Sequence[Sample], objectives: Objectives) -> Self:
        """Hold samples against objectives; no sample meets none."""
        in_time = sum(
            sample.error is None and sample.response_ms <= objectives.p99_ms for sample in samples
        )
        errors = sum(sample.error is not None for sample in samples)
        count = max(len(samples), 1)
        return cls(
            attained_share=in_time / count,
            error_share=errors / count,
            met=in_time >= 0.99 * count and errors <= objectives.error_share * count,
        )


class Generator(BaseModel):
    """How well the load itself was kept to."""

    model_config = ConfigDict(frozen=True)

    open_loop: bool
    lag_p99_ms: float
    valid: bool = Field(description="whether the generator was in time; a closed loop always is")

    @classmethod
    def of(cls, samples: Sequence[Sample], *, open_loop: bool) -> Self:
        """Summarise how late requests left."""
        lags = sorted(sample.lag_ms for sample in samples)
        lag_ms = percentile(lags, 99) if lags else 0.0
        return cls(open_loop=open_loop, lag_p99_ms=lag_ms, valid=lag_ms <= LAG_LIMIT_MS)


class WarmedUp(BaseModel):
    """The windows before the measurement."""

    model_config = ConfigDict(frozen=True)

    window_medians_ms: tuple[float | None, ...] = ()
    steady: bool | None = Field(default=None, description="`None` where nothing was asked before")


class Asked(BaseModel):
    """What was asked in truth, beside what the scenario says."""

    model_config = ConfigDict(frozen=True)

    tasks: int
    top_task_share: float
    top_tenth_share: float
    cache_hit_share: float | None = Field(
        description="of trunk states that the server already had; `None` where it does not tell"
    )


class LoadReport(BaseModel):
    """Everything a run has measured."""

    model_config = ConfigDict(frozen=True)

    job: Job
    server: ServerInfo
    span_s: float
    overall: RequestStatistics
    quantiles_ms: tuple[float, ...] = Field(description="of answered requests, at `QUANTILES`")
    tasks: dict[str, RequestStatistics]
    verdict: Verdict
    generator: Generator
    warm_up: WarmedUp
    asked: Asked
    memory: MemoryReport
    process_peak: ProcessPeak | None
    watched: tuple[MemorySample, ...] = ()


def build_report(
    job: Job,
    samples: Sequence[Sample],
    *,
    server: ServerInfo,
    memory: tuple[MemoryReport, MemoryReport],
    watched: Sequence[MemorySample],
    warm_up: WarmedUp | None = None,
) -> LoadReport:
    """Put the measurements together.

    Args:
        job: What was asked for.
        samples: What came of it.
        server: What it was asked of.
        memory: What the server said of its memory before and after.
        watched: Its process, seen from outside.
        warm_up: What came before the samples.
    """
    span = span_s(samples)
    by_task: dict[str, list[Sample]] = {task: [] for task in job.tasks}
    for sample in samples:
        for task in sample.tasks:
            by_task[task].append(sample)
    top, tenth = top_shares([len(asked) for asked in by_task.values()])
    ordered = sorted(sample.response_ms for sample in samples if sample.error is None)
    return LoadReport(
        job=job,
        server=server,
        span_s=span,
        overall=RequestStatistics.of(samples, span_s=span),
        quantiles_ms=tuple(percentile(ordered, it) for it in QUANTILES) if ordered else (),
        tasks={task: RequestStatistics.of(its, span_s=span) for task, its in by_task.items()},
        verdict=Verdict.of(samples, job.scenario.objectives),
        generator=Generator.of(samples, open_loop=not isinstance(job.scenario.arrivals, Closed)),
        warm_up=warm_up or WarmedUp(),
        asked=Asked(
            tasks=sum(bool(its) for its in by_task.values()),
            top_task_share=top,
            top_tenth_share=tenth,
            cache_hit_share=_cache_hit_share(*memory),
        ),
        memory=memory[1],
        process_peak=ProcessPeak.of(watched),
        watched=tuple(watched),
    )


def _cache_hit_share(before: MemoryReport, after: MemoryReport) -> float | None:
    if before.trunk_cache is None or after.trunk_cache is None:
        return None
    hits = after.trunk_cache.hits - before.trunk_cache.hits
    asked = hits + after.trunk_cache.misses - before.trunk_cache.misses
    return hits / asked if asked else 0.0


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

"""Samples: the facts kept of each request, and exact statistics over them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field


class Sample(BaseModel):
    """One request, measured at its sender."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    started_s: float = Field(description="the due time; in a closed loop, the time of sending")
    response_ms: float = Field(description="from `due_s` to the answer")
    lag_ms: float = Field(default=0.0, description="from the due time to the sending")
    error: str | None = None
    queue_ms: float | None = None
    tokenize_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = None


class Latency(BaseModel):
    """Response times in milliseconds."""

    model_config = ConfigDict(frozen=True)

    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, times_ms: Iterable[float]) -> Self | None:
        """Summarise; `None` without values."""
        ordered = sorted(times_ms)
        if not ordered:
            return None
        return cls(
            p50_ms=percentile(ordered, 50),
            p95_ms=percentile(ordered, 95),
            p99_ms=percentile(ordered, 99),
            max_ms=ordered[-1],
        )


class RequestStatistics(BaseModel):
    """Requests of one task, or of all. The times cover answered requests only."""

    model_config = ConfigDict(frozen=True)

    requests: int
    failures: int
    failure_codes: dict[str, int]
    requests_per_s: float
    latency: Latency | None
    mean_queue_ms: float | None
    mean_tokenize_ms: float | None
    mean_compute_ms: float | None
    mean_batch_size: float | None

    @classmethod
    def of(cls, samples: Sequence[Sample], *, span_s: float) -> Self:
        """Summarise the samples of `span_s` seconds."""
        answered = [sample for sample in samples if sample.error is None]
        codes = Counter(sample.error for sample in samples if sample.error is not None)
        return cls(
            requests=len(samples),
            failures=len(samples) - len(answered),
            failure_codes=dict(codes.most_common()),
            requests_per_s=len(answered) / span_s if span_s > 0 else 0.0,
            latency=Latency.of(sample.response_ms for sample in answered),
            mean_queue_ms=_mean(sample.queue_ms for sample in answered),
            mean_tokenize_ms=_mean(sample.tokenize_ms for sample in answered),
            mean_compute_ms=_mean(sample.compute_ms for sample in answered),
            mean_batch_size=_mean(sample.batch_size for sample in answered),
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of the values do not exceed.

    This is the nearest rank, which is always a measured value.
    """
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]


def span_s(samples: Sequence[Sample]) -> float:
    """Seconds from the first request's start to the last request's end."""
    if not samples:
        return 0.0
    first = min(sample.started_s for sample in samples)
    last = max(sample.started_s + sample.response_ms / 1000 for sample in samples)
    return last - first


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class RunPart(BaseModel):
    """The requests that began in one part of a run."""

    model_config = ConfigDict(frozen=True)

    begin_s: float = Field(description="after the start of the run")
    seconds: float
    users: int | None = Field(default=None, description="of a step of a closed loop")
    statistics: RequestStatistics


def over_time(
    samples: Sequence[Sample], parts: Sequence[tuple[float, int | None]]
) -> tuple[RunPart, ...]:
    """Summarise parts of a run, which follow one another; the run begins with its first request.

    Args:
        samples: The requests of the run.
        parts: Seconds of each part, and its users if it is a step.
    """
    begin_s, stages = 0.0, list[RunPart]()
    start_s = min((sample.started_s for sample in samples), default=0.0)
    for number, (seconds, users) in enumerate(parts, start=1):
        # The last request is at the very end of the last part.
        end_s = begin_s + seconds if number < len(parts) else math.inf
        its = [it for it in samples if begin_s <= it.started_s - start_s < end_s]
        statistics = RequestStatistics.of(its, span_s=seconds)
        stages.append(RunPart(begin_s=begin_s, seconds=seconds, users=users, statistics=statistics))
        begin_s = end_s
    return tuple(stages)

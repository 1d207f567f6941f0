"""The result of a run as a value, and the two files that keep it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    computed_field,
    field_validator,
)

from nunatak_client import MemoryReport, ServerInfo
from nunatak_contract.errors import NunatakError
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.samples import (
    RequestStatistics,
    RunPart,
    Sample,
    over_time,
    percentile,
    span_s,
)
from nunatak_loadtest.scenario import (
    Arrivals,
    Closed,
    FileTexts,
    Gamma,
    LogNormalLengths,
    NormalLengths,
    Objectives,
    Poisson,
    Scenario,
    Zipf,
    first_problem,
)

QUANTILES = (*(float(percent) for percent in range(100)), 99.5, 99.9, 100.0)
LAG_LIMIT_MS = 5.0
"""Limit of the generator's p99 lag. A slower generator would measure itself."""
FEWEST_REQUESTS = 100
"""With fewer answers, the slowest of a hundred is not known."""
MOST_WINDOWS = 20
"""Most parts of a run on its time axis."""


class Job(BaseModel):
    """One run: a scenario, a server and its tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str = "http://127.0.0.1:8080"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    left_out: tuple[str, ...] = Field(
        default=(), description="tasks of the server that read no single text"
    )
    scenario: Scenario
    seed: int = 0

    @property
    def title(self) -> str:
        """The load in words, from the values that the run used."""
        scenario = self.scenario
        popularity = scenario.popularity
        liked = f" (Zipf {popularity.exponent:g})" if isinstance(popularity, Zipf) else ""
        widths = " or ".join(f"{min(it.tasks, len(self.tasks))}" for it in scenario.widths)
        return (
            f"{describe(scenario.arrivals)} for {scenario.seconds:g} s; {widths} of "
            f"{len(self.tasks)} tasks a request{liked}; {_texts(scenario)}"
        )

    @field_validator("tasks")
    @classmethod
    def _are_names(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if not all(task.strip() for task in tasks):
            raise ValueError("a task reference is name, name@alias or name/version, not blank")
        if len(set(tasks)) != len(tasks):
            raise ValueError("name each task only once")
        return tasks

    @classmethod
    def checked(cls, **values: object) -> Self:
        """Build a job from outside values.

        Raises:
            NunatakError: `invalid_settings`, a value is malformed or out of range.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise NunatakError("invalid_settings", problem=first_problem(error)) from error


class ProcessPeak(BaseModel):
    """Peak memory of the server process during the run, measured from outside."""

    model_config = ConfigDict(frozen=True)

    samples: int
    rss_bytes: int
    pss_bytes: int | None
    uss_bytes: int | None

    @classmethod
    def of(cls, samples: Sequence[MemorySample]) -> Self | None:
        """Summarise; `None` if the process could not be watched."""
        if not samples:
            return None
        return cls(
            samples=len(samples),
            rss_bytes=max(sample.rss_bytes for sample in samples),
            pss_bytes=_highest(sample.pss_bytes for sample in samples),
            uss_bytes=_highest(sample.uss_bytes for sample in samples),
        )


class Verdict(BaseModel):
    """The run compared with its objectives. A request without an answer misses every objective."""

    model_config = ConfigDict(frozen=True)

    attained_share: float = Field(description="of requests, answered within the objective's p99")
    error_share: float
    met: bool

    @classmethod
    def of(cls, samples: Sequence[Sample], objectives: Objectives) -> Self:
        """Compare samples with objectives. Without samples, no objective is met."""
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
    """The punctuality of the generator."""

    model_config = ConfigDict(frozen=True)

    open_loop: bool
    lag_p99_ms: float
    valid: bool = Field(description="whether the generator was punctual; a closed loop always is")

    @classmethod
    def of(cls, samples: Sequence[Sample], *, open_loop: bool) -> Self:
        """Summarise the lags of requests."""
        lags = sorted(sample.lag_ms for sample in samples)
        lag_ms = percentile(lags, 99) if lags else 0.0
        return cls(open_loop=open_loop, lag_p99_ms=lag_ms, valid=lag_ms <= LAG_LIMIT_MS)


class WarmedUp(BaseModel):
    """The windows before the measurement."""

    model_config = ConfigDict(frozen=True)

    window_medians_ms: tuple[float | None, ...] = ()
    steady: bool | None = Field(
        default=None, description="`None` if there were no earlier requests"
    )


class Asked(BaseModel):
    """The load that was actually sent, for comparison with the scenario."""

    model_config = ConfigDict(frozen=True)

    tasks: int
    top_task_share: float
    top_tenth_share: float
    cache_hit_share: float | None = Field(
        description=(
            "of trunk states that the server already had; `None` if the server does not report it"
        )
    )


class LoadReport(BaseModel):
    """All measurements of a run."""

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
    memory: MemoryReport | None = Field(description="`None` if the key may not read it")
    process_peak: ProcessPeak | None
    watched: tuple[MemorySample, ...] = ()
    steps: tuple[RunPart, ...] = Field(default=(), description="of a closed loop with steps")
    windows: tuple[RunPart, ...] = Field(default=(), description="the whole run, part by part")

    @computed_field
    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the run does not count; empty if it does."""
        return tuple(_doubts(self))


def _doubts(report: LoadReport) -> Iterator[str]:
    overall, limit = report.overall, report.job.scenario.objectives.error_share
    answered = overall.requests - overall.failures
    if not report.generator.valid:
        yield (
            f"the load generator itself was {report.generator.lag_p99_ms:.1f} ms late (p99, at "
            f"most {LAG_LIMIT_MS:g} ms may be); ask less often or from another machine"
        )
    if overall.failures > limit * overall.requests:
        yield (
            f"{overall.failures} of {overall.requests} requests failed (the scenario allows "
            f"{limit:.1%}), and a quick failure makes a server look fast"
        )
    if answered < FEWEST_REQUESTS:
        yield (f"{answered} answers are too few for a p99 (at least {FEWEST_REQUESTS}); run longer")


class KeptRun(BaseModel):
    """A run as stored in its file; `kind` distinguishes it from other measurements."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["run"] = "run"
    report: LoadReport


def check_unwritten(folder: Path, scenario: Scenario) -> None:
    """Check that a folder has no run of a scenario yet. Results are never overwritten.

    Raises:
        NunatakError: `invalid_settings`, the folder has one.
    """
    path = _path_of(folder, scenario)
    if path.exists():
        raise NunatakError(
            "invalid_settings",
            problem=f"{path} holds an earlier run, which is never overwritten; name another folder",
        )


def save_run(folder: Path, report: LoadReport, samples: Sequence[Sample]) -> Path:
    """Write `run-NAME.json`, and next to it every request, as `run-NAME.samples.jsonl`.

    Raises:
        NunatakError: `invalid_settings`, the folder has a run of the scenario.
    """
    scenario = report.job.scenario
    check_unwritten(folder, scenario)
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(sample.model_dump_json(exclude_none=True) + "\n" for sample in samples)
    path = _path_of(folder, scenario)
    path.with_suffix(".samples.jsonl").write_text(lines, encoding="utf-8")
    path.write_text(KeptRun(report=report).model_dump_json(indent=1), encoding="utf-8")
    return path


def _path_of(folder: Path, scenario: Scenario) -> Path:
    return folder / f"run-{scenario.name}.json"


def build_report(
    job: Job,
    samples: Sequence[Sample],
    *,
    server: ServerInfo,
    memory: tuple[MemoryReport, MemoryReport] | None,
    watched: Sequence[MemorySample],
    warm_up: WarmedUp | None = None,
) -> LoadReport:
    """Combine the measurements.

    Args:
        job: The scenario, the tasks and the server to load.
        samples: The requests of the run.
        server: The server's description of itself.
        memory: The server's memory reports before and after the run, if the key may read them.
        watched: Samples of the server process from outside.
        warm_up: The warm-up before the samples.
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
            cache_hit_share=None if memory is None else _cache_hit_share(*memory),
        ),
        memory=None if memory is None else memory[1],
        process_peak=ProcessPeak.of(watched),
        watched=tuple(watched),
        steps=over_time(samples, _steps(job.scenario.arrivals)),
        windows=over_time(samples, _windows(samples)),
    )


def _steps(arrivals: Arrivals) -> list[tuple[float, int | None]]:
    match arrivals:
        case Closed(steps=steps):
            return [(float(step.seconds), step.users) for step in steps]
        case _:
            return []


def _windows(samples: Sequence[Sample]) -> list[tuple[float, int | None]]:
    """Return equal parts, of a second at least, from the first request to the last."""
    starts = [sample.started_s for sample in samples]
    if not starts:
        return []
    sent_s = max(starts) - min(starts)
    count = min(max(int(sent_s), 1), MOST_WINDOWS)
    return [(sent_s / count, None)] * count


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


def _texts(scenario: Scenario) -> str:
    match scenario.texts:
        case NormalLengths(mean=mean):
            drawn = f"new texts of about {mean:g} words"
        case LogNormalLengths(median=median):
            drawn = f"new texts, half of them above {median:g} words"
        case FileTexts(path=path):
            return f"texts of {path}, which repeat"
    share = scenario.repeated_share
    return f"{drawn}, {share:.0%} of the requests repeat one" if share else drawn


def top_shares(counts: Sequence[float]) -> tuple[float, float]:
    """Shares of requests: of the top task, and of the top tenth of all tasks (at least one)."""
    ordered = sorted(counts, reverse=True)
    total = math.fsum(ordered)
    if total == 0:
        return 0.0, 0.0
    tenth = math.ceil(len(ordered) / 10)
    return ordered[0] / total, math.fsum(ordered[:tenth]) / total


def _cache_hit_share(before: MemoryReport, after: MemoryReport) -> float:
    hits = after.trunk_cache.hits - before.trunk_cache.hits
    asked = hits + after.trunk_cache.misses - before.trunk_cache.misses
    return hits / asked if asked else 0.0


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

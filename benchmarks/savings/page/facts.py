"""Facts derived from the results: arithmetic, and the sentences of the first screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from pydantic import BaseModel

from benchmarks.savings.results import (
    AnyResult,
    FanOutLine,
    ManyPoint,
    ManyTasks,
    MemoryLine,
    Race,
    Racer,
    Round,
    SavedCell,
)
from nunatak_loadtest.report import KeptRun

BUDGET_BYTES = 24 * 2**30
"""Memory of the machine for which the report counts the tasks that fit."""
FEWEST_REQUESTS = 100
"""Fewest requests for a p99, or for the cost of a million requests."""
TOO_FEW = "too few"
POPULARITIES = {"uniform": "all asked equally often", "zipf1": "few asked far more often than most"}
ResultT = TypeVar("ResultT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One number for a reader to remember, and its meaning."""

    number: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All results of a folder, by kind."""

    memory: tuple[MemoryLine, ...]
    saved: tuple[SavedCell, ...]
    races: tuple[Race, ...]
    fan_out: tuple[FanOutLine, ...]
    many: tuple[ManyTasks, ...]
    runs: tuple[KeptRun, ...]
    price_per_hour: float

    def backbones(self) -> list[str]:
        """The backbones with memory lines, in the order of the lines."""
        return list(dict.fromkeys(line.backbone for line in self.memory))

    def lines_of(self, backbone: str) -> list[MemoryLine]:
        """Return the memory lines of a backbone, first the line of our server."""
        its = [line for line in self.memory if line.backbone == backbone]
        return sorted(its, key=lambda line: (not line.is_ours, line.slope_bytes))


def gather(results: Mapping[str, AnyResult], *, price_per_hour: float) -> Facts:
    """Sort results by kind."""
    found = list(results.values())
    return Facts(
        memory=_of(MemoryLine, found),
        saved=_of(SavedCell, found),
        races=_of(Race, found),
        fan_out=_of(FanOutLine, found),
        many=_of(ManyTasks, found),
        runs=_of(KeptRun, found),
        price_per_hour=price_per_hour,
    )


def bytes_at(line: MemoryLine, tasks: int) -> float:
    """Return the memory at a number of tasks: the measured value, or else the line's value."""
    measured = {point.tasks: float(point.pss_bytes) for point in line.points}
    return measured.get(tasks, line.base_bytes + line.slope_bytes * tasks)


def tasks_that_fit(line: MemoryLine, budget_bytes: float = BUDGET_BYTES) -> int:
    """Return the number of tasks that fit a budget, by the line."""
    return max(0, int((budget_bytes - line.base_bytes) / line.slope_bytes))


def crossover(ours: MemoryLine, theirs: MemoryLine) -> float | None:
    """Return the number of tasks from which ours needs less memory; None if there is none."""
    if theirs.slope_bytes <= ours.slope_bytes:
        return None
    return max(0.0, (ours.base_bytes - theirs.base_bytes) / (theirs.slope_bytes - ours.slope_bytes))


def goodput(race: Race) -> dict[str, float]:
    """Return the median goodput of the rounds by title, the best title first."""
    found = {racer.title: median(it.goodput_per_s for it in racer.rounds) for racer in race.racers}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def kept_rounds(racer: Racer) -> list[Round]:
    """Return the rounds in which a rate kept the objective."""
    return [it for it in racer.rounds if it.goodput_per_s > 0]


def is_measured(racer: Racer) -> bool:
    """Return whether each round that kept the objective has enough requests for a p99."""
    kept = kept_rounds(racer)
    return bool(kept) and min(it.requests for it in kept) >= FEWEST_REQUESTS


def seconds_asked(round_: Round) -> float:
    """Return the seconds of a round, from its answers, because hardly any request fails."""
    return round_.requests / round_.goodput_per_s


def per_second(rate: float) -> str:
    """Return a rate as text: three digits below 100, else a whole number."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def cost_per_million(goodput_per_s: float, price_per_hour: float) -> float | None:
    """Return the price of a million requests on a machine with this goodput."""
    return price_per_hour / 3600 / goodput_per_s * 1e6 if goodput_per_s > 0 else None


def headlines(facts: Facts) -> list[Headline]:
    """Return the headlines of the first screen."""
    return [
        *_memory_headlines(facts),
        *_saved_headlines(facts.saved),
        *(headline for race in facts.races for headline in _race_headlines(race)),
        *(headline for many in facts.many for headline in _many_headlines(many)),
        *(_run_headline(run) for run in facts.runs),
    ]


def _memory_headlines(facts: Facts) -> list[Headline]:
    found = list[Headline]()
    for backbone in facts.backbones():
        ours, *others = facts.lines_of(backbone)
        full = [line for line in others if line.system == "full_models"]
        if not ours.is_ours or not full:
            continue
        tasks = ours.points[-1].tasks
        mine, theirs = bytes_at(ours, tasks), bytes_at(full[0], tasks)
        found.append(
            Headline(
                number=f"{theirs / mine:.1f}x less memory",
                text=f"{tasks} tasks on {backbone} take {gigabytes(mine)}; as full models in one "
                f"process they take {gigabytes(theirs)}. By the slopes, 24 GiB hold "
                f"{tasks_that_fit(ours):,} tasks instead of {tasks_that_fit(full[0]):,}.",
            )
        )
    return found


def _saved_headlines(cells: Sequence[SavedCell]) -> list[Headline]:
    if not cells:
        return []
    cell = min(cells, key=lambda it: (-it.num_tasks, abs(it.num_frozen - 9)))
    return [
        Headline(
            number=f"{cell.measured_share:.0%} saved",
            text=f"of the memory of {cell.num_tasks} full {cell.backbone} models by sharing "
            f"{cell.num_frozen} frozen layers, in the running server; the published formula "
            f"says {cell.formula_share:.0%}.",
        )
    ]


def _race_headlines(race: Race) -> list[Headline]:
    rates = goodput(race)
    mine = [racer.title for racer in race.racers if racer.is_ours]
    rivals = {title: rate for title, rate in rates.items() if title not in mine}
    if not mine or not rivals:
        return []
    best, rate = next(iter(rivals.items()))
    if rate <= 0:
        return []
    (racer,) = (it for it in race.racers if it.title == best)
    asked = sum(it.requests for it in racer.rounds)
    doubt = "" if is_measured(racer) else f" (measured on {asked} requests only, so not firm)"
    return [
        Headline(
            number=f"{rates[mine[0]] / rate:.2f}x the throughput",
            text=f"{race.title}: {per_second(rates[mine[0]])} requests/s with 99 of 100 within "
            f"{race.objective_p99_ms:g} ms, the best of the others ({best}) answers "
            f"{per_second(rate)}{doubt}.",
        )
    ]


def _many_headlines(many: ManyTasks) -> list[Headline]:
    """Return the headline of the popularity with the largest loss of throughput."""
    kept = list[tuple[float, ManyPoint, ManyPoint]]()
    for name in dict.fromkeys(point.popularity for point in many.points):
        its = [point for point in many.points if point.popularity == name]
        few, most = its[0], its[-1]
        if few.tasks < most.tasks and few.throughput_per_s:
            kept.append((most.throughput_per_s / few.throughput_per_s, few, most))
    if not kept:
        return []
    share, few, most = min(kept, key=lambda it: it[0])
    return [
        Headline(
            number=f"{most.tasks:,} tasks",
            text=f"in one server of {gigabytes(most.pss_bytes)}, with {share:.0%} of the "
            f"throughput of {few.tasks} tasks ({asked_how(most.popularity)}); it starts in "
            f"{most.start_s:.1f} s.",
        )
    ]


def _run_headline(run: KeptRun) -> Headline:
    report = run.report
    latency = report.overall.latency
    p99 = "no answer" if latency is None else f"p99 {latency.p99_ms:.0f} ms"
    return Headline(
        number=f"{report.overall.requests_per_s:.0f} answers/s",
        text=f"{report.job.scenario.title or report.job.scenario.name}: {p99}, "
        f"{report.overall.failures} of {report.overall.requests} failed; "
        f"{report.memory.saved_share:.0%} of the memory of {len(report.memory.tasks)} full models "
        "saved.",
    )


def asked_how(popularity: str) -> str:
    """Return the name of a popularity in words."""
    return POPULARITIES.get(popularity, popularity)


def gigabytes(count: float) -> str:
    """Return bytes as text, in GB or MB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _of(kind: type[ResultT], results: Sequence[AnyResult]) -> tuple[ResultT, ...]:
    return tuple(result for result in results if isinstance(result, kind))

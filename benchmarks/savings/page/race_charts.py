"""The plots of a race: throughput, latency over load, and latencies at one rate."""
# pyright: reportUnknownMemberType=false
# matplotlib leaves the keyword arguments of its methods untyped.

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.palette import Look, looks_of
from benchmarks.savings.page.canvas import INK, blank, legend_below, milliseconds
from benchmarks.savings.page.facts import (
    FEWEST_REQUESTS,
    goodput,
    kept_rounds,
    per_second,
    seconds_asked,
)
from benchmarks.savings.results import Race, Rate
from nunatak_loadtest.report import QUANTILES


def draw_race(race: Race) -> dict[str, Figure]:
    """Draw the measurements of a race."""
    drawn = {f"throughput-{race.workload}": draw_goodput(race)}
    if any(racer.rates for racer in race.racers):
        drawn[f"latency-over-load-{race.workload}"] = draw_load(race)
    if any(racer.quantiles_ms for racer in race.racers):
        drawn[f"cdf-{race.workload}"] = draw_cdf(race)
    return drawn


def draw_goodput(race: Race) -> Figure:
    """Draw the throughput that keeps the objective, with the lowest and the highest round."""
    rates = goodput(race)
    figure, axes = blank(7.5, 0.45 * len(rates) + 1.5, race.title)
    rounds = {it.title: [turn.goodput_per_s for turn in it.rounds] for it in race.racers}
    looks = dict(zip((it.title for it in race.racers), _looks(race), strict=True))
    titles = list(reversed(rates))
    spread = [
        [rates[it] - min(rounds[it]) for it in titles],
        [max(rounds[it]) - rates[it] for it in titles],
    ]
    colours = [looks[it].colour for it in titles]
    axes.barh(titles, [rates[it] for it in titles], xerr=spread, color=colours, ecolor=INK)
    for row, title in enumerate(titles):
        # SVG drops spaces at the start of a text, so the gap is an offset.
        axes.annotate(
            per_second(rates[title]) if rates[title] > 0 else "0: none of the rates tried",
            (max(rounds[title]), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xlabel(f"requests/s with 99 of 100 within {race.objective_p99_ms:g} ms")
    axes.margins(x=0.12)
    return figure


def draw_load(race: Race) -> Figure:
    """Draw p99 over the offered rate: a point per trial, hollow if it has too few requests."""
    note = f" (hollow: fewer than {FEWEST_REQUESTS} requests)"
    title = f"Latency over load: {race.title}{note if _has_few(race) else ''}"
    figure, axes = blank(7.0, 4.8, title)
    slowest = [race.objective_p99_ms]
    for racer, look in zip(race.racers, _looks(race), strict=True):
        trials = sorted(racer.rates, key=lambda it: it.offered_per_s)
        trials = [it for it in trials if it.p99_ms > 0]
        xs, ys = [it.offered_per_s for it in trials], [it.p99_ms for it in trials]
        axes.plot(xs, ys, lw=1.2, ms=6, color=look.colour, marker=look.marker, label=racer.title)
        for trial in trials:
            if _is_few(race, trial):
                point = trial.offered_per_s, trial.p99_ms
                axes.plot(*point, look.marker, ms=4, mew=0, color="white")
        slowest += ys
    axes.axhline(race.objective_p99_ms, color=INK, lw=1.2, ls="--", label=_objective(race))
    milliseconds(axes.yaxis, min(slowest), max(slowest))
    axes.set_xlim(left=0)
    axes.set_xlabel("offered requests/s (open loop)")
    axes.set_ylabel("p99 latency, ms")
    legend_below(figure)
    return figure


def draw_cdf(race: Race) -> Figure:
    """Draw the latencies of all systems at one common rate."""
    answers = min(len(set(racer.quantiles_ms)) for racer in race.racers if racer.quantiles_ms)
    few = f", {answers} answers of each system" if answers < FEWEST_REQUESTS else ""
    title = f"Latency at {race.common_rate_per_s or 0:g} requests/s{few}: {race.title}"
    figure, axes = blank(7.0, 4.8, title)
    for racer, look in zip(race.racers, _looks(race), strict=True):
        draw_quantiles(axes, racer.quantiles_ms, look, racer.title)
    axes.axvline(race.objective_p99_ms, color=INK, lw=1.2, ls="--", label=_objective(race))
    times = [it for racer in race.racers for it in racer.quantiles_ms]
    label_cdf(axes, [*times, race.objective_p99_ms])
    legend_below(figure)
    return figure


def draw_quantiles(axes: Axes, quantiles_ms: Sequence[float], look: Look, label: str) -> None:
    """Draw a line through the measured latencies, with a mark on each if they are few."""
    # With few answers, several percentiles have one latency. The highest of them counts.
    shares = {ms: percent / 100 for ms, percent in zip(quantiles_ms, QUANTILES, strict=False)}
    if shares:
        axes.plot(
            list(shares),
            list(shares.values()),
            marker=look.marker if len(shares) < FEWEST_REQUESTS else None,
            ms=4,
            lw=1.4,
            color=look.colour,
            label=label,
        )


def label_cdf(axes: Axes, times_ms: Sequence[float]) -> None:
    """Label the axes of latencies and shares."""
    milliseconds(axes.xaxis, min(times_ms), max(times_ms))
    axes.set_xlabel("latency, ms, from the instant the request was due")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1.02)


def _looks(race: Race) -> list[Look]:
    return looks_of([racer.system for racer in race.racers])


def _is_few(race: Race, trial: Rate) -> bool:
    """Return whether a trial as long as a kept round has too few requests for a p99."""
    kept = [it for racer in race.racers for it in kept_rounds(racer)]
    return bool(kept) and trial.answered_per_s * seconds_asked(kept[0]) < FEWEST_REQUESTS


def _has_few(race: Race) -> bool:
    return any(_is_few(race, trial) for racer in race.racers for trial in racer.rates)


def _objective(race: Race) -> str:
    return f"objective: p99 of {race.objective_p99_ms:g} ms"

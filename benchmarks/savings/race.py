"""Races of whole systems, in turns: the highest request rate whose p99 keeps the objective.

One round starts every system once, in shuffled order, alone on its cores. A burst shows the highest
rate of the system. Then the race tries lower and lower rates in the open loop, until a rate keeps
the objective, and at last the mean of this rate and the last failed one. A rate that keeps the
objective in a short trial must also keep it for as many requests as a p99 needs.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.savings.clients import answers, client_of
from benchmarks.savings.results import Rate, Round
from benchmarks.savings.systems import Deployment, Started, System, running
from nunatak_loadtest.generator import LoadClient, drive, drive_open
from nunatak_loadtest.report import LAG_LIMIT_MS, Verdict
from nunatak_loadtest.samples import Latency, Sample, percentile
from nunatak_loadtest.scenario import Poisson, Scenario
from nunatak_loadtest.traffic import Planned, Requests

BURST = 64
"""Requests sent at once to find the highest rate of a system."""
WARM_AFTER_S = 5.0
"""A burst of more seconds needs no earlier burst to warm up."""
STEPS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
"""Shares of the highest rate to try, until one of these rates keeps the objective."""
AGREEMENT, AGREEMENT_BFLOAT16 = 2e-3, 5e-2
"""Largest difference of two systems' probabilities: in float32, and with one in bfloat16."""


class DisagreementError(Exception):
    """Two systems answer differently; a wrong answer has no speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The durations of the trials of a rate."""

    look_s: float
    """Seconds of the first trial of a rate."""
    requests: int
    """Requests of the longer trial of a rate that kept the objective in the first trial."""
    longest_s: float
    """Most seconds of the longer trial, also if it has fewer requests."""

    def seconds_to_believe(self, rate_per_s: float) -> float:
        """Return the seconds of the longer trial of a rate."""
        return min(self.longest_s, max(self.look_s, self.requests / rate_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The results of one system in one round."""

    best: Round
    rates: tuple[Rate, ...]
    common_ms: tuple[float, ...]
    """Response times at the rate that is common to all systems."""


def run_round(
    systems: Sequence[System],
    deployment: Deployment,
    scenario: Scenario,
    effort: Effort,
    *,
    common_rate_per_s: float,
    seed: int,
) -> Mapping[System, Turn]:
    """Measure every system once, in shuffled order.

    Raises:
        DisagreementError: two systems answer differently.
    """
    turns, said = dict[System, Turn](), dict[System, list[list[float]]]()
    for system in random.Random(seed).sample(list(systems), len(systems)):
        with running(system, deployment) as started:
            text = "Where is my parcel, and who can tell me more?"
            said[system] = answers(started, deployment.tasks, text)
            turns[system] = asyncio.run(
                take_turn(started, scenario, effort, common_rate_per_s=common_rate_per_s, seed=seed)
            )
        best = turns[system].best
        found = f"{best.goodput_per_s:.2f}/s, p99 {best.p99_ms:.0f} ms of {best.requests}"
        print(f"  {system}: {found}", flush=True)
    check_agreement(said)
    return turns


def check_agreement(said: Mapping[System, list[list[float]]]) -> None:
    """Raise `DisagreementError` unless all systems give the same probabilities."""
    # The bfloat16 system comes last, so that no system is compared with rounded answers.
    exact_first = sorted(said.items(), key=lambda item: item[0] is System.NUNATAK_BFLOAT16)
    (first, expected), *others = exact_first
    for system, given in others:
        pairs = zip(chain(*expected), chain(*given), strict=True)
        difference = max(abs(a - b) for a, b in pairs)
        is_rounded = system is System.NUNATAK_BFLOAT16
        allowed = AGREEMENT_BFLOAT16 if is_rounded else AGREEMENT
        # `not <=` makes NaN a disagreement, too.
        if not difference <= allowed:
            raise DisagreementError(
                f"{system} and {first} differ by {difference:.2g} in a probability, at most "
                f"{allowed:g} is expected; compare their tasks"
            )


async def take_turn(
    started: Started, scenario: Scenario, effort: Effort, *, common_rate_per_s: float, seed: int
) -> Turn:
    """Find the highest rate that keeps the objective; then measure at the common rate."""
    async with client_of(started) as client:
        tasks = tuple(started.addresses)
        most_per_s = await burst_rate(client, scenario, tasks, seed=seed)
        trials = list[tuple[Rate, Round]]()
        for number, share in enumerate(STEPS):
            rate_per_s = most_per_s * share
            trials.append(
                await try_rate(client, scenario, tasks, effort, rate_per_s, seed=seed + number)
            )
            if trials[-1][0].met:
                break
        if len(trials) > 1 and trials[-1][0].met:
            between = (trials[-1][0].offered_per_s + trials[-2][0].offered_per_s) / 2
            trials.append(
                await try_rate(client, scenario, tasks, effort, between, seed=seed + len(STEPS))
            )
        seconds = effort.seconds_to_believe(common_rate_per_s)
        common = await ask_at(
            client, scenario, tasks, common_rate_per_s, seconds=seconds, seed=seed + 100
        )
    kept = [result for rate, result in trials if rate.met]
    nothing = Round(goodput_per_s=0.0, p50_ms=0.0, p99_ms=0.0, requests=0)
    return Turn(
        best=max(kept, key=lambda it: it.goodput_per_s, default=nothing),
        rates=tuple(rate for rate, _ in trials),
        common_ms=tuple(sorted(it.response_ms for it in common if it.error is None)),
    )


async def burst_rate(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    *,
    seed: int,
    requests: int = BURST,
) -> float:
    """Return the answers per second of a burst of requests, after bursts that warm up."""
    rate = 0.0
    for number in range(3):
        drawn = Requests(scenario, tasks, seed=seed * 1_000 + 500 + number)
        planned = [
            Planned(due_s=0.0, tasks=asked, text=text)
            for asked, text in (drawn.draw() for _ in range(requests))
        ]
        began = time.monotonic()
        await drive_open(client, planned)
        took_s = time.monotonic() - began
        rate = requests / took_s
        if took_s > WARM_AFTER_S:
            break
    return rate


async def try_rate(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    effort: Effort,
    rate_per_s: float,
    *,
    seed: int,
) -> tuple[Rate, Round]:
    """Try a rate for a short time; if the rate keeps the objective, try it for a longer time."""
    look_s, long_s = effort.look_s, effort.seconds_to_believe(rate_per_s)
    found = await hold(client, scenario, tasks, rate_per_s, seconds=look_s, seed=seed)
    if found[0].met and long_s > look_s:
        found = await hold(client, scenario, tasks, rate_per_s, seconds=long_s, seed=seed + 50)
    return found


async def hold(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    rate_per_s: float,
    *,
    seconds: float,
    seed: int,
) -> tuple[Rate, Round]:
    """Send requests at a rate for `seconds`, and compare the results with the objective."""
    samples = await ask_at(client, scenario, tasks, rate_per_s, seconds=seconds, seed=seed)
    latency = Latency.of(it.response_ms for it in samples if it.error is None)
    p50_ms, p99_ms = (latency.p50_ms, latency.p99_ms) if latency else (0.0, 0.0)
    lag_ms = percentile(sorted(it.lag_ms for it in samples), 99) if samples else 0.0
    if lag_ms > LAG_LIMIT_MS:
        print(f"  the generator was {lag_ms:.0f} ms late at {rate_per_s:.0f}/s")
    answered = sum(it.error is None for it in samples)
    rate = Rate(
        offered_per_s=rate_per_s,
        answered_per_s=answered / seconds,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        met=bool(samples) and Verdict.of(samples, scenario.objectives).met,
    )
    best = Round(
        goodput_per_s=rate.answered_per_s, p50_ms=p50_ms, p99_ms=p99_ms, requests=len(samples)
    )
    return rate, best


async def ask_at(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    rate_per_s: float,
    *,
    seconds: float,
    seed: int,
) -> list[Sample]:
    """Send the load of a scenario at a rate for `seconds`; return the samples."""
    changed = scenario.model_copy(update={"arrivals": Poisson(rate_per_s=rate_per_s)})
    return await drive(client, changed, tasks, seed=seed, seconds=seconds)

"""Races of whole systems, in turns: the highest request rate whose p99 keeps the objective.

One round starts every system once, in shuffled order, alone on its cores. A burst shows the highest
rate of the system. Then the race tries lower and lower rates in the open loop, until a rate keeps
the objective, and at last the mean of this rate and the last failed one. A rate that keeps the
objective in a short trial must also keep it for as many requests as a p99 needs.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from benchmarks.harness.makers import PROBE
from benchmarks.harness.open_loop import (
    LAG_LIMIT_MS,
    LoadClient,
    Planned,
    drive_open,
    percentile,
    plan,
)
from benchmarks.harness.rounds import DisagreementError
from benchmarks.savings.clients import answers, client_of
from benchmarks.savings.systems import Deployment, Started, System, running
from nunatak_loadtest.scenarios import Scenario
from nunatak_loadtest.traffic import Requests

ResultT = TypeVar("ResultT")
BURST = 64
"""Requests sent at once to find the highest rate of a system."""
WARM_AFTER_S = 5.0
"""A burst of more seconds needs no earlier burst to warm up."""
STEPS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
"""Shares of the highest rate to try, until one of these rates keeps the objective."""
AGREEMENT, AGREEMENT_ROUNDED = 2e-3, 5e-2
"""Largest difference of two systems' probabilities: in float32, and with one of fewer bits."""


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
        return min(self.longest_s, max(self.look_s, self.requests / rate_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A trial of a rate."""

    offered_per_s: float
    goodput_per_s: float
    p99_ms: float
    requests: int
    is_met: bool


def run_round(
    deployments: Mapping[System, Deployment],
    measure: Callable[[Started], Coroutine[Any, Any, ResultT]],
    *,
    seed: int,
) -> dict[System, ResultT]:
    """Measure every system once, in shuffled order; all must give the same answers."""
    found, said = dict[System, ResultT](), dict[System, list[list[float]]]()
    for system in random.Random(seed).sample(list(deployments), len(deployments)):
        with running(system, deployments[system]) as started:
            said[system] = answers(started, deployments[system].tasks, PROBE[0])
            found[system] = asyncio.run(measure(started))
        print(f"  {system}: {found[system]}", flush=True)
    check_agreement(said)
    return found


def check_agreement(said: Mapping[System, list[list[float]]]) -> None:
    """Raise `DisagreementError` unless all systems give the same probabilities."""
    # Rounded systems come last, so that no system is compared with their answers.
    exact_first = sorted(said.items(), key=lambda item: item[0].is_rounded)
    (first, expected), *others = exact_first
    for system, given in others:
        pairs = zip(chain(*expected), chain(*given), strict=True)
        difference = max(abs(a - b) for a, b in pairs)
        allowed = AGREEMENT_ROUNDED if system.is_rounded else AGREEMENT
        # `not <=` makes NaN a disagreement, too.
        if not difference <= allowed:
            raise DisagreementError(
                f"{system} and {first} differ by {difference:.2g} in a probability, at most "
                f"{allowed:g} is expected; compare their tasks"
            )


async def highest_rate(started: Started, scenario: Scenario, effort: Effort, *, seed: int) -> Rate:
    """Find the highest rate that keeps the objective; a rate of 0 if none that was tried does."""
    async with client_of(started) as client:
        load = Load(client=client, scenario=scenario, tasks=tuple(started.addresses))
        most_per_s = await load.burst(seed)
        trials = list[Rate]()
        for number, share in enumerate(STEPS):
            trials.append(await load.tried(most_per_s * share, effort, seed + number))
            if trials[-1].is_met:
                break
        if len(trials) > 1 and trials[-1].is_met:
            between = (trials[-1].offered_per_s + trials[-2].offered_per_s) / 2
            trials.append(await load.tried(between, effort, seed + len(STEPS)))
    nothing = Rate(offered_per_s=0, goodput_per_s=0, p99_ms=0, requests=0, is_met=False)
    kept = (it for it in trials if it.is_met)
    return max(kept, key=lambda it: it.goodput_per_s, default=nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of a scenario to a running system."""

    client: LoadClient
    scenario: Scenario
    tasks: Sequence[str]

    async def burst(self, seed: int) -> float:
        """Return the answers per second of a burst of requests, after bursts that warm up."""
        rate = 0.0
        for number in range(3):
            drawn = Requests(self.scenario, self.tasks, seed=seed * 1_000 + 500 + number)
            planned = [
                Planned(due_s=0.0, tasks=asked, text=text)
                for asked, text in (drawn.draw() for _ in range(BURST))
            ]
            began = time.monotonic()
            await drive_open(self.client, planned)
            took_s = time.monotonic() - began
            rate = BURST / took_s
            if took_s > WARM_AFTER_S:
                break
        return rate

    async def tried(self, rate_per_s: float, effort: Effort, seed: int) -> Rate:
        """Try a rate for a short time; if the rate keeps the objective, try it for longer."""
        look_s, long_s = effort.look_s, effort.seconds_to_believe(rate_per_s)
        found = await self.held(rate_per_s, look_s, seed)
        if found.is_met and long_s > look_s:
            found = await self.held(rate_per_s, long_s, seed + 50)
        return found

    async def held(self, rate_per_s: float, seconds: float, seed: int) -> Rate:
        """Send requests at a rate for `seconds`, and compare the results with the objective."""
        planned = plan(self.scenario, self.tasks, rate_per_s=rate_per_s, seconds=seconds, seed=seed)
        samples = await drive_open(self.client, planned)
        lag_ms = percentile([it.lag_ms for it in samples], 99) if samples else 0.0
        if lag_ms > LAG_LIMIT_MS:
            print(f"  the generator was {lag_ms:.0f} ms late at {rate_per_s:.0f}/s")
        times_ms = [it.response_ms for it in samples if it.error is None]
        in_time = sum(it <= self.scenario.p99_ms for it in times_ms)
        are_all_answered = bool(samples) and len(times_ms) == len(samples)
        return Rate(
            offered_per_s=rate_per_s,
            goodput_per_s=len(times_ms) / seconds,
            p99_ms=percentile(times_ms, 99) if times_ms else 0.0,
            requests=len(samples),
            is_met=are_all_answered and in_time >= 0.99 * len(samples),
        )

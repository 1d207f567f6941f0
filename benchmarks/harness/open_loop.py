"""Load for the races of servers: open and closed loops on asyncio, and the samples they give.

The load test is made of Locust. Races need what Locust does not give: servers of others with routes
of their own, dozens of trials of a few seconds in one process, and a client so cheap that it can
ask a server for more than the server can answer, on the cores that the server leaves.

Open loop: every request leaves at its due time, also if earlier requests have no answer yet, and
the time of a request runs from its due time. A closed loop asks again after each answer.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from nunatak_client import NunatakClientError
from nunatak_loadtest.scenarios import Scenario
from nunatak_loadtest.traffic import Requests, gaps

LAG_LIMIT_MS = 5.0
"""Limit of the generator's p99 lag. A slower generator would measure itself."""
Request = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A request to tasks about a text; `due_s` is the due time in seconds after the start."""

    due_s: float
    tasks: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request, measured at its sender; its times run from the due time."""

    started_s: float
    response_ms: float
    lag_ms: float
    """From the due time to the sending."""
    error: str | None


class LoadClient(Protocol):
    """Sends one request about a text to tasks.

    Raises a `NunatakClientError` unless all tasks answer.
    """

    async def ask(self, tasks: Sequence[str], text: str) -> None: ...


def plan(
    scenario: Scenario, tasks: Sequence[str], *, rate_per_s: float, seconds: float, seed: int
) -> list[Planned]:
    """All requests of an open loop at a rate; the same arguments give the same plan."""
    requests, planned = Requests(scenario, tasks, seed=seed), list[Planned]()
    for due_s in accumulate(gaps(rate_per_s, scenario.cv, seed=seed)):
        if due_s >= seconds:
            break
        asked, text = requests.draw()
        planned.append(Planned(due_s=due_s, tasks=asked, text=text))
    return planned


async def drive_open(client: LoadClient, planned: Sequence[Planned]) -> list[Sample]:
    """Send every request at its due time and wait for all answers; samples in the plan's order."""
    start_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        sent = list[asyncio.Task[Sample]]()
        for request in planned:
            due_s = start_s + request.due_s
            # Also without a wait the request leaves now, before the next one is looked at.
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            sent.append(group.create_task(_send(client, request.tasks, request.text, due_s)))
    return [task.result() for task in sent]


async def drive_closed(
    client: LoadClient, draw: Callable[[], Request], *, users: int, seconds: float
) -> list[Sample]:
    """Let users ask for `seconds`, each of whom waits for an answer before the next request."""
    end_s, samples = time.monotonic() + seconds, list[Sample]()

    async def use() -> None:
        while (now_s := time.monotonic()) < end_s:
            samples.append(await _send(client, *draw(), now_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(use())
    return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of the values do not exceed."""
    if not values:
        raise ValueError("expected at least one sample, got none; measure for longer")
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


async def _send(client: LoadClient, tasks: Sequence[str], text: str, due_s: float) -> Sample:
    sent_s, error = time.monotonic(), None
    try:
        await client.ask(tasks, text)
    except NunatakClientError as refusal:
        error = refusal.code
    return Sample(
        started_s=due_s,
        response_ms=(time.monotonic() - due_s) * 1000,
        lag_ms=(sent_s - due_s) * 1000,
        error=error,
    )

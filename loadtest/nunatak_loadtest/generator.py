"""The load generator: sends the requests of a scenario and records the outcome of each.

Open loop: every request leaves at its due time, also if earlier requests have no answer yet. The
time of a request runs from its due time. A request that the generator or the network delayed
therefore counts as slow, as for real users. (Tene calls the opposite coordinated omission. MLPerf's
server scenario and wrk2 also count from the due time.)

Closed loop: each user waits for the answer before the next request. A slow server gets fewer
requests, so a closed loop hides a server that stands still. Times run from the sending of a
request.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import httpx

from nunatak_client import AsyncClient, NunatakClientError, Timings
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.scenario import Closed, Scenario
from nunatak_loadtest.traffic import Planned, Requests, plan

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]
USER_SEEDS = 1_000_003
"""Distance between the seeds of users, so that no two users of two runs send the same texts."""


class LoadClient(Protocol):
    """Sends one request about a text to tasks.

    Raises a `NunatakClientError` unless all tasks answer.
    """

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        """Send one request; return the server's timings."""
        ...


class NunatakLoadClient:
    """The Python client without retries: a refusal counts as a refusal.

    The client opens one connection for each open request. A client that waits for a free connection
    would delay requests that are due.
    """

    def __init__(self, server: str, *, timeout_s: float = 60.0) -> None:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = AsyncClient(
            server,
            timeout_s=timeout_s,
            retries=0,
            transport=httpx.AsyncHTTPTransport(limits=unlimited),
        )

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        """Use the task's own route for one task, and one request for several tasks."""
        if len(tasks) == 1:
            return (await self._client.predict(tasks[0], text)).timings
        answer = await self._client.predict_many(text, tasks)
        for result in answer.results:
            result.require()
        return answer.timings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()


async def drive(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    *,
    seed: int,
    seconds: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[Sample]:
    """Send the scenario's load for `seconds` and wait for all answers.

    The steps of a closed loop have their own durations.
    """
    match scenario.arrivals:
        case Closed(users=users, steps=steps):
            stages = [(it.users, float(it.seconds)) for it in steps] or [(users, seconds)]
            sources = [
                Requests(scenario, tasks, seed=seed * USER_SEEDS + number)
                for number in range(max(users for users, _ in stages))
            ]
            return await drive_closed(client, sources, stages, clock=clock, sleep=sleep)
        case _:
            planned = plan(scenario, tasks, seed=seed, seconds=seconds)
            return await drive_open(client, planned, clock=clock, sleep=sleep)


async def drive_open(
    client: LoadClient,
    planned: Sequence[Planned],
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[Sample]:
    """Send every request at its due time and wait for all answers; samples in the plan's order."""
    start_s = clock()
    async with asyncio.TaskGroup() as group:
        sent = list[asyncio.Task[Sample]]()
        for request in planned:
            due_s = start_s + request.due_s
            if (wait_s := due_s - clock()) > 0:
                await sleep(wait_s)
            request_sent = _send(client, request.tasks, request.text, due_s=due_s, clock=clock)
            sent.append(group.create_task(request_sent))
            # Let the request leave now. If the next request is due already, the loop does not
            # sleep.
            await asyncio.sleep(0)
    return [task.result() for task in sent]


async def drive_closed(
    client: LoadClient,
    sources: Sequence[Requests],
    stages: Sequence[tuple[int, float]],
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[Sample]:
    """Let users send requests, each with its own texts; return samples in the order of users.

    Args:
        client: Sends the requests.
        sources: The requests of each user; one source for each user of the largest stage.
        stages: Users and seconds of each stage, one after another.
        clock: Seconds from any start.
        sleep: Waits on that clock.
    """
    start_s = clock()

    async def use(number: int, source: Requests) -> list[Sample]:
        samples = list[Sample]()
        for begin_s, end_s in spells(number, stages):
            if (wait_s := start_s + begin_s - clock()) > 0:
                await sleep(wait_s)
            while (now_s := clock()) < start_s + end_s:
                tasks, text = source.draw()
                samples.append(await _send(client, tasks, text, due_s=now_s, clock=clock))
        return samples

    async with asyncio.TaskGroup() as group:
        users = [group.create_task(use(*it)) for it in enumerate(sources)]
    return [sample for user in users for sample in user.result()]


def spells(user: int, stages: Sequence[tuple[int, float]]) -> Iterator[tuple[float, float]]:
    """Begin and end of a user (from 0), in seconds from the start."""
    begin_s = 0.0
    for users, seconds in stages:
        if user < users:
            yield begin_s, begin_s + seconds
        begin_s += seconds


async def _send(
    client: LoadClient, tasks: Sequence[str], text: str, *, due_s: float, clock: Clock
) -> Sample:
    sent_s = clock()
    error, timings = None, Timings()
    try:
        timings = await client.ask(tasks, text)
    except NunatakClientError as refusal:
        error = refusal.code
    return Sample(
        tasks=tuple(tasks),
        started_s=due_s,
        response_ms=(clock() - due_s) * 1000,
        lag_ms=(sent_s - due_s) * 1000,
        error=error,
        **timings.model_dump(),
    )

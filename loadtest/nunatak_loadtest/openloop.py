"""The open loop: every request leaves when it is due, whatever became of those before.

Users who wait for their answers hide a server that stands still: nobody asks it meanwhile. Here
the time of a request runs from the instant it was due, so a request that the generator or the
network held back counts as slow, as it would for whoever sent it. (Tene calls the omission
coordinated; MLPerf's server scenario and wrk2 count as is done here.)
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from nunatak_client import NunatakClientError
from nunatak_client.results import Timings
from nunatak_loadtest.askers import Asker
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.traffic import Planned

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


async def drive(
    asker: Asker,
    planned: Sequence[Planned],
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[Sample]:
    """Send every request when it is due and wait for all answers; samples in the order of plan."""
    start_s = clock()
    async with asyncio.TaskGroup() as group:
        sent = list[asyncio.Task[Sample]]()
        for request in planned:
            wait_s = start_s + request.due_s - clock()
            if wait_s > 0:
                await sleep(wait_s)
            due_s = start_s + request.due_s
            sent.append(group.create_task(_send(asker, request, due_s=due_s, clock=clock)))
            # Let it leave now: the next ones may be due already, and sleep nobody.
            await asyncio.sleep(0)
    return [task.result() for task in sent]


async def _send(asker: Asker, request: Planned, *, due_s: float, clock: Clock) -> Sample:
    sent_s = clock()
    error, timings = None, Timings()
    try:
        timings = await asker.ask(request.tasks, request.text)
    except NunatakClientError as refusal:
        error = refusal.code
    return Sample(
        tasks=request.tasks,
        started_s=due_s,
        response_ms=(clock() - due_s) * 1000,
        lag_ms=(sent_s - due_s) * 1000,
        error=error,
        **timings.model_dump(),
    )

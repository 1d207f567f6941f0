"""Runs one load test: prepares the server, sends the load, watches the memory, reports."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from nunatak_client import Client
from nunatak_loadtest.askers import Asker, NunatakAsker
from nunatak_loadtest.job import Job
from nunatak_loadtest.locust_process import run_locust
from nunatak_loadtest.memory import MemorySample, MemorySampler, listening_pid
from nunatak_loadtest.openloop import Clock, Sleep, drive
from nunatak_loadtest.report import LoadReport, WarmedUp, build_report
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.scenario import Closed, Scenario
from nunatak_loadtest.steadiness import is_steady
from nunatak_loadtest.traffic import plan, text_check

WARM_UP_SEED = 1_000_003
"""Apart from the run's own, or the warm-up would fill the server's cache with the run's texts."""


def run(
    job: Job, *, pid: int | None = None, html: Path | None = None
) -> tuple[LoadReport, list[Sample]]:
    """Load the server as the scenario says and report, with every request as it went.

    The tasks are preloaded first: what is measured is a server at work, not one at start.

    Args:
        job: What to do.
        pid: The server process, to watch its memory; on this machine it is found by its port.
        html: Where locust writes a report of its own; for closed loops.

    Raises:
        NunatakClientError: the server or a task is not there; nothing was measured.
        LoadTestError: the job or locust failed.
    """
    text_check(job.scenario)  # a broken file must not cost a run
    with Client(job.server) as client:
        for task in job.tasks:
            client.preload(task)
        server, before = client.info(), client.memory()
        samples, watched, warm_up = _measure(job, pid=pid, html=html)
        report = build_report(
            job,
            samples,
            server=server,
            memory=(before, client.memory()),
            watched=watched,
            warm_up=warm_up,
        )
    return report, samples


def _measure(
    job: Job, *, pid: int | None, html: Path | None
) -> tuple[list[Sample], Sequence[MemorySample], WarmedUp]:
    process = pid if pid is not None else listening_pid(job.server)
    with ExitStack() as stack:
        sampler = None
        if process is not None:
            interval_s = job.scenario.memory_interval_s
            sampler = stack.enter_context(MemorySampler(process, interval_s=interval_s))
        if isinstance(job.scenario.arrivals, Closed):
            samples, warm_up = run_locust(job, html=html), WarmedUp()
        else:
            samples, warm_up = asyncio.run(_open_loop(job))
    return samples, sampler.samples if sampler is not None else (), warm_up


async def _open_loop(job: Job) -> tuple[list[Sample], WarmedUp]:
    async with NunatakAsker(job.server) as asker:
        warm_up = await warm(asker, job.scenario, job.tasks)
        planned = plan(
            job.scenario, job.tasks, seed=job.scenario.seed, seconds=job.scenario.duration_s
        )
        return await drive(asker, planned), warm_up


async def warm(
    asker: Asker,
    scenario: Scenario,
    tasks: Sequence[str],
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> WarmedUp:
    """Send the scenario's load in windows until their medians agree, or for as long as it says."""
    rule, medians = scenario.warm_up, list[float | None]()
    while (len(medians) + 1) * rule.window_s <= rule.longest_s:
        seed = WARM_UP_SEED * (scenario.seed + 1) + len(medians)
        planned = plan(scenario, tasks, seed=seed, seconds=rule.window_s)
        window = await drive(asker, planned, clock=clock, sleep=sleep)
        times = [sample.response_ms for sample in window if sample.error is None]
        medians.append(median(times) if times else None)
        if is_steady(medians, tolerance=rule.tolerance):
            return WarmedUp(window_medians_ms=tuple(medians), steady=True)
    return WarmedUp(window_medians_ms=tuple(medians), steady=False if medians else None)

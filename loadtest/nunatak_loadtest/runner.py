"""One load test: prepare the server, send the load, watch the memory, report."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from nunatak_client import Client
from nunatak_contract.errors import NunatakError
from nunatak_loadtest.generator import Clock, LoadClient, NunatakLoadClient, Sleep, drive
from nunatak_loadtest.memory import MemorySample, MemorySampler, listening_pid
from nunatak_loadtest.report import Job, LoadReport, WarmedUp, build_report
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.scenario import Closed, Scenario
from nunatak_loadtest.texts import text_source

STEADY_WINDOWS = 3
WARM_UP_SEED = 1_000_003
"""Seed of the warm-up. With the run's seed, the warm-up would fill the cache with the run's
texts."""


def make_job(scenario: Scenario, *, server: str, tasks: Sequence[str] | None) -> Job:
    """The job of these tasks; without tasks, of the server's tasks in the order of their names.

    Raises:
        NunatakError: `invalid_settings`, the server has fewer tasks than the scenario asks.
        NunatakClientError: the server cannot be reached.
    """
    if not tasks:
        with Client(server) as client:
            tasks = sorted(summary.name for summary in client.tasks())
    wanted = scenario.num_tasks or len(tasks)
    if wanted > len(tasks) or not tasks:
        raise NunatakError(
            "invalid_settings",
            problem=f"scenario {scenario.name!r} asks {max(wanted, 1)} tasks, the server has "
            f"{len(tasks)}; publish more, or ask fewer",
        )
    return Job.checked(server=server, tasks=tuple(tasks[:wanted]), scenario=scenario)


def run(job: Job, *, pid: int | None = None) -> tuple[LoadReport, list[Sample]]:
    """Send the scenario's load to the server; return the report and a sample of every request.

    The tasks are preloaded first: the run measures a server at work, and not its start.

    Args:
        job: The scenario, the tasks and the server.
        pid: The server process, to watch its memory. On this machine the port identifies the
            process.

    Raises:
        NunatakClientError: the server or a task is missing; nothing was measured.
        NunatakError: the job is impossible.
    """
    # Checked before the run: an unreadable file of texts must not waste a run.
    text_source(job.scenario, random.Random(0))  # noqa: S311 - not a secret
    with Client(job.server) as client:
        for task in job.tasks:
            client.preload(task)
        server, before = client.info(), client.memory()
        samples, watched, warm_up = _measure(job, pid=pid)
        report = build_report(
            job,
            samples,
            server=server,
            memory=(before, client.memory()),
            watched=watched,
            warm_up=warm_up,
        )
    return report, samples


def _measure(job: Job, *, pid: int | None) -> tuple[list[Sample], Sequence[MemorySample], WarmedUp]:
    process = pid if pid is not None else listening_pid(job.server)
    with ExitStack() as stack:
        sampler = None
        if process is not None:
            interval_s = job.scenario.memory_interval_s
            sampler = stack.enter_context(MemorySampler(process, interval_s=interval_s))
        samples, warm_up = asyncio.run(_send_load(job))
    return samples, sampler.samples if sampler is not None else (), warm_up


async def _send_load(job: Job) -> tuple[list[Sample], WarmedUp]:
    scenario = job.scenario
    async with NunatakLoadClient(job.server) as asker:
        is_closed = isinstance(scenario.arrivals, Closed)
        warm_up = WarmedUp() if is_closed else await warm(asker, scenario, job.tasks)
        samples = await drive(
            asker, scenario, job.tasks, seed=scenario.seed, seconds=scenario.duration_s
        )
    return samples, warm_up


async def warm(
    asker: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> WarmedUp:
    """Send the scenario's load in windows until their medians agree or the time is over."""
    rule, medians = scenario.warm_up, list[float | None]()
    while (len(medians) + 1) * rule.window_s <= rule.longest_s:
        seed = WARM_UP_SEED * (scenario.seed + 1) + len(medians)
        window = await drive(
            asker, scenario, tasks, seed=seed, seconds=rule.window_s, clock=clock, sleep=sleep
        )
        times = [sample.response_ms for sample in window if sample.error is None]
        medians.append(median(times) if times else None)
        if is_steady(medians, tolerance=rule.tolerance):
            return WarmedUp(window_medians_ms=tuple(medians), steady=True)
    return WarmedUp(window_medians_ms=tuple(medians), steady=False if medians else None)


def is_steady(medians: Sequence[float | None], *, tolerance: float) -> bool:
    """Whether the last three windows agree: the highest median is within `tolerance` of the lowest.

    A window without answers has no median, and agrees with no other window.
    """
    last = [median for median in medians[-STEADY_WINDOWS:] if median is not None]
    return len(last) == STEADY_WINDOWS and max(last) <= (1 + tolerance) * min(last)

"""One load test: prepare the server, send the load, watch the memory, report."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from secrets import randbits
from statistics import median
from typing import Final

from nunatak_client import Client, MemoryReport, PermissionDeniedError
from nunatak_contract.enums import HeadKind, Reads
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
SEED_BITS: Final = 31
LOAD_DEADLINE_S: Final = 120.0
"""Longest time until a task that is not in memory has answered its first text."""
FIRST_TEXT: Final = "first text"


def make_job(scenario: Scenario, *, server: str, tasks: Sequence[str] | None) -> Job:
    """The job of these tasks; without tasks, of the server's tasks in the order of their names.

    A load test sends single texts, so only tasks that read single texts take part.

    Raises:
        NunatakError: `invalid_settings`, too few tasks take part, a given task reads no single
            text, or the file of texts cannot be read.
        NunatakClientError: the server cannot be reached, or a task is missing.
    """
    # Checked first: an unreadable file of texts must not waste a run.
    text_source(scenario, random.Random(0))  # noqa: S311 - not a secret
    with Client(server) as client:
        chosen, left_out = _given(client, tasks) if tasks else _found(client)
    wanted = scenario.num_tasks or len(chosen)
    if wanted > len(chosen) or not chosen:
        raise NunatakError(
            "invalid_settings",
            problem=f"scenario {scenario.name!r} asks {max(wanted, 1)} tasks, but {len(chosen)} "
            "tasks read a single text; publish more, or ask fewer",
        )
    return Job.checked(
        server=server,
        tasks=tuple(chosen[:wanted]),
        left_out=tuple(left_out),
        scenario=scenario,
        seed=randbits(SEED_BITS) if scenario.seed is None else scenario.seed,
    )


def _found(client: Client) -> tuple[list[str], list[str]]:
    """Return the server's tasks that read single texts, and its other tasks."""
    tasks = sorted(client.tasks(), key=lambda task: task.name)
    needs = {task.name: needed(task.head, task.reads) for task in tasks}
    chosen = [name for name, other in needs.items() if other is None]
    return chosen, [name for name, other in needs.items() if other is not None]


def _given(client: Client, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    for name in tasks:
        task = client.task(name)
        other = needed(task.head, task.reads)
        if other is not None:
            raise NunatakError(
                "invalid_settings",
                problem=f"task {name!r} reads {other}, but a load test sends single texts; leave "
                "the task out",
            )
    return list(tasks), []


def needed(head: str, reads: Reads | None) -> str | None:
    """Return what a task reads in place of a single text; None if a single text is enough."""
    match head, reads:
        case HeadKind.QUESTION_ANSWERING, _:
            return "a question with its context"
        case HeadKind.RANKING, _:
            return "a query with its documents"
        case _, Reads.PAIR:
            return "two texts"
        case _:
            return None


def run(job: Job, *, pid: int | None = None) -> tuple[LoadReport, list[Sample]]:
    """Send the scenario's load to the server; return the report and a sample of every request.

    Each task answers one text first, so that it is in memory: the run measures a server at work,
    and not its start. A key needs the scopes `predict` and `read`; without `read` for all tasks,
    the report has no memory of the server.

    Args:
        job: The scenario, the tasks and the server.
        pid: The server process, to watch its memory. On this machine the port identifies the
            process.

    Raises:
        NunatakClientError: the server or a task is missing; nothing was measured.
        NunatakError: the job is impossible.
    """
    with Client(job.server) as client:
        for task in job.tasks:
            client.predict(task, FIRST_TEXT, deadline_s=LOAD_DEADLINE_S)
        server, before = client.info(), _memory_of(client)
        samples, watched, warm_up = _measure(job, pid=pid)
        after = _memory_of(client)
    report = build_report(
        job,
        samples,
        server=server,
        memory=None if before is None or after is None else (before, after),
        watched=watched,
        warm_up=warm_up,
    )
    return report, samples


def _memory_of(client: Client) -> MemoryReport | None:
    """Return the server's memory report; None if the key may not read it."""
    try:
        return client.memory()
    except PermissionDeniedError:
        return None


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
    async with NunatakLoadClient(job.server) as client:
        is_closed = isinstance(scenario.arrivals, Closed)
        warm_up = (
            WarmedUp() if is_closed else await warm(client, scenario, job.tasks, seed=job.seed)
        )
        samples = await drive(
            client, scenario, job.tasks, seed=job.seed, seconds=scenario.duration_s
        )
    return samples, warm_up


async def warm(
    client: LoadClient,
    scenario: Scenario,
    tasks: Sequence[str],
    *,
    seed: int = 0,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> WarmedUp:
    """Send the scenario's load in windows until their medians agree or the time is over."""
    rule, medians = scenario.warm_up, list[float | None]()
    while (len(medians) + 1) * rule.window_s <= rule.longest_s:
        own_seed = WARM_UP_SEED * (seed + 1) + len(medians)
        window = await drive(
            client, scenario, tasks, seed=own_seed, seconds=rule.window_s, clock=clock, sleep=sleep
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

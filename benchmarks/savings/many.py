"""Very many tasks in one server: throughput, memory and start-up over the number of tasks.

The server first has memory for all tasks. Then the server has memory for a part of the tasks, and
requests for the others load them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.savings.clients import client_of
from benchmarks.savings.race import ask_at, burst_rate
from benchmarks.savings.results import ManyPoint
from benchmarks.savings.systems import Deployment, Started, System, running
from nunatak_client import AsyncClient
from nunatak_loadtest.samples import Latency
from nunatak_loadtest.scenario import NormalLengths, Popularity, Scenario, Uniform, Zipf
from nunatak_registry import Registry
from nunatak_server.residency.memory import size_in_memory

POPULARITIES: dict[str, Popularity] = {"uniform": Uniform(), "zipf1": Zipf(exponent=1.0)}
LOADERS = 4
"""Loads that are requested at once; the server has two load threads."""
HALF = 0.5
"""Latencies are measured at this share of the throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A server after its loads, with the number of loaded tasks."""

    tasks: int
    pss_bytes: int
    seconds: float


def measure_many(
    deployment: Deployment, counts: Sequence[int], *, rounds: int, seconds: float, burst: int
) -> tuple[list[ManyPoint], dict[str, list[list[float]]]]:
    """Load all tasks step by step; then measure the first `counts` tasks in turns.

    Returns the points, and by popularity the throughput of every round at each count.
    """
    began = time.monotonic()
    with running(System.NUNATAK, deployment) as started:
        start_s = time.monotonic() - began
        filled = [fill(started, deployment.tasks[:count]) for count in counts]
        rates: dict[str, list[list[float]]] = {name: [] for name in POPULARITIES}
        points = list[ManyPoint]()
        for name, popularity in POPULARITIES.items():
            scenario = Scenario(
                name=name, popularity=popularity, texts=NormalLengths(), duration_s=seconds
            )
            # The server must run batches of many sizes before it knows the efficient sizes.
            _throughput(started, scenario, deployment.tasks, seed=rounds, burst=burst)
            for number in range(rounds):
                rates[name].append(
                    [_throughput(
                        started, scenario, deployment.tasks[:count], seed=number, burst=burst
                    )
                     for count in counts]
                )  # fmt: skip
            for place, full in enumerate(filled):
                rate = sorted(it[place] for it in rates[name])[rounds // 2]
                points.append(_point(started, scenario, deployment, full, rate, start_s))
    return points, rates


def measure_cold(
    deployment: Deployment, *, room: int, seconds: float, burst: int
) -> list[ManyPoint]:
    """Measure all tasks on a server with memory for `room` of them; tasks have equal size."""
    with Registry.open(deployment.registry) as registry:
        num_bytes = size_in_memory(registry.resolve(deployment.tasks[0]), dtype=torch.float32)
    options = (*deployment.options, "--task-memory-bytes", str(room * num_bytes))
    narrow = replace(deployment, options=options)
    points = list[ManyPoint]()
    for name, popularity in POPULARITIES.items():
        began = time.monotonic()
        with running(System.NUNATAK, narrow) as started:
            start_s = time.monotonic() - began
            full = fill(started, narrow.tasks[:room])
            scenario = Scenario(
                name=name, popularity=popularity, texts=NormalLengths(), duration_s=seconds
            )
            rate = _throughput(started, scenario, narrow.tasks, seed=0, burst=burst)
            everything = replace(full, tasks=len(narrow.tasks), pss_bytes=started.memory()[0])
            points.append(_point(started, scenario, narrow, everything, rate, start_s))
    return points


def start_seconds(deployment: Deployment) -> float:
    """Return the seconds from the start of a server until it accepts requests."""
    began = time.monotonic()
    with running(System.NUNATAK, deployment):
        return time.monotonic() - began


def fill(started: Started, tasks: Sequence[str]) -> Filled:
    """Load the tasks through HTTP."""
    (address,) = set(started.addresses.values())

    async def load_all() -> None:
        async with AsyncClient(address, timeout_s=120) as client:
            waiting = iter(tasks)

            async def load() -> None:
                for task in waiting:
                    await client.preload(task)

            await asyncio.gather(*(load() for _ in range(LOADERS)))

    began = time.monotonic()
    asyncio.run(load_all())
    seconds = time.monotonic() - began
    return Filled(tasks=len(tasks), pss_bytes=started.memory()[0], seconds=seconds)


def _throughput(
    started: Started, scenario: Scenario, tasks: Sequence[str], *, seed: int, burst: int
) -> float:
    async def ask() -> float:
        async with client_of(started) as client:
            return await burst_rate(client, scenario, tasks, seed=seed, requests=burst)

    return asyncio.run(ask())


def _point(
    started: Started,
    scenario: Scenario,
    deployment: Deployment,
    full: Filled,
    rate_per_s: float,
    start_s: float,
) -> ManyPoint:
    tasks = deployment.tasks[: full.tasks]
    before = _loads(started)

    async def ask() -> Latency | None:
        async with client_of(started) as client:
            samples = await ask_at(
                client, scenario, tasks, HALF * rate_per_s, seconds=scenario.duration_s, seed=7
            )
            loaded.append((_loads(started) - before) / max(len(samples), 1))
            answered.extend(it.response_ms for it in samples if it.error is None)
            return Latency.of(answered)

    loaded, answered = list[float](), list[float]()
    latency = asyncio.run(ask())
    return ManyPoint(
        tasks=full.tasks,
        popularity=scenario.name,
        throughput_per_s=rate_per_s,
        p50_ms=latency.p50_ms if latency else 0.0,
        p99_ms=latency.p99_ms if latency else 0.0,
        cold_share=loaded[0],
        pss_bytes=full.pss_bytes,
        start_s=start_s,
        fill_s=full.seconds,
        requests=len(answered),
        seconds=scenario.duration_s,
    )


def _loads(started: Started) -> float:
    (address,) = set(started.addresses.values())
    text = httpx.get(f"{address}/metrics").raise_for_status().text
    families = text_string_to_metric_families(text)
    (loads,) = [family for family in families if family.name == "nunatak_loads"]
    return sum(it.value for it in loads.samples if it.name.endswith("_total"))

"""Memory of whole systems over the number of their tasks, measured outside their processes."""

import asyncio
import time
from collections.abc import Callable, Sequence

from benchmarks.harness.makers import PROBE
from benchmarks.savings.clients import client_of
from benchmarks.savings.systems import Deployment, Started, System, running
from nunatak_client import Client
from nunatak_contract.enums import Reads

WITHOUT_CACHE = ("--trunk-cache-bytes", "0")
CountOf = Callable[[Started], int]
"""Counts the bytes of a running system."""


def pss_bytes(
    system: System,
    deployment: Deployment,
    counts: Sequence[int],
    *,
    settling_s: float,
    count_of: CountOf = Started.pss,
) -> list[int]:
    """Return the PSS, or another count, at each of `counts` tasks, after one request to each task.

    Our server loads its tasks one after another. A baseline is started again for each count.
    """
    if system.is_ours:
        return _of_one_server(deployment, counts, settling_s, count_of)
    points = list[int]()
    for first in map(deployment.first, counts):
        with running(system, first) as started:
            points.append(_asked(started, first.tasks, settling_s, count_of))
    return points


def runtime_bytes(system: System, tiny: Deployment, *, settling_s: float) -> int:
    """Return the bytes of a system almost without weights: interpreter, libraries, threads."""
    weights = (tiny.backbone / "model.safetensors").stat().st_size
    with running(system, tiny) as started:
        return _asked(started, tiny.tasks, settling_s, Started.alone) - weights


def _of_one_server(
    deployment: Deployment, counts: Sequence[int], settling_s: float, count_of: CountOf
) -> list[int]:
    points = list[int]()
    with running(System.NUNATAK, deployment) as started:
        (address,) = set(started.addresses.values())
        with Client(address) as client:
            done = 0
            for count in counts:
                tasks = deployment.tasks[done:count]
                for task in tasks:
                    client.preload(task)
                    is_pair = client.task(task).reads is Reads.PAIR
                    client.predict(task, (PROBE[0], PROBE[0]) if is_pair else PROBE[0])
                points.append(_settled(started, settling_s, count_of))
                done = count
    return points


def _asked(started: Started, tasks: Sequence[str], settling_s: float, count_of: CountOf) -> int:
    """Ask each task once, and return the bytes of the system."""

    async def ask() -> None:
        async with client_of(started) as client:
            for task in tasks:
                await client.ask([task], PROBE[0])

    asyncio.run(ask())
    return _settled(started, settling_s, count_of)


def _settled(started: Started, settling_s: float, count_of: CountOf) -> int:
    # Our server returns memory freed by loads some seconds later. Every system gets this time.
    time.sleep(settling_s)
    return count_of(started)

"""Fan-out over HTTP: one request for T tasks, compared with T requests for one task each."""

import random
import time
from collections.abc import Sequence

from benchmarks.savings.systems import Deployment, System, running
from nunatak_client import Client
from nunatak_loadtest.scenario import NormalLengths, Scenario
from nunatak_loadtest.texts import TextSource, text_source

SCENARIO = Scenario(name="fanout", texts=NormalLengths(mean=32, deviation=0))


def speed_ups(deployment: Deployment, counts: Sequence[int], *, rounds: int) -> list[list[float]]:
    """Return by round, for each T, the time of T single requests divided by that of one request.

    All texts are new.
    """
    texts = text_source(SCENARIO, random.Random(0))
    with running(System.NUNATAK, deployment) as started:
        (address,) = set(started.addresses.values())
        with Client(address, timeout_s=120) as client:
            for task in deployment.tasks:
                client.preload(task)
            _round(client, deployment.tasks, counts, texts)  # warms up
            return [_round(client, deployment.tasks, counts, texts) for _ in range(rounds)]


def bound(num_tasks: int, num_layers: int, own_layers: int) -> float:
    """Return the speed-up if only layers cost time, each the same: T L / ((L - k) + T k)."""
    return num_tasks * num_layers / (num_layers - own_layers + num_tasks * own_layers)


def _round(
    client: Client, tasks: Sequence[str], counts: Sequence[int], texts: TextSource
) -> list[float]:
    ratios = list[float]()
    for count in counts:
        one, other = texts.draw(), texts.draw()
        began = time.perf_counter()
        client.predict_many(one, tasks[:count])
        together = time.perf_counter() - began
        began = time.perf_counter()
        for number, task in enumerate(tasks[:count]):
            # Each request has its own text: for equal texts, a cache would share the trunk, too.
            client.predict(task, f"{other} {number}")
        ratios.append((time.perf_counter() - began) / together)
    return ratios

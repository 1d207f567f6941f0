"""The balancer: what HAProxy with the shipped file adds, and how throughput grows with replicas.

The forward pass of these replicas only sleeps, so that proxy, callers and replicas find free cores:
a real forward on the same two cores would be measured in its place. The request and its answer are
those of one text and one task. TLS is included.

`latency`: a caller asks directly and through HAProxy in turns, at half of the rate at which a
replica is busy all the time.

`scaling`: two callers for each replica ask without pause, and a replica answers one request at a
time. The throughput of N replicas is compared with N times the throughput of one, also through
HAProxy. Nothing but an uneven division makes a request wait longer than two forward passes, so the
largest and the smallest throughput have the same p99, which is recorded too. The control divides
the requests at random.

    PYTHONPATH=tests python -m benchmarks.server.balancer
"""

import argparse
import http.client
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from doubles.backbones import save_tiny_backbone
from doubles.processes import server_process
from doubles.proxies import HOST, haproxy
from doubles.shared_ports import shared_port
from doubles.tasks import publish_tiny_task
from nunatak_loadtest.samples import percentile
from nunatak_model import load_backbone
from nunatak_registry import Registry

SLEEP_S: Final = 0.01
LONG_SLEEP_S: Final = 0.1
CALLERS_PER_REPLICA: Final = 2
SIZES: Final = {1: None, 2: ">= 0.95", 8: ">= 0.9", 16: ">= 0.85"}
"""Numbers of replicas, with the goal of each."""
CONTROLLED: Final = 8
"""The number of replicas of the control."""
PATH: Final = "/v1/tasks/tone/predict"
MANY_PATH: Final = "/v1/predict"
ASKED: Final = {"inputs": "where is my parcel?"}
BODY: Final = json.dumps(ASKED).encode()
MANY_BODY: Final = json.dumps({**ASKED, "tasks": ["tone"]}).encode()
HEADERS: Final = {"content-type": "application/json", "host": HOST}
SLEEPING: Final = """
import sys, time
from nunatak_cli.main import app
from nunatak_server.engine.compute import BatchCompute

compute = sys.modules[BatchCompute.__module__]
run, known = compute.forward, {}


def sleep(backbone, rows, **options):
    time.sleep(SECONDS)
    branches = tuple(row.branch for row in rows)
    if branches not in known:
        known[branches] = run(backbone, rows, **options)
    return known[branches]


compute.forward = sleep
app(["serve"])
"""
"""A server whose forward passes sleep, and repeat the logits of the first one."""


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=5)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--requests", type=int, default=400, help="of each kind in a round")
    parser.add_argument("--seconds", type=float, default=15.0, help="of `scaling`, for each size")
    options, sheet = open_sheet(parser)
    for part in options.parts:
        PARTS[part](sheet, options)


def latency(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the added latency."""
    p50, p99 = list[float](), list[float]()
    with both() as (direct, proxied):
        for _ in range(sheet.rounds + 1):
            took = rounds_of(direct, proxied, options.requests)
            for found, quantile in ((p50, 50), (p99, 99)):
                here, there = (1000 * percentile(sorted(it), quantile) for it in took)
                found.append(there - here)
    # The first round warms up.
    unit = "ms more than without HAProxy, with TLS, at half load"
    sheet.record("cluster.haproxy.added_p50_ms", p50[1:], unit=unit, goal="<= 1")
    sheet.record("cluster.haproxy.added_p99_ms", p99[1:], unit=unit, goal="<= 3")


def rounds_of(
    direct: Callable[[], float], proxied: Callable[[], float], num_requests: int
) -> tuple[list[float], list[float]]:
    """Ask in turns, with a pause as long as a forward pass after each request."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(num_requests):
        for seconds, ask in zip(took, (direct, proxied), strict=True):
            seconds.append(ask())
            time.sleep(SLEEP_S)
    return took


def sleeping(seconds: float) -> str:
    """Return the program of a server whose forward passes take this long."""
    return SLEEPING.replace("SECONDS", f"{seconds:g}")


@contextmanager
def both() -> Generator[tuple[Callable[[], float], Callable[[], float]]]:
    """Yield the calls that ask directly and through HAProxy; each returns its seconds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        make_tone(folder)
        servers = [
            stack.enter_context(
                server_process(
                    registry=folder / "registry",
                    backbone=folder / "backbone",
                    script=sleeping(SLEEP_S),
                    access_log=False,
                )
            )
            for _ in range(2)
        ]
        places = [it.address.removeprefix("http://") for it in servers]
        client = stack.enter_context(haproxy(folder / "proxy", *places))
        trusted = ssl.create_default_context(cafile=folder / "proxy" / "tls.crt")
        host, _, port = places[0].partition(":")
        yield (
            caller(http.client.HTTPConnection(host, int(port))),
            caller(http.client.HTTPSConnection(host, client.base_url.port, context=trusted)),
        )


def make_tone(folder: Path) -> None:
    """Publish one task of a tiny backbone."""
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    with Registry.open(folder / "registry") as registry:
        publish_tiny_task(registry, backbone)


def scaling(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the throughput of N replicas over N times the throughput of one."""
    rates, waits, at_random = dict[int, float](), dict[int, float](), 0.0
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name, replicas(Path(name), size) as places:
            rates[size], waits[size] = divided(Path(name) / "proxy", places, options.seconds)
            if size == CONTROLLED:
                folder = Path(name) / "control"
                at_random, _ = divided(folder, places, options.seconds, changed=randomly)
    unit = "of N times the throughput of one replica, two callers each, a sleeping engine"
    for size, goal in SIZES.items():
        if goal is not None:
            share = rates[size] / size / rates[1]
            sheet.record(f"cluster.scaling.n{size}", [share], unit=unit, goal=goal)
        unit_p99 = f"ms, {size} replicas, forward passes of {1000 * LONG_SLEEP_S:g} ms"
        sheet.record(f"cluster.scaling.p99_ms.n{size}", [1000 * waits[size]], unit=unit_p99)
    share = at_random / CONTROLLED / rates[1]
    name, unit = f"cluster.scaling.n{CONTROLLED}.random", f"{unit}; divided at random (control)"
    sheet.record(name, [share], unit=unit, goal="<= 0.9")


@contextmanager
def replicas(folder: Path, size: int) -> Generator[Sequence[str]]:
    """Yield the own addresses of the processes of a fleet, each with one request at a time."""
    make_tone(folder)
    registry = folder / "registry"
    with shared_port(
        registry,
        folder / "backbone",
        processes=size,
        script=sleeping(LONG_SLEEP_S),
        max_batch_rows=1,
    ) as fleet:
        if size == 1:
            yield [fleet.server.address.removeprefix("http://")]
            return
        with Registry.open(registry) as opened:
            listed = opened.replicas.listing().replicas
        yield [f"127.0.0.1:{it.address.rpartition(':')[2]}" for it in listed]


def divided(
    folder: Path, places: Sequence[str], seconds: float, *, changed: Callable[[str], str] = str
) -> tuple[float, float]:
    """Return requests per second and the p99 of their seconds, through HAProxy."""
    took, is_over = list[float](), threading.Event()
    with haproxy(folder, *places, changed=changed) as client:
        trusted = ssl.create_default_context(cafile=folder / "tls.crt")
        port = client.base_url.port

        def ask_on() -> None:
            ask = caller(
                http.client.HTTPSConnection("127.0.0.1", port, context=trusted),
                path=MANY_PATH,
                body=MANY_BODY,
            )
            while not is_over.is_set():
                took.append(ask())

        callers = [
            threading.Thread(target=ask_on) for _ in range(CALLERS_PER_REPLICA * len(places))
        ]
        for thread in callers:
            thread.start()
        # The first requests load the task.
        time.sleep(seconds / 5)
        took.clear()
        time.sleep(seconds)
        found = sorted(took)
        is_over.set()
        for thread in callers:
            thread.join()
    return len(found) / seconds, percentile(found, 99)


def randomly(text: str) -> str:
    """Return the shipped file with requests divided at random: a negative control."""
    return text.replace("balance leastconn", "balance random(1)")


def caller(
    connection: http.client.HTTPConnection, *, path: str = PATH, body: bytes = BODY
) -> Callable[[], float]:
    """Return a call that asks on one connection."""

    def ask() -> float:
        started = time.perf_counter()
        connection.request("POST", path, body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.OK:
            raise SystemExit(f"the server refused: {answer.status}")
        return time.perf_counter() - started

    return ask


PARTS = {"latency": latency, "scaling": scaling}


if __name__ == "__main__":
    main()

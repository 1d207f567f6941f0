"""The balancer: the latency that HAProxy with the shipped file adds, TLS included.

Callers ask two replicas directly and through HAProxy in turns, at half of the rate at which the
replicas are busy all the time. The forward pass of these replicas only sleeps, so that proxy,
callers and replicas find free cores: a real forward on the same two cores would be measured in its
place. The request and its answer are those of one text and one task.

    PYTHONPATH=tests python -m benchmarks.server.balancer
"""

import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness.recording import figures_parser, open_sheet
from doubles.backbones import save_tiny_backbone
from doubles.processes import server_process
from doubles.proxies import HOST, haproxy
from doubles.tasks import publish_tiny_task
from nunatak_loadtest.samples import percentile
from nunatak_model import load_backbone
from nunatak_registry import Registry

SLEEP_S: Final = 0.01
PATH: Final = "/v1/tasks/tone/predict"
BODY: Final = json.dumps({"inputs": "where is my parcel?"}).encode()
HEADERS: Final = {"content-type": "application/json", "host": HOST}
SLEEPING: Final = f"""
import sys, time
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.serving import serve
from nunatak_server.settings import ServerSettings

compute = sys.modules[BatchCompute.__module__]
run, known = compute.forward, {{}}


def sleep(backbone, rows, **options):
    time.sleep({SLEEP_S})
    branches = tuple(row.branch for row in rows)
    if branches not in known:
        known[branches] = run(backbone, rows, **options)
    return known[branches]


compute.forward = sleep
serve(ServerSettings(), announce=lambda address: print(address, flush=True))
"""
"""A server whose forward passes sleep, and repeat the logits of the first one."""


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=7)
    parser.add_argument("--requests", type=int, default=1000, help="of each kind in a round")
    options, sheet = open_sheet(parser)
    p50, p99 = list[float](), list[float]()
    with asking() as (direct, proxied):
        for _ in range(sheet.rounds + 1):
            took = rounds_of(direct, proxied, options.requests)
            for found, quantile in ((p50, 50), (p99, 99)):
                here, there = (1000 * percentile(seconds, quantile) for seconds in took)
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


@contextmanager
def asking() -> Generator[tuple[Callable[[], float], Callable[[], float]]]:
    """Yield the calls that ask directly and through HAProxy; each returns its seconds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
        registry = stack.enter_context(Registry.open(folder / "registry"))
        publish_tiny_task(registry, backbone)
        servers = [
            stack.enter_context(
                server_process(
                    registry=folder / "registry", backbone=folder / "backbone", script=SLEEPING
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


def caller(connection: http.client.HTTPConnection) -> Callable[[], float]:
    """Return a call that asks on one connection."""

    def ask() -> float:
        started = time.perf_counter()
        connection.request("POST", PATH, BODY, HEADERS)
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.OK:
            raise SystemExit(f"the server refused: {answer.status}")
        return time.perf_counter() - started

    return ask


if __name__ == "__main__":
    main()

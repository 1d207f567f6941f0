"""Ray: what the ingress of Ray Serve adds, and a sweep whose nodes are killed.

`latency`: a caller asks a server directly and a replica on Ray Serve, in turns, with a pause after
each request. Both are the same server with the same tiny backbone, whose forward pass takes less
than a millisecond. The ingress of Ray Serve is HAProxy, as the documents advise, and then Ray's
proxy in Python, which is Ray's default. Ray's own processes share the two cores.

`node`: one of the two nodes that hold a replica each is killed under load. A failed request is sent
again, at most twice, as the client does. Requests that fail at first are counted too.

`head`: the same for the head, whose state is in Redis. Another head starts after ten seconds.

`sweep`: 24 training runs on a cluster of four working nodes, three of which are killed in turn. A
run is lost if its record differs from the record of the same run alone in one process; a record
holds the losses and the scores of every epoch in full precision. `tests/integration/cluster` states
the same law.

    PYTHONPATH=tests python -m benchmarks.server.on_ray
"""

import argparse
import http.client
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import torch
from pydantic import JsonValue

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.server.balancer import ASKED, PATH, caller, make_tone
from doubles.clusters import ray_nodes
from doubles.processes import server_process
from doubles.proxies import free_port
from doubles.sweeps import toy_folder, toy_runs
from nunatak_cluster.control import RUNNING, down, places_of, status, up
from nunatak_cluster.runs import OnRay
from nunatak_cluster.serving import BackboneSettings
from nunatak_cluster.session import joined
from nunatak_loadtest.samples import percentile
from nunatak_training.sweeps import OneByOne, RunContext

LOOPBACK: Final = "127.0.0.1"
PAUSE_S: Final = 0.005
TIMEOUT_S: Final = 10.0
TRIES: Final = 3
CALLERS: Final = 4
CALM_S: Final = 5.0
WATCHED_S: Final = 20.0
HEADLESS_S: Final = 10.0
WATCHED_WITH_NEW_HEAD_S: Final = 100.0
"""Longer than the minute after which nodes without a head end."""
WARM_UP: Final = 100
NUM_NODES: Final = 4
NUM_RUNS: Final = 24
EPOCHS: Final = 100


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=5)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--requests", type=int, default=400, help="of each kind in a round")
    options, sheet = open_sheet(parser)
    for part in options.parts:
        PARTS[part](sheet, options)


def latency(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the p50 and the p99 of the latency that each ingress adds."""
    for has_haproxy, name, goal in ((True, "", "<= 2.5"), (False, "python_proxy.", None)):
        p50, p99 = added_latency(
            has_haproxy=has_haproxy, rounds=sheet.rounds, requests=options.requests
        )
        ingress = "HAProxy of Ray" if has_haproxy else "proxy of Ray in Python"
        unit = f"ms more than the same server without Ray, {ingress}"
        sheet.record(f"cluster.ray.{name}added_p50_ms", p50, unit=unit, goal=goal)
        sheet.record(f"cluster.ray.{name}added_p99_ms", p99, unit=unit)


def added_latency(
    *, has_haproxy: bool, rounds: int, requests: int
) -> tuple[list[float], list[float]]:
    """Return the p50 and the p99 of the added latency of each round, in milliseconds."""
    p50, p99 = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tone(folder)
        registry, backbone = folder / "registry", folder / "backbone"
        with (
            server_process(registry=registry, backbone=backbone, access_log=False) as server,
            ray_nodes(head_cpus=2, has_haproxy=has_haproxy),
            joined("ray"),
        ):
            direct = int(server.address.rpartition(":")[2])
            port = serve_on_ray(folder, replicas=1)
            asks = [caller(http.client.HTTPConnection(LOOPBACK, it)) for it in (direct, port)]
            for _ in range(WARM_UP):
                for ask in asks:
                    ask()
            for _ in range(rounds):
                took: tuple[list[float], list[float]] = ([], [])
                for _ in range(requests):
                    for seconds, ask in zip(took, asks, strict=True):
                        seconds.append(ask())
                        time.sleep(PAUSE_S)
                for found, quantile in ((p50, 50), (p99, 99)):
                    here, there = (1000 * percentile(sorted(it), quantile) for it in took)
                    found.append(there - here)
            down()
    return p50, p99


def node(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the requests that a killed node costs."""
    del options
    with tempfile.TemporaryDirectory() as name, ray_nodes(head_cpus=0) as nodes:
        doomed, _ = nodes.add(), nodes.add()
        with joined("ray"):
            port = serve_on_ray(Path(name), replicas=2)
        watch(sheet, "node", port, kill=partial(nodes.kill, doomed))


def head(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the requests that a killed head costs, until another head has taken over.

    All nodes of this cluster are on one machine, where only Ray's proxies in Python can share a
    port.
    """
    del options
    with (
        tempfile.TemporaryDirectory() as name,
        redis_server(Path(name)) as redis,
        ray_nodes(head_cpus=0, has_haproxy=False, redis=redis) as nodes,
    ):
        for _ in range(2):
            nodes.add()
        with joined("ray"):
            port = serve_on_ray(Path(name), replicas=2)

        def replace_head() -> None:
            nodes.kill_head()
            time.sleep(HEADLESS_S)
            nodes.start_head()

        watch(sheet, "head", port, kill=replace_head, watched_s=WATCHED_WITH_NEW_HEAD_S)
        with joined("ray"):
            if [it.status for it in status()] != [RUNNING]:
                raise SystemExit(f"after the new head: {status()}")


@contextmanager
def redis_server(folder: Path) -> Generator[str]:
    """Run a Redis of the system's packages; yield its address."""
    binary, port = shutil.which("redis-server"), free_port()
    if binary is None:
        raise SystemExit("this part needs redis-server: apt-get install redis-server")
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(folder), "--save", ""]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)  # noqa: S603 - from PATH
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        process.kill()
        process.wait()


def watch(
    sheet: Sheet,
    killed: str,
    port: int,
    *,
    kill: Callable[[], None],
    watched_s: float = WATCHED_S,
) -> None:
    """Record what a kill costs the callers of a port.

    Raises:
        SystemExit: two answers about one text differ.
    """
    with asking(port) as asked:
        time.sleep(CALM_S)
        killed_at = time.monotonic()
        kill()
        time.sleep(watched_s - (time.monotonic() - killed_at))
    after = [it for it in asked if it.ended > killed_at]
    if len({it.answer for it in asked if it.answer}) != 1:
        raise SystemExit("two answers about one text differ")
    unit = f"of {len(after)} requests in the {watched_s:g} s after a {killed} was killed"
    lost = sum(it.answer is None for it in after)
    sheet.record(f"cluster.ray.{killed}.lost", [lost], unit=f"lost {unit}", goal="<= 0")
    first = [it for it in after if it.failures]
    sheet.record(f"cluster.ray.{killed}.retried", [len(first)], unit=f"sent again {unit}")
    last = max((it.ended - killed_at for it in first), default=0.0)
    sheet.record(f"cluster.ray.{killed}.errors_for_s", [last], unit="s", goal="<= 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: its end, its failed tries, and its answer if there is one."""

    ended: float
    failures: int
    answer: bytes | None


@contextmanager
def asking(port: int) -> Generator[list[Asked]]:
    """Ask the same question from several threads during the block; yield what they found."""
    found, is_over = list[Asked](), threading.Event()

    def ask_on() -> None:
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=TIMEOUT_S) as client:
            while not is_over.is_set():
                tries = [_answer(client)]
                while tries[-1] is None and len(tries) < TRIES:
                    time.sleep(PAUSE_S * 2 ** len(tries))
                    tries.append(_answer(client))
                failures = sum(it is None for it in tries)
                asked = Asked(ended=time.monotonic(), failures=failures, answer=tries[-1])
                found.append(asked)

    threads = [threading.Thread(target=ask_on) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _answer(client: httpx.Client) -> bytes | None:
    """Return the outputs of one request, or None if it fails."""
    try:
        answer = client.post(PATH, json=ASKED)
    except httpx.TransportError:
        return None
    return str(answer.json()["outputs"]).encode() if answer.is_success else None


def serve_on_ray(folder: Path, *, replicas: int) -> int:
    """Serve one task of a tiny backbone on the joined cluster, and return the port."""
    if not (folder / "registry").exists():
        make_tone(folder)
    backbone, port = str(folder / "backbone"), free_port()
    (place,) = places_of([backbone]).values()
    settings: dict[str, JsonValue] = {
        "host": LOOPBACK,
        "registry": str(folder / "registry"),
        "backbone": backbone,
        "access_log": False,
        "compute_threads": 1,
    }
    application = BackboneSettings(settings=settings, min_replicas=replicas, max_replicas=replicas)
    up([(place, application)], host=LOOPBACK, port=port)
    return port


def sweep(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the runs that differ from runs alone."""
    del options
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe: JsonValue = {"epochs": EPOCHS, "max_length": 32}
        runs = toy_runs(toy_folder(folder), seeds=list(range(NUM_RUNS)), recipe=recipe)
        # Sums of another number of threads have other last bits.
        torch.set_num_threads(1)
        alone = {it.run.digest: it.outcome for it in OneByOne(RunContext())(runs)}
        found = dict[str, object]()
        # This process joins first, because it must not join through a node that will be killed.
        with ray_nodes(head_cpus=0) as nodes, joined("ray"):
            left = [nodes.add() for _ in range(NUM_NODES)]
            for record in OnRay(checkpoints=folder / "results")(runs):
                found[record.run.digest] = record.outcome
                if len(found) % NUM_NODES == NUM_NODES // 2 and len(left) > 1:
                    nodes.kill(left.pop(0))
    num_lost = sum(found.get(digest) != outcome for digest, outcome in alone.items())
    unit = f"of {NUM_RUNS} runs differ from runs alone, {NUM_NODES - len(left)} nodes killed"
    sheet.record("cluster.sweep.lost", [num_lost], unit=unit, goal="<= 0")


PARTS = {"latency": latency, "node": node, "head": head, "sweep": sweep}


if __name__ == "__main__":
    main()

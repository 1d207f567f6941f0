"""Ray: what the ingress of Ray Serve adds, and a sweep whose nodes are killed.

`latency`: a caller asks a server directly and a replica on Ray Serve through Ray's HTTP proxy, in
turns, with a pause after each request. Both are the same server with the same tiny backbone, whose
forward pass takes less than a millisecond. Ray's own processes share the two cores.

`sweep`: 24 training runs on a cluster of four working nodes, three of which are killed in turn. A
run is lost if its record differs from the record of the same run alone in one process; a record
holds the losses and the scores of every epoch in full precision. `tests/integration/cluster` states
the same law.

    PYTHONPATH=tests python -m benchmarks.server.on_ray
"""

import argparse
import http.client
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.server.balancer import caller, make_tone
from doubles.clusters import ray_nodes
from doubles.processes import server_process
from doubles.proxies import free_port
from doubles.sweeps import toy_folder, toy_runs
from nunatak_cluster.control import down, places_of, up
from nunatak_cluster.runs import OnRay
from nunatak_cluster.serving import BackboneSettings
from nunatak_cluster.session import joined
from nunatak_loadtest.samples import percentile
from nunatak_training.sweeps import OneByOne, RunContext

LOOPBACK: Final = "127.0.0.1"
PAUSE_S: Final = 0.005
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
    """Record the p50 and the p99 of the added latency."""
    p50, p99 = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        make_tone(folder)
        registry, backbone = folder / "registry", str(folder / "backbone")
        (place,) = places_of([backbone]).values()
        settings = BackboneSettings(
            settings={
                "host": LOOPBACK,
                "registry": str(registry),
                "backbone": backbone,
                "access_log": False,
                "compute_threads": 1,
            }
        )
        with (
            server_process(
                registry=registry, backbone=Path(backbone), access_log=False, compute_threads=1
            ) as server,
            ray_nodes(head_cpus=2),
            joined("ray"),
        ):
            up([(place, settings)], host=LOOPBACK, port=port)
            direct = int(server.address.rpartition(":")[2])
            asks = [caller(http.client.HTTPConnection(LOOPBACK, it)) for it in (direct, port)]
            for _ in range(WARM_UP):
                for ask in asks:
                    ask()
            for _ in range(sheet.rounds):
                took: tuple[list[float], list[float]] = ([], [])
                for _ in range(options.requests):
                    for seconds, ask in zip(took, asks, strict=True):
                        seconds.append(ask())
                        time.sleep(PAUSE_S)
                for found, quantile in ((p50, 50), (p99, 99)):
                    here, there = (1000 * percentile(sorted(it), quantile) for it in took)
                    found.append(there - here)
            down()
    unit = "ms more than the same server without Ray"
    sheet.record("cluster.ray.added_p50_ms", p50, unit=unit, goal="<= 2.5")
    sheet.record("cluster.ray.added_p99_ms", p99, unit=unit)


def sweep(sheet: Sheet, options: argparse.Namespace) -> None:
    """Record the runs that differ from runs alone."""
    del options
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = {"epochs": EPOCHS, "max_length": 32}
        runs = toy_runs(toy_folder(folder), seeds=list(range(NUM_RUNS)), recipe=recipe)
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


PARTS = {"latency": latency, "sweep": sweep}


if __name__ == "__main__":
    main()

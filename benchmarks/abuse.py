"""Abuses a real server process: bad requests by the thousand, and slow clients beside normal ones.

A bad request counts as wrong if it was taken for a good one, answered by a failure of the server,
or left hanging; so does a server that answers differently afterwards. The long form of
test_bad_input.py and test_slow_clients.py in tests/integration/server:

    PYTHONPATH=tests python benchmarks/abuse.py
"""

import argparse
import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from recording import FIGURES, record

from doubles.backbones import save_tiny_backbone
from doubles.processes import SCRIPT, ServerProcess, server_process
from doubles.raw_request import GOOD_BODY, PREDICT
from doubles.raw_requests import corpus
from doubles.raw_sockets import send_all
from doubles.slow_clients import normal_traffic, slow_clients
from doubles.tasks import publish_tiny_task
from nunatak_model import load_backbone
from nunatak_registry import Registry

RECEIVE_S = 2
LIMIT_S = 30.0
NUM_SLOW = 200
AT_ONCE = 8
SEED = 2026


def main() -> None:
    """Run both campaigns and record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--normal", type=int, default=5000, help="requests beside slow clients")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    options = parser.parse_args()
    command = (
        "PYTHONPATH=tests python benchmarks/abuse.py "
        f"--mutations {options.mutations} --normal {options.normal}"
    )
    with served(receive_timeout_s=RECEIVE_S, keep_alive_s=RECEIVE_S) as server:
        sent, wrong = asyncio.run(send_bad_input(server, num_mutations=options.mutations))
        record(
            "server.badinput.wrong",
            [wrong],
            unit=f"of {sent} requests",
            goal="<= 0",
            command=command,
            file=options.figures,
        )
    # At the deadlines as they come: shorter ones cut off normal clients of a busy machine, too.
    with served() as server:
        failed = asyncio.run(be_slow(server.address, num_requests=options.normal))
        record(
            "server.slowclients.failed",
            [failed],
            unit=f"of {options.normal} requests beside {NUM_SLOW} slow clients",
            goal="<= 0",
            command=command,
            file=options.figures,
        )


@contextmanager
def served(**settings: object) -> Generator[ServerProcess]:
    """A server process with one tiny task."""
    with TemporaryDirectory() as name:
        registry, folder = Path(name) / "registry", Path(name) / "backbone"
        backbone = save_tiny_backbone(folder)
        with Registry.open(registry) as opened:
            publish_tiny_task(opened, load_backbone(backbone))
        with server_process(
            registry=registry, backbone=backbone, script=SCRIPT, log=None, **settings
        ) as running:
            yield running


async def send_bad_input(server: ServerProcess, *, num_mutations: int) -> tuple[int, int]:
    """Send the corpus; return how many requests it has, and how much went wrong."""
    before = answer_of(server.address)
    requests = corpus(seed=SEED, num_mutations=num_mutations)
    received = await send_all(server.address, requests, limit_s=LIMIT_S)
    faults = [f"{it.fault}: {it.request.name}: {it.data[:200]!r}" for it in received if it.fault]
    if server.process.poll() is not None or answer_of(server.address) != before:
        faults.append("the server died or answers differently")
    print(*faults, sep="\n")
    print(f"seed {SEED}: {len(requests)} bad requests, {len(faults)} faults", flush=True)
    return len(requests), len(faults)


async def be_slow(address: str, *, num_requests: int) -> int:
    """Ask as normal clients do beside slow ones, and alone; return how many requests failed."""
    alone = await normal_traffic(address, num_requests=num_requests // 10, at_once=AT_ONCE)
    async with slow_clients(address, NUM_SLOW) as tasks:
        beside = await normal_traffic(address, num_requests=num_requests, at_once=AT_ONCE)
        num_slow = sum(not task.done() for task in tasks)
    print(
        f"{beside.answered} answered and {beside.failed} failed beside {num_slow} slow clients; "
        f"slowest {beside.slowest_s:.3f} s, alone {alone.slowest_s:.3f} s",
        flush=True,
    )
    return beside.failed


def answer_of(address: str) -> object:
    """What the server says to a good request."""
    headers = {"content-type": "application/json"}
    return httpx.post(address + PREDICT, content=GOOD_BODY, headers=headers, timeout=30).json()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

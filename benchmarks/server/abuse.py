"""Abuses a real server process: thousands of bad requests, and slow clients among normal clients.

A bad request counts as wrong if the server accepts the request, answers with a failure of its own,
or never answers. A server that gives other answers afterwards counts as wrong, too. Requests that
the schema allows or forbids go to a server without keys and to a server with keys; an answer that
contradicts the schema counts as wrong.

This is the long form of test_bad_input.py, test_refusals.py and test_slow_clients.py in
tests/integration/server:

    PYTHONPATH=tests python -m benchmarks.server.abuse

Slow clients run in their own process, so that normal clients wait only for the server.
"""

import asyncio
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from schemathesis import Case
from schemathesis.core.failures import FailureGroup

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import interleave, ratios
from doubles.access import add_key
from doubles.backbones import save_tiny_backbone
from doubles.bad_requests import corpus
from doubles.processes import SCRIPT, server_process
from doubles.raw_request import GOOD_BODY, PREDICT, send_all
from doubles.schema_cases import TRIALS, Target
from doubles.slow_clients import Tally, normal_traffic, slow_process
from doubles.tasks import publish_tiny_task
from nunatak_model import load_backbone
from nunatak_registry import Registry

RECEIVE_S = 2
LIMIT_S = 30.0
NUM_SLOW = 200
AT_ONCE = 8
SEED = 2026


def main() -> None:
    """Run all campaigns and record them."""
    parser = figures_parser(__doc__, rounds=3)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=60, help="by schema, of each operation")
    # A part must last longer than the deadlines, so that slow clients are cut off and reconnect.
    parser.add_argument("--normal", type=int, default=10_000, help="requests of a part of a round")
    options, sheet = open_sheet(parser)
    with served(receive_timeout_s=RECEIVE_S, keep_alive_s=RECEIVE_S) as address:
        sent, wrong = asyncio.run(send_bad_input(address, num_mutations=options.mutations))
    sheet.record("server.badinput.wrong", [wrong], unit=f"of {sent} requests", goal="<= 0")
    with TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        operator = add_key(keys, "operator")
        with served() as address:
            sent, wrong = send_by_schema(address, {}, num_examples=options.examples)
        with served(api_keys_file=keys) as address:
            counts = send_by_schema(address, operator, num_examples=options.examples)
    sent, wrong = sent + counts[0], wrong + counts[1]
    sheet.record("server.schemainput.wrong", [wrong], unit=f"of {sent} requests", goal="<= 0")
    # With the default deadlines: shorter ones also cut off normal clients of a busy machine.
    with served() as address:
        be_slow(address, sheet, num_requests=options.normal)


@contextmanager
def served(**settings: object) -> Generator[str]:
    """Run a server process with one tiny task; yield its address."""
    with TemporaryDirectory() as name:
        registry, folder = Path(name) / "registry", Path(name) / "backbone"
        backbone = save_tiny_backbone(folder)
        with Registry.open(registry) as opened:
            publish_tiny_task(opened, load_backbone(backbone))
        with server_process(
            registry=registry, backbone=backbone, script=SCRIPT, log=Path(os.devnull), **settings
        ) as running:
            yield running.address


async def send_bad_input(address: str, *, num_mutations: int) -> tuple[int, int]:
    """Send the corpus; return the number of its requests and the number of faults."""
    before = answer_of(address)
    requests = corpus(seed=SEED, num_mutations=num_mutations)
    received = await send_all(address, requests, limit_s=LIMIT_S)
    faults = [f"{it.fault}: {it.request.name}: {it.data[:200]!r}" for it in received if it.fault]
    if not still_answers(address, before):
        faults.append("the server died or answers differently")
    print(*faults, sep="\n")
    print(f"seed {SEED}: {len(requests)} bad requests, {len(faults)} faults", flush=True)
    return len(requests), len(faults)


def send_by_schema(
    address: str, headers: Mapping[str, str], *, num_examples: int
) -> tuple[int, int]:
    """Send requests that the schema allows or forbids; return their number and the faults' number.

    `headers` hold the key of the caller.
    """
    target = Target(address=address, headers=headers)
    before = answer_of(address, headers)
    num_sent, faults = 0, list[str]()

    def try_one(case: Case[Any]) -> None:
        nonlocal num_sent
        num_sent += 1
        try:
            target.check(case, limit_s=LIMIT_S)
        except (FailureGroup, OSError) as error:
            faults.append(f"{error!s:.2000}")

    for trial in TRIALS:
        trial.each(try_one, num_examples=num_examples)
        if not still_answers(address, before, headers):
            faults.append(f"the server died or answers differently after {trial}")
            break
    print(*faults, sep="\n")
    print(f"{num_sent} requests by the schema, {len(faults)} faults", flush=True)
    return num_sent, len(faults)


def be_slow(address: str, sheet: Sheet, *, num_requests: int) -> None:
    """Measure normal clients with and without slow clients, in turns; record the difference."""
    next_to_slow = list[Tally]()

    def ask() -> Tally:
        tally = asyncio.run(normal_traffic(address, num_requests=num_requests, at_once=AT_ONCE))
        for failure in tally.failures:
            print(failure, flush=True)
        return tally

    def ask_next_to_slow() -> float:
        with slow_process(address, NUM_SLOW):
            next_to_slow.append(ask())
        return p99_s(next_to_slow[-1])

    # The names are parts of the identifiers of figures.
    times = interleave({"alone": lambda: p99_s(ask()), "beside": ask_next_to_slow}, sheet.rounds)
    num_asked = sum(len(it.seconds) for it in next_to_slow)
    sheet.record(
        "server.slowclients.failed",
        [sum(it.failed for it in next_to_slow)],
        unit=f"of {num_asked} requests next to {NUM_SLOW} slow clients",
        goal="<= 0",
    )
    for kind, seconds in times.items():
        samples = [1000 * one for one in seconds]
        sheet.record(f"server.slowclients.{kind}_p99_ms", samples, unit="ms")
    sheet.record(
        "server.slowclients.p99_ratio",
        ratios(times, "beside", "alone"),
        unit=f"p99 next to {NUM_SLOW} slow clients over p99 alone",
        goal="<= 2",
    )


def p99_s(tally: Tally) -> float:
    """Return the 99th percentile of the seconds."""
    return quantiles(tally.seconds, n=100)[-1]


def still_answers(address: str, expected: object, headers: Mapping[str, str] | None = None) -> bool:
    """Return whether the server still gives the same answer to a good request."""
    try:
        return answer_of(address, headers) == expected
    except httpx.HTTPError:
        return False


def answer_of(address: str, headers: Mapping[str, str] | None = None) -> object:
    """Return the server's answer to a good request."""
    sent = {"content-type": "application/json", **(headers or {})}
    return httpx.post(address + PREDICT, content=GOOD_BODY, headers=sent, timeout=30).json()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

"""Contention: a noisy task next to quiet ones, and more load than the server can answer.

The tasks have one top layer on the embedded backbone. Clients send over real HTTP in an open loop,
and no cache holds the texts. Compared parts run in turns within each round, in another order each
time. The noisy client is a process with its own connections, so that quiet clients wait only for
the server.

The ten slowest of a thousand requests decide a p99; shorter parts, or a slower machine, leave the
p99 to chance. The server has its own cores, and clients have the others. Otherwise the noisy client
would also take CPU time from the server. Clients read only the status and the length of each
answer, so that they cost little CPU time.
"""

import asyncio
import gc
import itertools
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from http.client import OK, TOO_MANY_REQUESTS
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import uvloop

from benchmarks.harness.makers import publish
from benchmarks.harness.open_loop import Planned, Sample, drive_closed, drive_open, percentile, plan
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.harness.rounds import ratios
from benchmarks.savings.systems import cores_of, keep_off, pinned
from demo.server_process import ServerProcess
from nunatak_client import ApiError, ConnectionFailedError, InvalidResponseError
from nunatak_loadtest.scenarios import Scenario
from nunatak_loadtest.traffic import Requests
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry

LENGTH = re.compile(rb"content-length: (\d+)")
REFUSED = "refused"
"""The code of samples that the server answered with 429."""
ResultT = TypeVar("ResultT")


class RawClient:
    """One client with as many connections as are in use at once; each request asks one task."""

    def __init__(self, address: str, *, deadline_ms: int) -> None:
        self._address = urlsplit(address)
        self._deadline_ms = deadline_ms
        self._idle = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        (task,) = tasks
        head = await self._head_of_answer(request_of(task, text, self._deadline_ms))
        status = int(head[9:12])
        if status == TOO_MANY_REQUESTS:
            raise ApiError(code=REFUSED, status=TOO_MANY_REQUESTS, detail="no room")
        if status != OK:
            raise InvalidResponseError(f"the server answered {status}")

    async def _head_of_answer(self, request: bytes) -> bytes:
        """Send a request; return the head when the whole answer has arrived."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            host, port = self._address.hostname, self._address.port
            reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionFailedError(f"closed before the answer: {error}") from error
        self._idle.append((reader, writer))
        return head

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection[1].close()


def run_smoothly(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a load in a fast event loop, without garbage collection."""
    gc.collect()
    # Pauses of the garbage collection would count as pauses of the server.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.enable()


def request_of(task: str, text: str, deadline_ms: int) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    head = (
        f"POST /v1/tasks/{task}/predict HTTP/1.1\r\nhost: benchmark\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-deadline-ms: {deadline_ms}\r\n\r\n"
    )
    return head.encode() + body


QUIET = tuple(f"quiet-{index}" for index in range(9))
QUIET_SHARES, NOISE = (0.3, 0.1), 2.0
"""Shares of the server's highest rate: of all quiet tasks together, and of the noisy task. The
highest rate is measured in batches; one short text alone costs two to three times as much."""
OVERLOAD = 3.0
AT_ONCE = 32
HEAD_START_S = 1.0
"""Time for two clients to get ready to send."""
NO_DEADLINE_MS, DEADLINE_MS = 60_000, 30_000
TEXTS = Scenario(name="contention", words=14, sigma=0)
"""16 tokens, with the special tokens."""
SEEDS = itertools.count(1)
"""Seeds of texts. Each seed gives new texts, so that no cache holds them."""


def main() -> None:
    parser = figures_parser(__doc__, rounds=4, parts=PARTS)
    parser.add_argument("--seconds", type=float, default=15, help="of each part of a round")
    parser.add_argument("--cores", default="0", help="of the server, such as 0,1; `any`: no pin")
    options, sheet = open_sheet(parser)
    cores = cores_of(options.cores)
    keep_off(cores)
    backbone = load_backbone(DEFAULT_BACKBONE)
    names = ["noisy", *QUIET]
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        for seed, name in enumerate(names):
            publish(registry, backbone, name, seed)
        for part in options.parts:
            log = Path(folder) / "server.log"
            with ServerProcess(folder, log=log, under=pinned((), cores)) as server:
                for name in names:
                    saturate(server.url, [name], seconds=0.5, at_once=2)
                PARTS[part](server.url, sheet, options.seconds)


def fairness(address: str, sheet: Sheet, seconds: float) -> None:
    """Record the p99 of quiet tasks next to a noisy task at twice the highest rate.

    The noisy client ignores every refusal. The figures are ratios to the p99 of the quiet tasks
    alone.
    """
    name = "server.fairness"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        other.submit(time.perf_counter).result()
        for share in QUIET_SHARES:
            rounds = [
                fairness_round(address, share, seconds, number, other)
                for number in range(sheet.rounds)
            ]
            suffix = "" if share == QUIET_SHARES[0] else f".quiet{100 * share:.0f}"
            times = {it: [found[it] for found in rounds] for it in ("alone", "beside")}
            for kind, samples in times.items():
                sheet.record(f"{name}.{kind}_p99_ms{suffix}", samples, unit="ms")
            over, unit = ratios(times, "beside", "alone"), "p99 over p99 alone"
            unit = f"{unit}, quiet tasks at {share:.0%} of the peak"
            sheet.record(f"{name}.p99_ratio{suffix}", over, unit=unit, goal="<= 2")


def fairness_round(
    address: str, share: float, seconds: float, number: int, other: Executor
) -> dict[str, float]:
    """Return the p99 in ms of quiet tasks alone, and beside the noisy client."""
    peak = saturate(address, ["noisy"], seconds=seconds / 4)
    quiet = poisson(QUIET, share * peak, seconds)
    noise = poisson(["noisy"], NOISE * peak, seconds)
    print(f"{peak:.0f}/s at most, {len(quiet)} quiet requests")
    found = dict[str, float]()
    for kind in ("alone", "beside") if number % 2 else ("beside", "alone"):
        samples = send_next_to(address, quiet, noise if kind == "beside" else [], other)
        check(samples)
        found[kind] = p99_ms(samples)
    return found


def send_next_to(
    address: str, quiet: Sequence[Planned], noise: Sequence[Planned], other: Executor
) -> list[Sample]:
    """Send both loads at once, from two processes; return the samples of the quiet tasks."""
    start_s = time.monotonic() + HEAD_START_S
    flood = other.submit(send, address, noise, start_s=start_s)
    samples = send(address, quiet, start_s=start_s)
    if noise:
        print(f"  of {len(noise)} that were due {outcomes(flood.result())} to the noisy task")
    return samples


def overload(address: str, sheet: Sheet, seconds: float) -> None:
    """Record the rate of answers in time, and the time of refusals, at three times the peak."""
    shares, refusals_ms = list[float](), list[float]()
    for _ in range(sheet.rounds):
        before = saturate(address, QUIET, seconds=seconds)
        planned = poisson(QUIET, OVERLOAD * before, 2 * seconds)
        samples = send(address, planned, deadline_ms=DEADLINE_MS)
        # The queue fills during the first half, and is full in the second.
        late = [it for it, due in zip(samples, planned, strict=True) if seconds <= due.due_s]
        # The mean of before and after, because the speed of the machine may change meanwhile.
        peak = (before + saturate(address, QUIET, seconds=seconds)) / 2
        good = sum(it.error is None and it.response_ms <= DEADLINE_MS for it in late)
        shares.append(good / seconds / peak)
        refused = [it for it in late if it.error == REFUSED]
        refusals_ms += [p99_ms(refused)] if refused else []
        lag_ms = percentile([it.lag_ms for it in late], 99)
        print(
            f"{before:.0f}/s at most before, {peak:.0f}/s in the mean with after; "
            f"{outcomes(late)}; the client was {lag_ms:.0f} ms late (p99)"
        )
    sheet.record("server.overload.goodput_ratio", shares, unit="of the peak", goal=">= 0.9")
    sheet.record("server.overload.refusal_ms", refusals_ms, unit="ms, p99 of 429", goal="<= 50")


def poisson(tasks: Sequence[str], per_s: float, seconds: float) -> list[Planned]:
    """Plan `per_s` requests per second at random times, equally for all tasks."""
    return plan(TEXTS, tasks, rate_per_s=per_s, seconds=seconds, seed=next(SEEDS))


def send(
    address: str,
    planned: Sequence[Planned],
    *,
    deadline_ms: int = NO_DEADLINE_MS,
    start_s: float = 0.0,
) -> list[Sample]:
    """Send requests as one client when they are due; `start_s` is a time of `time.monotonic`."""

    async def ask() -> list[Sample]:
        async with RawClient(address, deadline_ms=deadline_ms) as client:
            await asyncio.sleep(max(0.0, start_s - time.monotonic()))
            return await drive_open(client, planned)

    return run_smoothly(ask())


def saturate(
    address: str, tasks: Sequence[str], *, seconds: float, at_once: int = AT_ONCE
) -> float:
    """Return the answers per second with `at_once` requests of all tasks always in progress."""
    draw = Requests(TEXTS, tasks, seed=next(SEEDS)).draw

    async def ask() -> list[Sample]:
        async with RawClient(address, deadline_ms=NO_DEADLINE_MS) as client:
            return await drive_closed(client, draw, users=at_once, seconds=seconds)

    samples = run_smoothly(ask())
    end_s = min(it.started_s for it in samples) + seconds
    in_time = [it for it in samples if it.started_s + it.response_ms / 1000 < end_s]
    return sum(it.error is None for it in in_time) / seconds


def p99_ms(samples: Sequence[Sample]) -> float:
    return percentile([it.response_ms for it in samples], 99)


def check(samples: Iterable[Sample]) -> None:
    failed = [it for it in samples if it.error is not None]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed, the first with {failed[0].error}")


def outcomes(samples: Iterable[Sample]) -> str:
    counts = Counter(it.error or "answered" for it in samples)
    return ", ".join(f"{count} x {outcome}" for outcome, count in sorted(counts.items()))


PARTS = {"fairness": fairness, "overload": overload}

if __name__ == "__main__":
    main()

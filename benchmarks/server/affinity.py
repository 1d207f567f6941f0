"""Affinity: how often a request finds its task in memory, by the routing of the shipped file.

Four stand-ins for replicas each remember 3,000 of 10,000 tasks and forget the least recently used
one. A stand-in computes nothing, because two cores cannot run four servers at the rate that this
question needs; a cold task takes the time of a load. HAProxy is the real one with the shipped file,
and in the control with random routing. The popularity of tasks follows Zipf's law with exponent 1.
Before the count, every task is asked once, and then some by their popularity.

    PYTHONPATH=tests python -m benchmarks.server.affinity
"""

import asyncio
import random
import ssl
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import OK, HTTPSConnection
from itertools import accumulate
from pathlib import Path
from typing import Final

from benchmarks.harness.recording import figures_parser, open_sheet
from doubles.proxies import HOST, haproxy

NUM_TASKS: Final = 10_000
NUM_REPLICAS: Final = 4
ROOM: Final = 3000
LOAD_S: Final = 0.005
CALLERS: Final = 8
BODY: Final = b'{"inputs": "hi"}'
HEADERS: Final = {"content-type": "application/json", "host": HOST}
PATHS: Final = [f"/v1/tasks/task-{index}/predict" for index in range(NUM_TASKS)]
AFFINITY: Final = "balance hash path,field(4,/),field(1,@),field(1,:)"


@dataclass(slots=True)
class StandIn:
    """A replica that only remembers tasks."""

    held: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    num_asked: int = 0
    num_cold: int = 0
    port: int = 0

    async def start(self) -> None:
        """Listen at a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                path = head.split(" ", 2)[1]
                if path.startswith("/v1/tasks/"):
                    await reader.readexactly(len(BODY))
                    await self._use(path.split("/")[3])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _use(self, task: str) -> None:
        self.num_asked += 1
        if task in self.held:
            self.held.move_to_end(task)
            return
        self.num_cold += 1
        await asyncio.sleep(LOAD_S)
        self.held[task] = None
        if len(self.held) > ROOM:
            self.held.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The result of one routing."""

    cold_share: float
    busiest: float
    """Requests of the busiest replica, as a multiple of the mean."""


def main() -> None:
    """Measure and record."""
    parser = figures_parser(__doc__, rounds=1)
    parser.add_argument("--warm-up", type=int, default=20_000, help="requests before the count")
    parser.add_argument("--requests", type=int, default=30_000, help="counted requests")
    options, sheet = open_sheet(parser)
    kinds: dict[str, Callable[[str], str]] = {"affinity": str, "random": at_random}
    found = {name: list[Routed]() for name in kinds}
    for seed in range(sheet.rounds):
        for name, changed in kinds.items():
            found[name].append(
                routed(changed, seed=seed, warm_up=options.warm_up, requests=options.requests)
            )
    for name, rounds in found.items():
        shares = [it.cold_share for it in rounds]
        sheet.record(f"cluster.affinity.cold_share.{name}", shares, unit="of the requests")
        busiest = [it.busiest for it in rounds]
        unit = "requests of the busiest replica over the mean"
        sheet.record(f"cluster.affinity.busiest.{name}", busiest, unit=unit)
    pairs = zip(found["affinity"], found["random"], strict=True)
    ratios = [ours.cold_share / theirs.cold_share for ours, theirs in pairs]
    unit = "of the cold requests of random routing"
    sheet.record("cluster.affinity.cold_ratio", ratios, unit=unit, goal="<= 0.25")


def at_random(text: str) -> str:
    """Return the shipped file with random routing in place of the affinity."""
    if AFFINITY not in text:
        raise SystemExit("the shipped file routes by another rule")
    rules = ("    hash-type consistent\n", "    hash-balance-factor 150\n")
    without = text.replace(rules[0], "").replace(rules[1], "")
    return without.replace(AFFINITY, "balance random(1)")


def routed(changed: Callable[[str], str], *, seed: int, warm_up: int, requests: int) -> Routed:
    """Send requests through HAProxy, and count the cold ones after the warm-up."""
    replicas = [StandIn() for _ in range(NUM_REPLICAS)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    for each in replicas:
        asyncio.run_coroutine_threadsafe(each.start(), loop).result()
    with tempfile.TemporaryDirectory() as folder:
        places = [f"127.0.0.1:{it.port}" for it in replicas]
        with haproxy(Path(folder) / "proxy", *places, changed=changed) as client:
            trusted = ssl.create_default_context(cafile=Path(folder) / "proxy" / "tls.crt")
            port = client.base_url.port or 0
            ask(port, trusted, [*every_task(seed), *draws(seed, warm_up)])
            before = [(it.num_asked, it.num_cold) for it in replicas]
            ask(port, trusted, draws(seed + 1000, requests))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    asked = [it.num_asked - was for it, (was, _) in zip(replicas, before, strict=True)]
    cold = [it.num_cold - was for it, (_, was) in zip(replicas, before, strict=True)]
    if sum(asked) != requests:
        raise SystemExit(f"the replicas saw {sum(asked)} of {requests} requests")
    return Routed(cold_share=sum(cold) / requests, busiest=max(asked) * NUM_REPLICAS / requests)


def every_task(seed: int) -> list[str]:
    """Return the paths of all tasks, shuffled."""
    return random.Random(seed).sample(PATHS, NUM_TASKS)


def draws(seed: int, count: int) -> list[str]:
    """Return the paths of tasks by Zipf's law."""
    weights = list(accumulate(1 / rank for rank in range(1, NUM_TASKS + 1)))
    return random.Random(seed).choices(PATHS, cum_weights=weights, k=count)


def ask(port: int, trusted: ssl.SSLContext, paths: Sequence[str]) -> None:
    """Send one request for each path; each caller has its own connection."""
    statuses = Counter[int]()

    def send(own: Sequence[str]) -> None:
        connection = HTTPSConnection("127.0.0.1", port, context=trusted, timeout=60)
        for path in own:
            connection.request("POST", path, BODY, HEADERS)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        connection.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=send, args=(paths[it::CALLERS],)) for it in range(CALLERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(f"{len(paths)} requests in {time.perf_counter() - started:.0f} s: {dict(statuses)}")
    if set(statuses) != {OK}:
        raise SystemExit(f"some requests failed: {statuses}")


if __name__ == "__main__":
    main()

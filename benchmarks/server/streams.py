"""What streams of verdicts cost: compute, delay and the first words.

A server has five tasks of one top layer and windows of 128 tokens.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

import httpx

from benchmarks.harness.makers import publish
from benchmarks.harness.open_loop import percentile
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet, positive
from demo.server_process import ServerProcess
from nunatak_client.transport import PIECE_BYTES, VerdictExchange
from nunatak_contract.enums import OnFailure, StreamEventKind, VerdictAction
from nunatak_contract.policies import Condition, Policy, Rule
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry

TASKS = tuple(f"guard-{index}" for index in range(5))
RATE = 30.0
"""Words a second of an answer."""
CHUNK = 5
SHARED = 63
"""Tokens that two windows share: half of a window of 128 tokens without its two special tokens."""
HOLD_MS = 1000
SPREAD_S = 4.0
"""About the time in which a stream fills a window, so that windows close at all times alike."""
TOKENS = "nunatak_task_tokens_total"
WORDS = "the answer of a model about ships and the sea in the north last year".split()  # noqa: SIM905


def main() -> None:
    parser = figures_parser(__doc__, rounds=3)
    parser.add_argument("--streams", type=positive, default=16)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    options, sheet = open_sheet(parser)
    os.environ["NUNATAK_BACKBONE"] = options.backbone
    backbone = load_backbone(options.backbone)
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        for seed, task in enumerate(TASKS):
            publish(registry, backbone, task, seed)
        label = registry.resolve(TASKS[0]).head.labels[0]
        asked = (Condition(task=it, labels=(label,), threshold=1.0) for it in TASKS)
        block = VerdictAction.BLOCK
        rules = tuple(Rule(name=it.task, conditions=(it,), action=block) for it in asked)
        allow = OnFailure.ALLOW
        registry.policies.put(Policy(name="guard", rules=rules))
        registry.policies.put(
            Policy(name="timely", rules=rules, on_failure=allow, max_delay_ms=HOLD_MS)
        )
        # Known answers would make the control, which scans a text again, cheaper than it is.
        started_with = ("--no-access-log", "--answer-cache-bytes", "0")
        with ServerProcess(folder, options=started_with) as running:
            name = f"stream{'.int8' * backbone.is_quantized}"
            asyncio.run(served(running.url, sheet, options.streams, name))


async def served(address: str, sheet: Sheet, num_streams: int, start: str) -> None:
    """Record the compute, the delay and the first words of streams."""
    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await whole(client, text_of(50))
        compute, rows, control = list[float](), list[float](), list[float]()
        for _ in range(sheet.rounds):
            text = text_of(2000)
            once = await cpu_s(client, whole(client, text))
            before = await metric(client, TOKENS)
            await whole(client, text)
            tokens = await metric(client, TOKENS) - before
            streamed = Caller(address).say(text_of(2000), rate=None)
            compute.append(await cpu_s(client, streamed) / once)
            rows.append((await metric(client, TOKENS) - before - tokens) / tokens)
            text = text_of(250)
            once = await cpu_s(client, whole(client, text))
            control.append(await cpu_s(client, scan_again(client, text)) / once)
    unit = "over one whole pass"
    sheet.record(f"{start}.compute", compute, unit=f"CPU time {unit}, 2,000 words", goal="<= 1.3")
    sheet.record(f"{start}.compute.tokens", rows, unit=f"tokens of rows {unit}", goal="<= 1.3")
    sheet.record(
        f"{start}.compute.control", control, unit=f"CPU time {unit}, every chunk of 250 words scans"
    )
    for spread_s, name, unit in (
        (SPREAD_S, f"{start}.delay", f"ms, {num_streams} streams that begin within {SPREAD_S:g} s"),
        (0.0, f"{start}.delay.together", f"ms, {num_streams} streams that begin at once"),
    ):
        p95s, p50s = list[float](), list[float]()
        for _ in range(sheet.rounds):
            callers = [Caller(address) for _ in range(num_streams)]
            begins = (spread_s * place / num_streams for place in range(num_streams))
            await asyncio.gather(
                *(
                    it.say(text_of(300), rate=RATE, after_s=s)
                    for it, s in zip(callers, begins, strict=True)
                )
            )
            delays = [it for caller in callers for it in caller.delays_ms]
            p95s.append(percentile(delays, 95))
            p50s.append(percentile(delays, 50))
        sheet.record(f"{name}.p95_ms", p95s, unit=unit, goal="<= 50" if spread_s else None)
        sheet.record(f"{name}.p50_ms", p50s, unit=unit)
    for policy, name in (("guard", "first.windows_ms"), ("timely", "first_ms")):
        firsts = list[float]()
        for _ in range(sheet.rounds):
            caller = Caller(address, policy=policy)
            await caller.say(text_of(200), rate=RATE)
            firsts.append(caller.first_ms)
        is_timely = policy == "timely"
        goal = f"<= {1.2 * HOLD_MS:g}" if is_timely else None
        hold = f", max_delay_ms is {HOLD_MS}" if is_timely else ", windows of the tasks alone"
        sheet.record(
            f"{start}.{name}", firsts, unit=f"ms at {RATE:g} words a second{hold}", goal=goal
        )


@dataclass(slots=True)
class Caller:
    """One stream over its own connection, which reads while it writes."""

    address: str
    policy: str = "guard"
    delays_ms: list[float] = field(default_factory=list[float])
    """From the chunk that closes a window to the text that the window had held."""
    first_ms: float = 0.0

    async def say(self, text: str, *, rate: float | None, after_s: float = 0) -> None:
        """Send a text in chunks at so many words a second, or at once."""
        await asyncio.sleep(after_s)
        url = httpx.URL(self.address)
        exchange = VerdictExchange(url, {}, self.policy)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        begun, sent = time.perf_counter(), list[float]()
        done = asyncio.Event()

        async def read() -> None:
            num_released = 0
            while not exchange.is_over:
                for event in exchange.received(await reader.read(PIECE_BYTES)):
                    now = time.perf_counter()
                    num_released += event.text.count(" ")
                    if event.event is StreamEventKind.TEXT and not done.is_set():
                        # Each word is one token, so this word is the first behind the window.
                        closing = sent[(num_released + SHARED) // CHUNK :]
                        self.delays_ms += [1000 * (now - it) for it in closing[:1]]
                        self.first_ms = self.first_ms or 1000 * (now - begun)

        reading = asyncio.create_task(read())
        writer.write(exchange.head)
        words = text.split(" ")
        for place in range(0, len(words), CHUNK):
            sent.append(time.perf_counter())
            writer.write(exchange.chunk(" ".join(words[place : place + CHUNK]) + " "))
            await writer.drain()
            await asyncio.sleep(0.002 if rate is None else CHUNK / rate)
        done.set()
        writer.write(exchange.end())
        await reading
        writer.close()


async def whole(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post("/v1/verdicts/guard", json={"inputs": text})
    answer.raise_for_status()


async def scan_again(client: httpx.AsyncClient, text: str) -> None:
    """Ask for the verdict about the growing text at each chunk."""
    words = text.split(" ")
    for end in range(CHUNK, len(words) + CHUNK, CHUNK):
        await whole(client, " ".join(words[:end]))


async def cpu_s(client: httpx.AsyncClient, work: Awaitable[None]) -> float:
    """Return the CPU seconds of the server for some work."""
    before = await metric(client, "process_cpu_seconds_total")
    await work
    return await metric(client, "process_cpu_seconds_total") - before


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(it.rsplit(" ", 1)[1]) for it in lines if it.startswith(name))


def text_of(num_words: int) -> str:
    """Return a new text, so that no cache holds it."""
    return " ".join(f"{random.choice(WORDS)}" for _ in range(num_words))


if __name__ == "__main__":
    main()

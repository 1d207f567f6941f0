"""Streams of verdicts: equal to whole texts, nothing leaked, and what streaming costs.

`equal` divides random texts at random places, for each family of tokenizers, on an engine without a
model. The other parts run a server with five tasks of one top layer and windows of 128 tokens.
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
from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from demo.server_process import ServerProcess
from doubles.policies import make_policy, make_rule, when
from doubles.streams import StreamBench, divided, essence, guard
from doubles.trained_tokenizers import TokenizerFamily, random_texts
from nunatak_client import OverloadedError
from nunatak_client.transport import PIECE_BYTES, VerdictExchange
from nunatak_contract.enums import OnFailure, StreamEventKind, VerdictAction
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry
from nunatak_server.verdicts.rules import mask

TASKS = tuple(f"guard-{index}" for index in range(5))
RATE = 30.0
"""Words a second of an answer."""
CHUNK = 5
SHARED = 63
"""Tokens that two windows share: half of a window of 128 tokens without its two special tokens."""
HOLD_MS = 1000
SPREAD_S = 4.0
"""About the time in which a stream fills a window, so that windows close at all times alike."""
HUNG_S, SETTLE_S = 300, 30
GAUGES = ("nunatak_waiting_requests", "nunatak_running_requests", "nunatak_held_body_bytes")
TOKENS = "nunatak_task_tokens_total"
WORDS = "the answer of a model about ships and the sea in the north last year".split()  # noqa: SIM905


def main() -> None:
    """Measure and record the requested parts."""
    parser = figures_parser(__doc__, rounds=3)
    parser.add_argument("parts", nargs="*", default=["equal", "served", "load"])
    parser.add_argument("--divisions", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--backbone", default=DEFAULT_BACKBONE)
    options, sheet = open_sheet(parser)
    if "equal" in options.parts:
        asyncio.run(equality(sheet, options.divisions))
    if not {"served", "load"}.isdisjoint(options.parts):
        os.environ["NUNATAK_BACKBONE"] = options.backbone
        backbone = load_backbone(options.backbone)
        with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
            for seed, task in enumerate(TASKS):
                publish(registry, backbone, task, seed)
            label = registry.resolve(TASKS[0]).head.labels[0]
            rules = [make_rule(when(it, label, threshold=1.0), name=it) for it in TASKS]
            registry.policies.put(make_policy(*rules))
            timely = make_policy(*rules, name="timely", on_failure=OnFailure.ALLOW)
            registry.policies.put(timely.model_copy(update={"max_delay_ms": HOLD_MS}))
            # Known answers would make the control, which scans a text again, cheaper than it is.
            started_with = ("--no-access-log", "--answer-cache-bytes", "0")
            with ServerProcess(folder, options=started_with) as running:
                address = running.url
                name = f"stream{'.int8' * backbone.is_quantized}"
                if "load" in options.parts:
                    asyncio.run(load(address, sheet, options.at_once, name))
                if "served" in options.parts:
                    asyncio.run(served(address, sheet, options.streams, name))


async def equality(sheet: Sheet, divisions: int) -> None:
    """Record how many divisions differ from the whole text, and how many characters leaked."""
    different = leaked = 0
    chance = random.Random(0)
    benches = [StreamBench(it, guard()) for it in TokenizerFamily]
    texts = [it.replace("\0", "0") for it in random_texts(divisions, seed=1, longest=60)]
    texts = [it for it in texts if it.strip()]
    for number in range(divisions):
        bench, text = benches[number % len(benches)], texts[number % len(texts)]
        whole = await bench.whole(text)
        found = await bench.streamed(divided(text, chance, mean=chance.choice((1, 5, 30))))
        (decision,) = whole.decisions
        masking = (it for it in decision.applied if it.rule.action is VerdictAction.MASK)
        masked = mask(text, (span for it in masking for span in it.spans))
        is_blocked = whole.action is VerdictAction.BLOCK
        same = found.final.action is whole.action
        different += not (same and (is_blocked or essence(found.final) == essence(whole)))
        if not masked.startswith(found.text):
            leaked += len(found.text) - shared(masked, found.text)
        bench.engine.computed.clear()
    unit = f"of {divisions} random divisions"
    sheet.record("stream.equal", [different], unit=f"verdicts that differ, {unit}", goal="<= 0")
    sheet.record("stream.leaked", [leaked], unit=f"characters, {unit}", goal="<= 0")


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


async def load(address: str, sheet: Sheet, num_streams: int, start: str) -> None:
    """Record what goes wrong while a third breaks off and a third reads late."""
    held, (wrong, hung, left, refused) = 0.0, (list[float]() for _ in range(4))
    for _ in range(sheet.rounds):
        asked = [asyncio.create_task(end_of(address, number % 3)) for number in range(num_streams)]
        ended, late = await asyncio.wait(asked, timeout=HUNG_S)
        hung.append(len(late))
        wrong.append(sum(it.exception() is not None or it.result() == "wrong" for it in ended))
        refused.append(sum(it.exception() is None and it.result() == "refused" for it in ended))
        for it in late:
            it.cancel()
        async with httpx.AsyncClient(base_url=address) as client:
            for _ in range(SETTLE_S):
                held = sum([await metric(client, it) for it in GAUGES])
                if not held:
                    break
                await asyncio.sleep(1)
        left.append(held)
    unit = f"of {num_streams} streams at once, a third broken off, a third read late"
    sheet.record(f"{start}.load.wrong", wrong, unit=f"streams, {unit}", goal="<= 0")
    sheet.record(f"{start}.load.hung", hung, unit=f"streams after {HUNG_S} s, {unit}", goal="<= 0")
    sheet.record(f"{start}.load.left", left, unit=f"requests and bytes held, {unit}", goal="<= 0")
    sheet.record(f"{start}.load.refused", refused, unit=f"streams by overload, {unit}")


async def end_of(address: str, kind: int) -> str:
    """Return how a stream ends: of kind 0 breaks off, of kind 1 reads late.

    `refused` ends with an overload or a block by failure, after a part of its own text or nothing.
    """
    text, url = text_of(300), httpx.URL(address)
    exchange = VerdictExchange(url, {}, "guard")
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(exchange.head + exchange.chunk(text))
    await writer.drain()
    if kind == 0:
        writer.transport.abort()
        return "gone"
    writer.write(exchange.end())
    shown, verdict = "", None
    try:
        while not exchange.is_over:
            for event in exchange.received(await reader.read(64 if kind == 1 else PIECE_BYTES)):
                shown, verdict = shown + event.text, event.verdict
            await asyncio.sleep(0.05 if kind == 1 else 0)
    except OverloadedError:
        verdict = None
    writer.close()
    is_right = verdict is not None and not verdict.by_failure
    if shown == text if is_right else text.startswith(shown):
        return "answered" if is_right else "refused"
    return "wrong"


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


def shared(one: str, other: str) -> int:
    """Return the number of characters at the begin that two texts share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def whole(client: httpx.AsyncClient, text: str) -> None:
    """Ask for the verdict about a whole text."""
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
    """Return the sum of a metric over its labels."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(it.rsplit(" ", 1)[1]) for it in lines if it.startswith(name))


def text_of(num_words: int) -> str:
    """Return a new text, so that no cache holds it."""
    return " ".join(f"{random.choice(WORDS)}" for _ in range(num_words))


if __name__ == "__main__":
    main()

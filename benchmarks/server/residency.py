"""Residency: more tasks than fit, loads next to hot tasks, correct answers under change, memory.

The backbone is the embedded one. There are 64 tasks with one top layer, and the server has memory
for 16 of them. Callers use real HTTP. Compared parts run in turns within each round.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from benchmarks.server.tenants import (
    TEXTS,
    Asked,
    Caller,
    ask_for,
    is_wrong,
    meanwhile,
    oracle_of,
    publish,
    server,
)
from nunatak_contract.manifest import TaskManifest
from nunatak_loadtest.samples import percentile
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry
from nunatak_server.residency.memory import size_in_memory

NUM_TASKS, ROOM = 64, 16
ACTIVE = (8, 16, 32, 64)
CALLERS = 4
COLD_EVERY_S = 0.5
CHANGE_EVERY_S = 0.1
POLICIES = ("uniform", "zipf")


def main() -> None:
    """Measure and record the requested parts."""
    parser = figures_parser(__doc__, rounds=3)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--seconds", type=float, default=20, help="of each part of a round")
    parser.add_argument("--answers", type=int, default=100_000, help="of `truth`")
    parser.add_argument("--cycles", type=int, default=1000, help="of `swap`")
    options, sheet = open_sheet(parser)
    backbone = load_backbone(DEFAULT_BACKBONE)
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        versions = [
            publish(registry, backbone, f"task-{index}", seed=2 * index + number)
            for index in range(NUM_TASKS)
            for number in range(2)
        ]
        for index in range(NUM_TASKS):
            registry.promote(f"task-{index}", "prod", 1)
        size = size_in_memory(versions[0], dtype=backbone.dtype)
        print(f"{len(versions)} versions of {size} bytes are published")
        for part in options.parts:
            with server(folder, task_memory_bytes=ROOM * size) as address:
                site = Site(
                    address=address,
                    registry=registry,
                    versions=versions,
                    sheet=sheet,
                    options=options,
                )
                PARTS[part](site)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The arguments of every part."""

    address: str
    registry: Registry
    versions: Sequence[TaskManifest]
    sheet: Sheet
    options: argparse.Namespace

    def ask_for(
        self,
        ask: Callable[[Caller, random.Random], list[Asked]],
        *,
        seed: int,
        seconds: float | None = None,
    ) -> list[Asked]:
        """Let the callers ask for `seconds`; None: for the seconds of the options."""
        chosen_s: float = self.options.seconds if seconds is None else seconds
        return ask_for(self.address, chosen_s, ask, callers=CALLERS, seed=seed)


def cliff(site: Site) -> None:
    """Record p50 and p99 by number of active tasks and popularity."""
    for popularity in POLICIES:
        p50, p99 = {it: list[float]() for it in ACTIVE}, {it: list[float]() for it in ACTIVE}
        for number in range(site.sheet.rounds):
            for active in ACTIVE:
                draw = popular(popularity, active)
                # The tasks of this part are loaded before the measurement.
                site.ask_for(draw, seed=number, seconds=site.options.seconds / 5)
                answers = site.ask_for(draw, seed=number)
                latencies = checked_latencies(answers)
                p50[active].append(percentile(latencies, 50))
                p99[active].append(percentile(latencies, 99))
        for active in ACTIVE:
            for name, values in (("p50", p50), ("p99", p99)):
                identifier = f"server.cliff.{popularity}.a{active}.{name}_ms"
                site.sheet.record(identifier, values[active], unit="ms")
        ratios = [last / first for first, last in zip(p99[8], p99[64], strict=True)]
        name = "server.cliff.p99_ratio" + ("" if popularity == "uniform" else f".{popularity}")
        unit = "p99 at 64 tasks over p99 at 8"
        site.sheet.record(name, ratios, unit=unit, goal="<= 5")


def cold_load(site: Site) -> None:
    """Measure hot tasks next to loads of versions that were in memory before."""
    names, caller = [f"task-{index}" for index in range(ROOM, NUM_TASKS)], Caller(site.address)
    checked_latencies([caller.ask(name, TEXTS[0]) for name in names])
    hot_next_to_loads(site, cycle(names), suffix="")


def first_load(site: Site) -> None:
    """Measure hot tasks next to loads of versions that this server has never loaded."""
    backbone = load_backbone(DEFAULT_BACKBONE)
    names = [
        f"new-{index}"
        for index in range(int((site.sheet.rounds + 1) * site.options.seconds / COLD_EVERY_S))
    ]
    for seed, name in enumerate(names):
        publish(site.registry, backbone, name, seed=2 * NUM_TASKS + seed)
        site.registry.promote(name, "prod", 1)
    hot_next_to_loads(site, iter(names), suffix=".first")


def hot_next_to_loads(site: Site, cold: Iterator[str], *, suffix: str) -> None:
    """Record the p99 of hot tasks with loads over the p99 without; and the wait for a load."""
    operator, waits = Caller(site.address), list[float]()
    ratios, extra = list[float](), list[float]()

    def load_cold(_: int) -> None:
        task = next(cold)
        operator.call("POST", f"/v1/tasks/{task}/evict")
        waits.extend(checked_latencies([operator.ask(task, TEXTS[0])]))

    hot = popular("uniform", 8)
    for number in range(site.sheet.rounds + 1):
        waits.clear()
        alone = site.ask_for(hot, seed=number)
        with meanwhile(load_cold, interval_s=COLD_EVERY_S):
            loaded = site.ask_for(hot, seed=number)
        before, after = checked_latencies(alone), checked_latencies(loaded)
        if number:  # the first round warms up
            ratios.append(percentile(after, 99) / percentile(before, 99))
            extra.append(percentile(sorted(waits), 50) - percentile(before, 50))
    unit = "p99 over p99 alone"
    site.sheet.record(f"server.coldload.hot_p99_ratio{suffix}", ratios, unit=unit, goal="<= 1.3")
    site.sheet.record(f"server.coldload.extra_wait_ms{suffix}", extra, unit="ms")


def truth(site: Site) -> None:
    """Record wrong or missing answers during promotions, rollbacks, loads and evictions."""
    oracle = oracle_of(site.registry, site.versions, load_backbone(DEFAULT_BACKBONE))
    operator, draw = Caller(site.address), random.Random(0)
    num_answers, num_wrong = 0, 0

    def change(count: int) -> None:
        path = f"/v1/tasks/task-{draw.randrange(NUM_TASKS)}"
        match count % 4:
            case 0:
                promotion = {"version": draw.randint(1, 2)}
                operator.call("PUT", f"{path}/aliases/prod", promotion)
            case 1:
                operator.call("POST", f"{path}/aliases/prod/rollback")
            case 2:
                operator.call("POST", f"{path}/preload?version={draw.randint(1, 2)}")
            case _:
                operator.call("POST", f"{path}/evict")

    with meanwhile(change, interval_s=CHANGE_EVERY_S):
        while num_answers < site.options.answers:
            seconds = min(5.0, site.options.seconds)
            answers = site.ask_for(ask_several, seed=num_answers, seconds=seconds)
            num_answers += len(answers)
            num_wrong += sum(is_wrong(asked, oracle) for asked in answers)
    unit = f"of {num_answers} answers"
    site.sheet.record("server.truth.wrong", [float(num_wrong)], unit=unit, goal="<= 0")


def swap(site: Site) -> None:
    """Record the time until an alias moved by another process is seen; and memory after loads."""
    caller, seen = Caller(site.address), list[float]()
    for version in (1, 2):
        caller.call("POST", f"/v1/tasks/task-0/preload?version={version}")
    for count in range(10 * site.sheet.rounds):
        version = 2 - count % 2
        site.registry.promote("task-0", "prod", version)
        started = time.perf_counter()
        while caller.ask("task-0", TEXTS[0]).body["version"] != version:
            pass
        seen.append(1000 * (time.perf_counter() - started))
    unit = "ms after another process moved it"
    site.sheet.record("server.swap.visible_ms", seen, unit=unit, goal="<= 100")

    def load_and_evict(count: int) -> float:
        for index in range(count):
            task = f"task-{index % NUM_TASKS}"
            caller.ask(task, TEXTS[0])
            caller.call("POST", f"/v1/tasks/{task}/evict")
        time.sleep(6)  # freed memory goes back every five seconds
        return float(caller.call("GET", "/v1/memory")[1]["process"]["rss_bytes"])

    for index in range(NUM_TASKS):
        caller.call("POST", f"/v1/tasks/task-{index}/evict")
    started_bytes = load_and_evict(max(1, site.options.cycles // 20))
    ratio = load_and_evict(site.options.cycles) / started_bytes
    unit = f"times the bytes before {site.options.cycles} loads"
    site.sheet.record("server.swap.memory_ratio", [ratio], unit=unit, goal="<= 1.05")


def popular(popularity: str, active: int) -> Callable[[Caller, random.Random], list[Asked]]:
    """Ask one of the first `active` tasks, drawn uniformly or by Zipf's law with exponent 1."""
    weights = [1 / rank if popularity == "zipf" else 1.0 for rank in range(1, active + 1)]
    cumulative, names = list(accumulate(weights)), [f"task-{index}" for index in range(active)]

    def ask(caller: Caller, draw: random.Random) -> list[Asked]:
        (task,) = draw.choices(names, cum_weights=cumulative)
        return [caller.ask(task, draw.choice(TEXTS))]

    return ask


def ask_several(caller: Caller, draw: random.Random) -> list[Asked]:
    """Ask four tasks about all texts in random order; one of these tasks is probably not loaded."""
    numbers = [*draw.sample(range(ROOM), 3), draw.randrange(ROOM, NUM_TASKS)]
    tasks = [f"task-{number}" for number in numbers]
    return caller.ask_many(tasks, draw.sample(TEXTS, len(TEXTS)))


def checked_latencies(answers: Sequence[Asked]) -> list[float]:
    """Return the sorted milliseconds of the answers; stop the measurement at an error."""
    failed = [asked for asked in answers if asked.status != 200]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed, the first with {failed[0].body}")
    return sorted(1000 * asked.seconds for asked in answers)


PARTS = {
    "cliff": cliff,
    "coldload": cold_load,
    "firstload": first_load,
    "truth": truth,
    "swap": swap,
}

if __name__ == "__main__":
    main()

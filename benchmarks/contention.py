"""Contention: a noisy task beside quiet ones, and more load than can be answered.

Tasks of one top layer on the embedded backbone, real HTTP, an open loop, texts that no cache holds.
What is compared runs in turns within each round, in another order each time. The noisy client is a
process of its own with connections of its own: quiet ones wait for the server, not for it.

A p99 needs a thousand requests to rest on ten of them: shorter parts than the default, or a slower
machine, leave it to chance. The server has cores of its own and clients have the others, as if they
were elsewhere: else a flood would take processor time from the server twice, as a client too.
"""

import argparse
import itertools
import random
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from http.client import OK
from multiprocessing import get_context
from pathlib import Path

from open_loop import Due, Manner, Outcome, poisson, saturate, send
from pinning import cores_of, keep_off
from recording import FIGURES, Sheet, quantile
from tenants import publish, server

from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry
from nunatak_server.residency.sizes import size_in_memory

QUIET = tuple(f"quiet-{index}" for index in range(9))
QUIET_SHARES, NOISE = (0.3, 0.1), 2.0
"""Quiet tasks ask for these parts of what the server can do together, the noisy one for this much.
What it can do is measured in batches; one short text alone costs it two to three times as much."""
OVERLOAD = 3.0
AT_ONCE = 32
HEAD_START_S = 1.0
"""For two clients to make their requests."""
DEADLINE_MS = 30_000
SEEDS = itertools.count(1)
"""Each of texts that nothing was asked about before, so that no cache holds them."""


def main() -> None:
    """Measure and record what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15, help="of each part of a round")
    parser.add_argument("--cores", default="0", help="of the server, such as 0,1; `any`: no pin")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    options = parser.parse_args()
    sheet = Sheet(
        command=f"python benchmarks/contention.py {shlex.join(options.parts)} "
        f"--rounds {options.rounds} --seconds {options.seconds:g} --cores {options.cores}",
        file=options.figures,
        rounds=options.rounds,
    )
    cores = cores_of(options.cores)
    keep_off(cores)
    backbone = load_backbone(DEFAULT_BACKBONE)
    names = ["noisy", *QUIET]
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        versions = [publish(registry, backbone, it, seed) for seed, it in enumerate(names)]
        room = 2 * sum(size_in_memory(it, dtype=backbone.dtype) for it in versions)
        for part in options.parts:
            with server(folder, task_memory_bytes=room, cores=cores) as address:
                for name in names:
                    saturate(address, name, seconds=0.5, at_once=2, seed=next(SEEDS))
                PARTS[part](address, sheet, options.seconds)


def fairness(address: str, sheet: Sheet, seconds: float) -> None:
    """p99 of quiet tasks beside one that asks for twice what there is, over theirs alone.

    The figure with the goal is that of a noisy client that sends on whatever it is told; beside it
    stands that of one that heeds Retry-After.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        other.submit(time.perf_counter).result()
        for share in QUIET_SHARES:
            found = [
                fairness_round(address, share, seconds, number, other)
                for number in range(sheet.rounds)
            ]
            record_fairness(sheet, share, found)


def fairness_round(
    address: str, share: float, seconds: float, number: int, other: Executor
) -> dict[Manner | None, float]:
    """p99 in ms of quiet tasks alone (None), and beside noise of either manner."""
    peak = saturate(address, "noisy", seconds=seconds / 4, at_once=AT_ONCE, seed=next(SEEDS))
    draw = random.Random(number)
    quiet = quiet_load(share * peak, seconds, draw)
    noise = poisson("noisy", per_s=NOISE * peak, seconds=seconds, draw=draw)
    print(f"{peak:.0f}/s at most, {len(quiet)} quiet requests")
    turns, found = [None, *Manner], dict[Manner | None, float]()
    for manner in turns[number % 3 :] + turns[: number % 3]:
        if manner is None:
            outcomes = send(address, quiet, seed=next(SEEDS))
        else:
            outcomes = send_beside(address, quiet, noise, manner, other=other)
        found[manner] = p99_ms(outcomes)
    return found


def record_fairness(
    sheet: Sheet, share: float, rounds: Sequence[dict[Manner | None, float]]
) -> None:
    """Record the ratios of rounds with one load of the quiet tasks, and the times behind them."""
    name = "server.fairness"
    suffix = "" if share == QUIET_SHARES[0] else f".quiet{100 * share:.0f}"
    unit = f"p99 over p99 alone, quiet tasks at {share:.0%} of the peak"
    careless, obeying = (
        [them[manner] / them[None] for them in rounds]
        for manner in (Manner.CARELESS, Manner.OBEYING)
    )
    for kind, times in (
        ("alone", [them[None] for them in rounds]),
        ("beside", [them[Manner.CARELESS] for them in rounds]),
    ):
        sheet.record(f"{name}.{kind}_p99_ms{suffix}", times, unit="ms")
    sheet.record(f"{name}.p99_ratio{suffix}", careless, unit=unit, goal="<= 2")
    sheet.record(f"{name}.p99_ratio.obeying{suffix}", obeying, unit=unit)


def send_beside(
    address: str,
    quiet: Sequence[Due],
    noise: Sequence[Due],
    manner: Manner,
    *,
    other: Executor,
) -> list[Outcome]:
    """Send both at once, each from a process of its own, and return what became of the quiet."""
    start = time.perf_counter() + HEAD_START_S
    flood = other.submit(send, address, noise, seed=next(SEEDS), manner=manner, start=start)
    outcomes = send(address, quiet, seed=next(SEEDS), start=start)
    print(f"  {manner}: of {len(noise)} that were due {statuses(flood.result())} to the noisy task")
    return outcomes


def p99_ms(outcomes: Sequence[Outcome]) -> float:
    """Milliseconds from when they were due, of requests none of which may have failed."""
    check(outcomes)
    return 1000 * quantile([it.response_s for it in outcomes], 0.99)


def overload(address: str, sheet: Sheet, seconds: float) -> None:
    """Answers in time at three times what can be answered, and how soon others are told."""
    ratios, refusals_ms = list[float](), list[float]()
    for number in range(sheet.rounds):
        draw = random.Random(number)
        before = peak_of_quiet(address, seconds)
        due = quiet_load(OVERLOAD * before, 2 * seconds, draw)
        # The queue fills during the first half, and is full in the second.
        late = [
            it
            for it in send(address, due, deadline_ms=DEADLINE_MS, seed=next(SEEDS))
            if seconds <= it.due_s
        ]
        # On either side, for the machine's speed may change meanwhile.
        peak = (before + peak_of_quiet(address, seconds)) / 2
        good = sum(it.status == 200 and it.response_s <= DEADLINE_MS / 1000 for it in late)
        ratios.append(good / seconds / peak)
        refused = [1000 * it.response_s for it in late if it.status == 429]
        refusals_ms += [quantile(refused, 0.99)] if refused else []
        lag_ms = 1000 * quantile([it.lag_s for it in late], 0.99)
        print(
            f"{before:.0f}/s at most before, {peak:.0f}/s in the mean with after; "
            f"{statuses(late)}; the client was {lag_ms:.0f} ms late (p99)"
        )
    sheet.record("server.overload.goodput_ratio", ratios, unit="of the peak", goal=">= 0.9")
    sheet.record("server.overload.refusal_ms", refusals_ms, unit="ms, p99 of 429", goal="<= 50")


def peak_of_quiet(address: str, seconds: float) -> float:
    """Answers a second, of the same tasks: rows of one alone share the weights of its branch."""
    return saturate(address, *QUIET, seconds=seconds, at_once=AT_ONCE, seed=next(SEEDS))


def quiet_load(per_s: float, seconds: float, draw: random.Random) -> list[Due]:
    """So many requests a second, of all quiet tasks alike."""
    return [
        due
        for name in QUIET
        for due in poisson(name, per_s=per_s / len(QUIET), seconds=seconds, draw=draw)
    ]


def check(outcomes: Iterable[Outcome]) -> None:
    """Stop the measurement if a request has failed that should not."""
    failed = [it for it in outcomes if it.status != OK]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed, the first with {failed[0].status}")


def statuses(outcomes: Iterable[Outcome]) -> str:
    """How many answers of each status, in words."""
    counts = Counter(it.status for it in outcomes)
    return ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()))


PARTS = {"fairness": fairness, "overload": overload}

if __name__ == "__main__":
    main()

"""Contention: a noisy task beside quiet ones, and more load than can be answered.

Tasks of one top layer on the embedded backbone, real HTTP, an open loop, texts that no cache holds.
What is compared runs in turns within each round.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from http.client import OK
from pathlib import Path

from open_loop import Due, Outcome, of_tasks, poisson, saturate, send
from recording import FIGURES, Sheet
from tenants import publish, server

from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry
from nunatak_server.residency.sizes import size_in_memory

NUM_QUIET, QUIET_SHARE, NOISE = 9, 0.3, 2.0
"""Quiet tasks ask for this part of what the server can do together, the noisy one for this much."""
OVERLOAD = 3.0
AT_ONCE = 32
NO_DEADLINE_MS = 60_000
DEADLINE_MS = 30_000


def main() -> None:
    """Measure and record what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of each part of a round")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="file to append figures to")
    options = parser.parse_args()
    sheet = Sheet(
        command=f"python benchmarks/contention.py --rounds {options.rounds} "
        f"--seconds {options.seconds:g}",
        file=options.figures,
        rounds=options.rounds,
    )
    backbone = load_backbone(DEFAULT_BACKBONE)
    names = ["noisy", *(f"quiet-{index}" for index in range(NUM_QUIET))]
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        versions = [publish(registry, backbone, it, seed) for seed, it in enumerate(names)]
        room = 2 * sum(size_in_memory(it, dtype=backbone.dtype) for it in versions)
        for part in options.parts:
            with server(folder, task_memory_bytes=room) as address:
                for name in names:
                    saturate(address, name, seconds=0.5, at_once=2, seed=0)
                PARTS[part](address, sheet, options.seconds)


def fairness(address: str, sheet: Sheet, seconds: float) -> None:
    """p99 of quiet tasks beside one that asks for twice what there is, over theirs alone."""
    ratios, alone_ms, beside_ms = list[float](), list[float](), list[float]()
    for number in range(sheet.rounds):
        peak = saturate(address, "noisy", seconds=seconds / 4, at_once=AT_ONCE, seed=number)
        draw = random.Random(number)
        quiet = quiet_load(QUIET_SHARE * peak, seconds, draw)
        noise = poisson("noisy", per_s=NOISE * peak, seconds=seconds, draw=draw)
        alone = send(address, quiet, deadline_ms=NO_DEADLINE_MS, seed=number)
        beside = send(address, [*quiet, *noise], deadline_ms=NO_DEADLINE_MS, seed=number)
        check(alone)
        check(of_tasks(beside, "quiet"))
        alone_ms.append(1000 * quantile([it.response_s for it in alone], 0.99))
        times = [it.response_s for it in of_tasks(beside, "quiet")]
        beside_ms.append(1000 * quantile(times, 0.99))
        ratios.append(beside_ms[-1] / alone_ms[-1])
        print(f"{peak:.0f}/s at most; {statuses(of_tasks(beside, 'noisy'))} to the noisy task")
    sheet.record("server.fairness.alone_p99_ms", alone_ms, unit="ms")
    sheet.record("server.fairness.beside_p99_ms", beside_ms, unit="ms")
    sheet.record("server.fairness.p99_ratio", ratios, unit="p99 over p99 alone", goal="<= 2")


def overload(address: str, sheet: Sheet, seconds: float) -> None:
    """Answers in time at three times what can be answered, and how soon others are told."""
    ratios, refusals_ms = list[float](), list[float]()
    for number in range(sheet.rounds):
        draw = random.Random(number)
        peak = saturate(address, "noisy", seconds=seconds, at_once=AT_ONCE, seed=number)
        due = quiet_load(OVERLOAD * peak, 2 * seconds, draw)
        # The queue fills during the first half, and is full in the second.
        late = [
            it
            for it in send(address, due, deadline_ms=DEADLINE_MS, seed=number)
            if seconds <= it.due_s
        ]
        good = sum(it.status == 200 and it.response_s <= DEADLINE_MS / 1000 for it in late)
        ratios.append(good / seconds / peak)
        refused = [1000 * it.response_s for it in late if it.status == 429]
        refusals_ms += [quantile(refused, 0.99)] if refused else []
        lag_ms = 1000 * quantile([it.lag_s for it in late], 0.99)
        print(f"{peak:.0f}/s at most; {statuses(late)}; the client was {lag_ms:.0f} ms late (p99)")
    sheet.record("server.overload.goodput_ratio", ratios, unit="of the peak", goal=">= 0.9")
    sheet.record("server.overload.refusal_ms", refusals_ms, unit="ms, p99 of 429", goal="<= 50")


def quiet_load(per_s: float, seconds: float, draw: random.Random) -> list[Due]:
    """So many requests a second, of all quiet tasks alike."""
    return [
        due
        for index in range(NUM_QUIET)
        for due in poisson(f"quiet-{index}", per_s=per_s / NUM_QUIET, seconds=seconds, draw=draw)
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


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the others does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


PARTS = {"fairness": fairness, "overload": overload}

if __name__ == "__main__":
    main()

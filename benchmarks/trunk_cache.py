"""The trunk cache: what a hit saves, and what a miss pays for it.

A hit: one text asked again of a top-3 task, against the same text for the first time; shape of BERT
base, random weights, for speed does not depend on what they are. A miss: a fresh text with a cache
to look into and to fill, against a forward without one; on the embedded backbone, whose forward is
short. Both sides of a ratio run in turns, each first in every other round.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from fanout import NUM_LAYERS, NUM_TOKENS, TOP_LAYERS, save_random_bert, top_tasks
from recording import record
from rounds import seconds
from workload import served_backbone

from nunatak_model import (
    DEFAULT_BACKBONE,
    Backbone,
    Encoding,
    Row,
    TrunkCache,
    forward,
)

CACHE_BYTES = 256 * 1024**2
ENCODING = Encoding(token_ids=tuple(range(5, 5 + NUM_TOKENS)), type_ids=(0,) * NUM_TOKENS)
BOUND = NUM_LAYERS / TOP_LAYERS
HIT_GOAL = 0.8 * BOUND


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    command = f"python benchmarks/trunk_cache.py --rounds {rounds}"
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save_random_bert(Path(folder))
        gain = record(
            f"forward.trunkcache.k{TOP_LAYERS}",
            hit_gains(served_backbone(folder, dtype=torch.float32), rounds),
            unit="times faster than a miss",
            goal=f">= {HIT_GOAL:g}",
            command=command,
        )
        cost = record(
            "forward.trunkcache.miss",
            miss_costs(served_backbone(DEFAULT_BACKBONE, dtype=torch.float32), rounds),
            unit="times a forward without a cache",
            goal="<= 1.03",
            command=command,
        )
    print(
        f"a hit is {gain.value:.2f} times faster (from {gain.low:.2f} to {gain.high:.2f}; bound by "
        f"layers {BOUND:g}), a miss takes {cost.value:.3f} times as long (from {cost.low:.3f} to "
        f"{cost.high:.3f})"
    )


def hit_gains(backbone: Backbone, rounds: int) -> list[float]:
    """Time of a miss over time of a hit, once per round."""
    rows = [Row(encoding=ENCODING, branch=top_tasks(backbone, TOP_LAYERS, 1)[0].branch)]
    filled = TrunkCache(max_bytes=CACHE_BYTES)

    def miss() -> None:
        forward(backbone, rows, trunk=TrunkCache(max_bytes=CACHE_BYTES))

    def hit() -> None:
        forward(backbone, rows, trunk=filled)

    hit()  # the first time, which fills the cache
    return ratios(miss, hit, rounds)


def miss_costs(backbone: Backbone, rounds: int) -> list[float]:
    """Time of a miss over time of a forward without a cache, once per round."""
    rows = [Row(encoding=ENCODING, branch=top_tasks(backbone, TOP_LAYERS, 1)[0].branch)]

    def miss() -> None:
        forward(backbone, rows, trunk=TrunkCache(max_bytes=CACHE_BYTES))

    def plain() -> None:
        forward(backbone, rows)

    return ratios(miss, plain, rounds)


def ratios(upper: Callable[[], None], lower: Callable[[], None], rounds: int) -> list[float]:
    """Time of the one over time of the other; both warm, each first in every other round."""
    seconds(upper)
    seconds(lower)
    found = list[float]()
    for index in range(rounds):
        if index % 2:
            above, below = seconds(upper), seconds(lower)
        else:
            below, above = seconds(lower), seconds(upper)
        found.append(above / below)
    return found


if __name__ == "__main__":
    main()

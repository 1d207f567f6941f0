"""The trunk cache: the time that a hit saves, and the time that a miss costs.

A hit: the second forward of a text for a task with three own layers is compared with the first. The
backbone has the shape of BERT base and random weights; speed does not depend on their values. A
miss: the forward of a new text with an empty cache is compared with a forward without a cache. The
backbone is the embedded one, because its forward is short. Both sides of a ratio run in turns, in
shuffled order.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.forward.fanout import NUM_LAYERS, NUM_TOKENS, TOP_LAYERS, top_tasks
from benchmarks.harness.recording import figures_parser, open_sheet
from benchmarks.harness.rounds import interleave, ratios, seconds
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import served_backbone
from nunatak_model import DEFAULT_BACKBONE, Backbone, Encoding, Row, TrunkCache, forward

CACHE_BYTES = 256 * 1024**2
ENCODING = Encoding(token_ids=tuple(range(5, 5 + NUM_TOKENS)), type_ids=(0,) * NUM_TOKENS)
BOUND = NUM_LAYERS / TOP_LAYERS
HIT_GOAL = 0.8 * BOUND


def main() -> None:
    """Measure and record."""
    _, sheet = open_sheet(figures_parser(__doc__, rounds=25))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        bert = backbone_folder(Shape.BERT_BASE, Path(folder))
        sheet.record(
            f"forward.trunkcache.k{TOP_LAYERS}",
            hit_gains(served_backbone(bert, dtype=torch.float32), sheet.rounds),
            unit="times faster than a miss",
            goal=f">= {HIT_GOAL:g}",
        )
        sheet.record(
            "forward.trunkcache.miss",
            miss_costs(served_backbone(DEFAULT_BACKBONE, dtype=torch.float32), sheet.rounds),
            unit="times a forward without a cache",
            goal="<= 1.03",
        )


def hit_gains(backbone: Backbone, rounds: int) -> list[float]:
    """Return the time of a miss divided by the time of a hit, once per round."""
    rows = [Row(encoding=ENCODING, branch=top_tasks(backbone, TOP_LAYERS, 1)[0].branch)]
    filled = TrunkCache(max_bytes=CACHE_BYTES)

    def miss() -> None:
        forward(backbone, rows, trunk=TrunkCache(max_bytes=CACHE_BYTES))

    def hit() -> None:
        forward(backbone, rows, trunk=filled)

    hit()  # fills the cache
    return in_turns(miss, hit, rounds)


def miss_costs(backbone: Backbone, rounds: int) -> list[float]:
    """Return the time of a miss divided by the time without a cache, once per round."""
    rows = [Row(encoding=ENCODING, branch=top_tasks(backbone, TOP_LAYERS, 1)[0].branch)]

    def miss() -> None:
        forward(backbone, rows, trunk=TrunkCache(max_bytes=CACHE_BYTES))

    def plain() -> None:
        forward(backbone, rows)

    return in_turns(miss, plain, rounds)


def in_turns(upper: Callable[[], None], lower: Callable[[], None], rounds: int) -> list[float]:
    """Return the time of `upper` divided by the time of `lower`, once per round."""
    runs = {"upper": partial(seconds, upper), "lower": partial(seconds, lower)}
    return ratios(interleave(runs, rounds), "upper", "lower")


if __name__ == "__main__":
    main()

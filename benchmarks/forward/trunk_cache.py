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

from benchmarks.forward.fanout import NUM_LAYERS, NUM_TOKENS, TOP_LAYERS
from benchmarks.harness.recording import figures_parser, open_sheet
from benchmarks.harness.rounds import in_turns, ratios
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.harness.workload import random_tasks, served_backbone
from nunatak_contract.methods import TopK
from nunatak_model import DEFAULT_BACKBONE, Encoding, Row, TrunkCache, forward

CACHE_BYTES = 256 * 1024**2
ENCODING = Encoding(token_ids=tuple(range(5, 5 + NUM_TOKENS)), type_ids=(0,) * NUM_TOKENS)
BOUND = NUM_LAYERS / TOP_LAYERS
HIT_GOAL = 0.8 * BOUND


def main() -> None:
    _, sheet = open_sheet(figures_parser(__doc__, rounds=25))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        bert = backbone_folder(Shape.BERT_BASE, Path(folder))
        run, filled = forward_of(bert), TrunkCache(max_bytes=CACHE_BYTES)
        run(trunk=filled)
        runs = {"miss": partial(missed, run), "hit": partial(run, trunk=filled)}
        hits = ratios(in_turns(runs, sheet.rounds), "miss", "hit")
        name, unit = f"forward.trunkcache.k{TOP_LAYERS}", "times faster than a miss"
        sheet.record(name, hits, unit=unit, goal=f">= {HIT_GOAL:g}")
        run = forward_of(DEFAULT_BACKBONE)
        times = in_turns({"miss": partial(missed, run), "none": run}, sheet.rounds)
        misses = ratios(times, "miss", "none")
        unit = "times a forward without a cache"
        sheet.record("forward.trunkcache.miss", misses, unit=unit, goal="<= 1.03")


def forward_of(source: str | Path) -> partial[list[torch.Tensor]]:
    backbone = served_backbone(source, dtype=torch.float32)
    (task,) = random_tasks(backbone, [TopK(num_layers=TOP_LAYERS)])
    return partial(forward, backbone, [Row(encoding=ENCODING, branch=task.branch)])


def missed(run: Callable[..., object]) -> None:
    run(trunk=TrunkCache(max_bytes=CACHE_BYTES))


if __name__ == "__main__":
    main()

"""The dev split of data that comes without one."""

import random
from collections import defaultdict

from nunatak_training.data.examples import ReadExample

DEV_SHARE = 0.1


def split_off_dev(
    examples: list[ReadExample], *, seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, both in the given order, `DEV_SHARE` of every class in dev.

    Each class keeps at least one example on both sides, so it must have two. The same examples
    and seed give the same split.
    """
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, read in enumerate(examples):
        positions[read.example.label].append(position)
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev: set[int] = set()
    for label in sorted(positions):
        members = positions[label]
        in_dev.update(generator.sample(members, max(1, round(DEV_SHARE * len(members)))))
    train = [read for position, read in enumerate(examples) if position not in in_dev]
    dev = [read for position, read in enumerate(examples) if position in in_dev]
    return train, dev

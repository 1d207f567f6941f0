"""The dev split of data that comes without one."""

import random
from collections import defaultdict
from collections.abc import Callable, Collection

from nunatak_training.data.examples import ReadExample

DEV_SHARE = 0.1

PartOf = Callable[[ReadExample], str]


def split_off_share(
    examples: list[ReadExample], *, stratum_of: PartOf, seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, both in the given order, `DEV_SHARE` of every stratum in dev.

    Each stratum keeps at least one example on both sides, so it must have two. The same examples
    and seed give the same split.
    """
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, read in enumerate(examples):
        positions[stratum_of(read)].append(position)
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev: set[int] = set()
    for stratum in sorted(positions):
        members = positions[stratum]
        in_dev.update(generator.sample(members, max(1, round(DEV_SHARE * len(members)))))
    return _parts(examples, in_dev)


def split_off_named(
    examples: list[ReadExample], *, names_of: Callable[[ReadExample], Collection[str]], seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, both in the given order, `DEV_SHARE` in dev, if so many can go.

    Every name of dev is one of train too; dev is empty where no example can be spared. The same
    examples and seed give the same split.
    """
    names = [frozenset(names_of(read)) for read in examples]
    size = max(1, round(DEV_SHARE * len(examples)))
    kept = set[int]()
    while len(kept) < len(examples):
        candidates = [position for position in range(len(examples)) if position not in kept]
        generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
        in_dev = set(generator.sample(candidates, min(size, len(candidates))))
        left = frozenset[str]().union(
            *(found for position, found in enumerate(names) if position not in in_dev)
        )
        needed = {position for position in in_dev if not names[position] <= left}
        if not needed:
            return _parts(examples, in_dev)
        kept |= needed
    return examples, []


def split_off_groups(
    examples: list[ReadExample], *, group_of: PartOf, seed: int
) -> tuple[list[ReadExample], list[ReadExample]]:
    """Split into train and dev, both in the given order, `DEV_SHARE` of the groups whole in dev.

    There must be two groups. The same examples and seed give the same split.
    """
    groups = sorted({group_of(read) for read in examples})
    generator = random.Random(seed)  # noqa: S311 - a split needs no secrecy
    in_dev = set(generator.sample(groups, max(1, round(DEV_SHARE * len(groups)))))
    train = [read for read in examples if group_of(read) not in in_dev]
    dev = [read for read in examples if group_of(read) in in_dev]
    return train, dev


def _parts(
    examples: list[ReadExample], in_dev: set[int]
) -> tuple[list[ReadExample], list[ReadExample]]:
    train = [read for position, read in enumerate(examples) if position not in in_dev]
    dev = [read for position, read in enumerate(examples) if position in in_dev]
    return train, dev

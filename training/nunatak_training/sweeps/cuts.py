"""Parts of a task's data: so many train examples, so many to choose by, and what to test on."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nunatak_training.data import Example, ExampleSet, Relevance, TaskData
from nunatak_training.data.vocabulary import sameness
from nunatak_training.errors import TooFewExamplesError

SAMPLE_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How much of a task's data a run reads; None is all of it."""

    train: int | None = None
    dev: int | None = None
    dev_from_train: bool = False
    """Dev is drawn from the train examples that are left, and the dev set becomes the test set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutData:
    """The data of a run."""

    data: TaskData
    test: ExampleSet | None
    """Examples that the epoch is not chosen by, if there are such."""


def cut_data(data: TaskData, cut: Cut) -> CutData:
    """Draw the same random part of the data for every seed of training; files keep their order.

    A smaller part lies in every larger one, and the labels stay those of the whole data. Documents
    that are ranked together stay together, so such a part may be a little smaller than asked for.

    Raises:
        TooFewExamplesError: the train examples do not give train and dev examples, a cap is below
            the documents that are ranked together, or those that are left all say the same.
    """
    train, rest = _split(data.train, cut.train)
    _check_cap(data.name, "train", train, cut.train)
    if (problem := sameness((it.label for it in train.examples), data.kind)) is not None:
        raise TooFewExamplesError(
            data.name, f"of {len(train)} that were drawn, {problem}; raise the cap"
        )
    if not cut.dev_from_train:
        dev, _ = _split(data.dev, cut.dev)
        _check_cap(data.name, "dev", dev, cut.dev)
        return CutData(data=replace(data, train=train, dev=dev), test=None)
    if not len(rest):
        raise TooFewExamplesError(
            data.name,
            f"{len(data.train)} train examples leave none to choose by beside "
            f"{cut.train or 'all'} to train on; lower the cap, or choose by the dev set",
        )
    dev, _ = _split(rest, cut.dev)
    _check_cap(data.name, "dev", dev, cut.dev)
    return CutData(data=replace(data, train=train, dev=dev), test=data.dev)


def _check_cap(name: str, split: str, part: ExampleSet, cap: int | None) -> None:
    if not len(part):
        raise TooFewExamplesError(
            name,
            f"a {split} part of at most {cap} examples holds none, for documents that are ranked "
            "together stay together; raise the cap",
        )


def _split(examples: ExampleSet, cap: int | None) -> tuple[ExampleSet, ExampleSet]:
    """A random part of at most `cap` examples, and the rest."""
    if cap is None or cap >= len(examples):
        return examples, ExampleSet(examples=())
    units = list(_units(examples.examples))
    random.Random(SAMPLE_SEED).shuffle(units)  # noqa: S311 - a sample needs no secrecy
    chosen = set[int]()
    for unit in units:
        if len(chosen) + len(unit) > cap:
            break
        chosen.update(unit)
    numbered = list(enumerate(examples.examples))
    return (
        ExampleSet(examples=tuple(it for number, it in numbered if number in chosen)),
        ExampleSet(examples=tuple(it for number, it in numbered if number not in chosen)),
    )


def _units(examples: Sequence[Example]) -> Iterator[list[int]]:
    """The positions of what belongs together: one example, or the documents of one group."""
    groups = defaultdict[str, list[int]](list)
    for position, example in enumerate(examples):
        match example.label:
            case Relevance(group=group):
                groups[group].append(position)
            case _:
                yield [position]
    yield from groups.values()

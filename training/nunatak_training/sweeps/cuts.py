"""Parts of a task's data: so many train examples, so many to choose by, and what to test on."""

import random
from dataclasses import dataclass, replace

from nunatak_training.data import ExampleSet, TaskData
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

    A smaller part lies in every larger one, and the labels stay those of the whole data.

    Raises:
        TooFewExamplesError: the train examples do not give train and dev examples.
    """
    order = list(range(len(data.train)))
    random.Random(SAMPLE_SEED).shuffle(order)  # noqa: S311 - a sample needs no secrecy
    train = _chosen(data.train, order[: cut.train])
    if not cut.dev_from_train:
        dev_order = list(range(len(data.dev)))
        random.Random(SAMPLE_SEED).shuffle(dev_order)  # noqa: S311 - as above
        dev = _chosen(data.dev, dev_order[: cut.dev])
        return CutData(data=replace(data, train=train, dev=dev), test=None)
    rest = [] if cut.train is None else order[cut.train :]
    if not rest:
        raise TooFewExamplesError(
            data.name,
            f"{len(order)} train examples leave none to choose by beside {cut.train or 'all'} to "
            "train on; lower the cap, or choose by the dev set",
        )
    return CutData(
        data=replace(data, train=train, dev=_chosen(data.train, rest[: cut.dev])), test=data.dev
    )


def _chosen(examples: ExampleSet, positions: list[int]) -> ExampleSet:
    return ExampleSet(examples=tuple(examples.examples[position] for position in sorted(positions)))

"""Doubts on real texts: exchanged labels are found among the labels that people gave."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nunatak_model import load_backbone
from nunatak_training.data import load_labelled
from nunatak_training.doubts import Doubt, find_doubts
from nunatak_training.trunk import MemoryTrunkStore

DATA = Path(__file__).parents[3] / "demo" / "data" / "intent" / "train.jsonl"
NUM_WRONG = 30


pytestmark = pytest.mark.slow
Judge = Callable[[list[dict[str, object]]], tuple[Doubt, ...]]


@pytest.fixture(name="judge", scope="module")
def make_judge() -> Judge:
    """Return what finds doubts on the built-in backbone, whose states the calls share."""
    return partial(find_doubts, backbone=load_backbone("minilm"), trunks=MemoryTrunkStore())


def rows(*, num_wrong: int) -> tuple[list[dict[str, object]], set[str]]:
    """Return the rows of the file, and the places of those whose label was exchanged."""
    _, read = load_labelled(DATA)
    chance = random.Random(1)
    labels = sorted({str(it.example.label) for it in read})
    wrong = set(chance.sample(range(len(read)), num_wrong))
    given = list[dict[str, object]]()
    for place, it in enumerate(read):
        others = [label for label in labels if label != it.example.label]
        label = chance.choice(others) if place in wrong else it.example.label
        given.append({"text": it.example.text, "label": label})
    return given, {f"train[{place}]" for place in wrong}


def test_most_exchanged_labels_are_in_the_top_ranks(judge: Judge) -> None:
    given, wrong = rows(num_wrong=NUM_WRONG)

    found = [it.place for it in judge(given)]

    assert len(wrong.intersection(found[:NUM_WRONG])) >= NUM_WRONG * 0.6
    assert len(wrong.intersection(found)) >= NUM_WRONG * 0.7
    assert len(wrong.intersection(found[:10])) >= 9


def test_few_given_labels_are_doubted(judge: Judge) -> None:
    given, _ = rows(num_wrong=0)

    assert len(judge(given)) <= len(given) * 0.05

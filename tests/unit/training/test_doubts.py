"""Laws of doubts: wrong labels are found, right labels are left alone."""

import random

import numpy as np
import pytest

from doubles.examples import ALPHABETS, toy_examples
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone
from nunatak_training.data import Data, Example
from nunatak_training.data.examples import ReadExample
from nunatak_training.doubts import NUM_FOLDS, deal_folds, doubtful, find_doubts
from nunatak_training.errors import InvalidRecipeError

NUM_WRONG = 8


def rows(*, num_wrong: int) -> tuple[list[dict[str, object]], set[str]]:
    """Return toy rows, and the places of those whose label was exchanged."""
    examples = toy_examples(120, seed=3)
    wrong = set(random.Random(7).sample(range(len(examples)), num_wrong))
    other = dict(zip(sorted(ALPHABETS), sorted(ALPHABETS, reverse=True), strict=True))
    given: list[dict[str, object]] = [
        {"text": it.text, "label": other[str(it.label)] if place in wrong else it.label}
        for place, it in enumerate(examples)
    ]
    return given, {f"train[{place}]" for place in wrong}


def test_planted_wrong_labels_come_first(backbone: Backbone) -> None:
    given, wrong = rows(num_wrong=NUM_WRONG)

    found = find_doubts(given, backbone, max_length=32)

    assert len({it.place for it in found[:NUM_WRONG]} & wrong) >= NUM_WRONG - 1
    assert len(found) <= NUM_WRONG + 3
    for doubt in found[:NUM_WRONG]:
        assert doubt.likely_label != doubt.label
        assert doubt.likely_probability > doubt.label_probability


def test_right_labels_are_hardly_doubted(backbone: Backbone) -> None:
    given, _ = rows(num_wrong=0)

    assert len(find_doubts(given, backbone, max_length=32)) <= 2


def test_the_same_examples_give_the_same_doubts(backbone: Backbone) -> None:
    given, _ = rows(num_wrong=NUM_WRONG)

    assert find_doubts(given, backbone, max_length=32) == find_doubts(
        given, backbone, max_length=32
    )


def test_an_example_is_doubtful_as_in_the_equations() -> None:
    # The mean own probability of label 0 is (0.9 + 0.7 + 0.2) / 3 = 0.6, of label 1 it is
    # (0.8 + 0.6) / 2 = 0.7, of label 2 it is 0.5.
    probabilities = np.array(
        [
            [0.9, 0.1, 0.0],
            [0.7, 0.3, 0.0],
            [0.2, 0.8, 0.0],  # doubtful: 0.8 >= 0.7
            [0.2, 0.8, 0.0],
            [0.4, 0.6, 0.0],
            [0.4, 0.1, 0.5],
            [0.25, 0.25, 0.5],
        ]
    )
    numbers = np.array([0, 0, 0, 1, 1, 2, 2])

    assert doubtful(probabilities, numbers) == [(2, 1)]


def test_doubts_equal_the_definition_and_come_by_margin() -> None:
    chance = np.random.default_rng(5)
    probabilities = chance.dirichlet(np.ones(4), size=300)
    numbers = chance.integers(4, size=300)
    thresholds = [
        sum(row[label] for row, own in zip(probabilities, numbers, strict=True) if own == label)
        / sum(own == label for own in numbers)
        for label in range(4)
    ]
    expected = list[tuple[float, int, int]]()
    for place, (row, own) in enumerate(zip(probabilities, numbers, strict=True)):
        confident = [label for label in range(4) if row[label] >= thresholds[label]]
        margin = row[own] - max(row[label] for label in range(4) if label != own)
        likely = max(confident, key=lambda label: row[label], default=own)
        if likely != own and margin < 0:
            expected.append((margin, place, likely))

    found = doubtful(probabilities, numbers)

    assert found == [(place, likely) for _, place, likely in sorted(expected)]
    assert len(found) > 30


def test_equal_texts_share_a_fold_and_every_label_is_in_every_fold() -> None:
    labels = ("a", "b")
    texts = [f"text {it % 40}" for it in range(60)]
    numbers = np.array([it % 2 for it in range(60)])
    read = [
        ReadExample(where=str(it), example=Example(text=text, label=labels[numbers[it]]))
        for it, text in enumerate(texts)
    ]

    folds = deal_folds(read, numbers, labels)

    assert len({(text, fold) for text, fold in zip(texts, folds, strict=True)}) == 40
    for number in (0, 1):
        assert set(folds[numbers == number]) == set(range(NUM_FOLDS))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([{"text": "a", "label": 0.5}], "one label each, got a regression task"),
        ([{"text": "a", "labels": ["x"]}], "one label each, got a multi-label task"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "at least 2 labels"),
        (
            [{"text": text, "label": label} for text, label in zip("abcc", "xxyy", strict=True)],
            r"train\[2\]: label 'y' has a single text",
        ),
        ([], "at least 2 labels"),
    ],
)
def test_examples_that_cannot_be_judged_are_refused(
    data: Data, problem: str, backbone: Backbone
) -> None:
    with pytest.raises(NunatakError, match=problem):
        find_doubts(data, backbone, max_length=32)


def test_texts_longer_than_the_backbone_reads_are_refused(backbone: Backbone) -> None:
    with pytest.raises(InvalidRecipeError, match="max_length must be at most"):
        find_doubts(rows(num_wrong=0)[0], backbone, max_length=100_000)

"""Laws of doubts: wrong labels are found, right labels are left alone."""

import random

import numpy as np
import pytest

from doubles.examples import ALPHABETS, toy_examples
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone
from nunatak_rows import FileRow
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


def test_most_planted_wrong_labels_come_first(backbone: Backbone) -> None:
    given, wrong = rows(num_wrong=NUM_WRONG)

    found = find_doubts(given, backbone, max_length=32)

    assert len({it.place for it in found[:NUM_WRONG]} & wrong) > NUM_WRONG / 2
    for doubt in found:
        assert doubt.likely_label != doubt.label
        assert doubt.likely_probability > doubt.label_probability


def test_right_labels_are_hardly_doubted(backbone: Backbone) -> None:
    given, _ = rows(num_wrong=0)

    assert len(find_doubts(given, backbone, max_length=32)) <= 2


def test_doubts_equal_their_definition_and_come_by_margin() -> None:
    chance = np.random.default_rng(5)
    num_labels, p = 4, chance.dirichlet(np.ones(4), size=300)
    own = chance.integers(num_labels, size=300).tolist()
    members = [[x for x in range(300) if own[x] == label] for label in range(num_labels)]
    t = [sum(p[x, j] for x in members[j]) / len(members[j]) for j in range(num_labels)]
    c = [[0] * num_labels for _ in range(num_labels)]
    for x in range(300):
        confident = [j for j in range(num_labels) if p[x, j] >= t[j]]
        if confident:
            c[own[x]][max(confident, key=lambda j: p[x, j])] += 1
    likely = dict[int, int]()
    for i in range(num_labels):
        for j in range(num_labels):
            ranked = sorted(members[i], key=lambda x: p[x, i] - p[x, j])
            for x in ranked[: round(len(members[i]) * c[i][j] / sum(c[i]))]:
                if i != j and p[x, j] > p[x, i] and p[x, j] > p[x, likely.get(x, i)]:
                    likely[x] = j

    def margin(x: int) -> float:
        return p[x, own[x]] - max(p[x, j] for j in range(num_labels) if j != own[x])

    found = doubtful(p, np.array(own))

    assert found == [(x, likely[x]) for x in sorted(likely, key=margin)]
    assert len(found) > 30


def test_equal_texts_share_a_fold_and_every_label_is_in_every_fold() -> None:
    labels = ("a", "b")
    texts = [f"text {it % 40}" for it in range(60)]
    numbers = np.array([it % 2 for it in range(60)])
    read = [
        ReadExample(row=FileRow(file=str(it)), example=Example(text=text, label=labels[it % 2]))
        for it, text in enumerate(texts)
    ]

    folds = deal_folds(read, numbers)

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
            "2 labels with at least 2 texts each, got 1 of 2 labels",
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


def test_labels_of_a_single_text_are_the_strongest_doubts_and_keep_the_columns(
    backbone: Backbone,
) -> None:
    given, _ = rows(num_wrong=0)
    typo = {**given[0], "label": "typo", "ticket": 7}

    first, *others = find_doubts([*given[1:], typo], backbone, max_length=32)

    assert (first.label, first.label_probability) == ("typo", 0.0)
    assert first.likely_label == given[0]["label"]
    assert first.others == {"ticket": 7}
    assert "typo" not in {it.likely_label for it in others}

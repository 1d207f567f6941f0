"""Laws of parts of a task's data."""

from collections import Counter
from dataclasses import replace

import pytest

from doubles.examples import toy_data
from nunatak_training import Example, ExampleSet, Relevance, TaskKind, TooFewExamplesError
from nunatak_training.data.labels import Label
from nunatak_training.sweeps import Cut, cut_data

DATA = toy_data(num_train=40, num_dev=20)


def texts(examples: ExampleSet | None) -> list[str]:
    return [] if examples is None else [example.text for example in examples.examples]


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    remaining = iter(whole)
    return all(text in remaining for text in part)


def test_no_cut_is_the_whole_data() -> None:
    cut = cut_data(DATA, Cut())

    assert cut.data == DATA
    assert cut.test is None


def test_smaller_cut_lies_in_the_larger_in_the_order_of_the_file() -> None:
    small, large = (cut_data(DATA, Cut(train=count)).data.train for count in (5, 15))

    assert len(small) == 5
    assert is_subsequence(texts(small), texts(large))
    assert is_subsequence(texts(large), texts(DATA.train))
    assert texts(large) != texts(DATA.train)[:15], "the first rows need not be a random sample"


def test_dev_from_train_is_disjoint_from_train_and_leaves_dev_for_the_test() -> None:
    cut = cut_data(DATA, Cut(train=10, dev=8, dev_from_train=True))

    assert (len(cut.data.train), len(cut.data.dev)) == (10, 8)
    assert not set(texts(cut.data.train)) & set(texts(cut.data.dev))
    assert set(texts(cut.data.dev)) <= set(texts(DATA.train))
    assert cut.test == DATA.dev


def test_labels_stay_those_of_the_whole_data() -> None:
    assert cut_data(DATA, Cut(train=1)).data.labels == DATA.labels


def test_cut_that_leaves_nothing_to_choose_by_is_refused() -> None:
    with pytest.raises(TooFewExamplesError, match="40 train examples leave none to choose by"):
        cut_data(DATA, Cut(train=40, dev=5, dev_from_train=True))


RANKED = tuple(
    Example(
        text=f"query {group}",
        text_pair=f"document {number}",
        label=Relevance(grade=float(number == 0), group=str(group)),
    )
    for number in range(5)
    for group in range(8)
)


@pytest.mark.parametrize(
    "cut", [Cut(train=4), Cut(dev=4), Cut(train=20, dev=4, dev_from_train=True)]
)
def test_cap_below_the_documents_of_a_query_is_refused(cut: Cut) -> None:
    examples = ExampleSet(examples=RANKED)
    ranked = replace(DATA, kind=TaskKind.RANKING, train=examples, dev=examples)

    with pytest.raises(TooFewExamplesError, match="at most 4 examples holds none"):
        cut_data(ranked, cut)


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [
        (TaskKind.REGRESSION, 1.0, 2.0),
        (TaskKind.RANKING, Relevance(grade=1.0, group="a"), Relevance(grade=0.0, group="b")),
    ],
)
def test_cap_that_leaves_one_value_is_refused(kind: TaskKind, same: Label, other: Label) -> None:
    labels = [same] * 7 + [other]
    examples = ExampleSet(
        examples=tuple(Example(text=f"text {it}", label=label) for it, label in enumerate(labels))
    )
    data = replace(DATA, kind=kind, train=examples, dev=examples)

    assert cut_data(data, Cut(train=8)).data.train == examples
    cap = 1 if kind is TaskKind.REGRESSION else 7
    with pytest.raises(TooFewExamplesError, match="have the same value; raise the cap"):
        cut_data(data, Cut(train=cap))


def test_documents_of_one_group_stay_together() -> None:
    ranked = replace(DATA, kind=TaskKind.RANKING, train=ExampleSet(examples=RANKED))

    part = cut_data(ranked, Cut(train=13)).data.train

    sizes = Counter(it.text for it in part.examples)
    assert sorted(sizes.values()) == [5, 5]

"""Laws of suspicious examples: valid in form, but harmful."""

from pathlib import Path

import pytest

from doubles.examples import toy_data
from nunatak_training.data import (
    DataProblem,
    Example,
    ExampleSet,
    Label,
    LabelSet,
    TaskData,
    data_warnings,
    load_task_data,
)
from nunatak_training.data.splits import MAX_IMBALANCE
from nunatak_training.kinds import TaskKind

ROOT = Path(__file__).parents[4]
SHIPPED = sorted(
    it.parent for it in (*ROOT.glob("demo/data/*/dev.*"), *ROOT.glob("examples/*/dev.jsonl"))
)


def examples(*rows: tuple[str, Label], pair: str | None = None) -> ExampleSet:
    return ExampleSet(
        examples=tuple(Example(text=text, text_pair=pair, label=label) for text, label in rows)
    )


def data_of(
    train: ExampleSet,
    dev: ExampleSet | None = None,
    test: ExampleSet | None = None,
    kind: TaskKind = TaskKind.SINGLE_LABEL,
) -> TaskData:
    labels = tuple(sorted({str(example.label) for example in train.examples}))
    dev = dev or examples(("q", "a"))
    return TaskData(name="toy", kind=kind, train=train, dev=dev, test=test, labels=labels)


CLEAN = (("one", "a"), ("two", "b"), ("three", "a"))


def problems(data: TaskData, num_long: tuple[int, int] = (0, 0)) -> list[DataProblem]:
    return [it.problem for it in data_warnings(data, num_long=num_long, max_length=8)]


def test_clean_data_has_no_warning() -> None:
    assert problems(data_of(examples(*CLEAN), test=examples(("r", "b")))) == []


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda it: it.name)
def test_data_that_we_ship_has_no_warning(folder: Path) -> None:
    data = load_task_data(folder)

    assert data_warnings(data, max_length=128) == ()


def test_texts_that_dev_shares_with_train_are_counted() -> None:
    dev = examples((" Two", "b"), ("new", "a"), ("one", "a"))

    (warning,) = data_warnings(data_of(examples(*CLEAN), dev), max_length=8)

    assert warning.problem is DataProblem.IN_TRAIN_AND_DEV
    assert warning.found == "2 of 3 examples, such as ' Two'"
    assert "remove" in warning.problem.advice


def test_texts_that_test_shares_with_train_are_counted() -> None:
    data = data_of(examples(*CLEAN), test=examples(("three", "a")))

    assert problems(data) == [DataProblem.IN_TRAIN_AND_TEST]


def test_a_pair_shares_both_of_its_texts_or_nothing() -> None:
    train = examples(*CLEAN, pair="left")

    assert problems(data_of(train, examples(("one", "a"), pair="right"))) == []
    assert problems(data_of(train, examples(("one", "a"), pair="left"))) != []


def test_one_text_with_two_labels_is_a_contradiction() -> None:
    (warning,) = data_warnings(data_of(examples(*CLEAN, ("one", "b"))), max_length=8)

    assert warning.problem is DataProblem.CONTRADICTION
    assert warning.found == "1 text, such as 'one'"


@pytest.mark.parametrize(
    ("kind", "labels"),
    [(TaskKind.REGRESSION, (1.0, 2.0)), (TaskKind.MULTI_LABEL, (LabelSet(names=("a", "b")),) * 2)],
)
def test_values_and_equal_sets_of_labels_are_no_contradiction(
    kind: TaskKind, labels: tuple[Label, ...]
) -> None:
    train = examples(*(("one", it) for it in labels))

    assert problems(data_of(train, examples(("two", labels[0])), kind=kind)) == []


@pytest.mark.parametrize("label", [" a", "a ", "a\u00a0"])
def test_white_space_around_a_label_is_told(label: str) -> None:
    found = data_warnings(data_of(examples(*CLEAN, ("four", label))), max_length=8)

    assert [it.problem for it in found] == [DataProblem.WHITE_SPACE, DataProblem.LOOK_ALIKE]
    assert repr(label) in found[0].found


def test_more_than_a_hundredth_of_examples_that_are_cut_is_told() -> None:
    data = toy_data(num_train=100, num_dev=16)

    told = [DataProblem.CUT in problems(data, it) for it in ((0, 0), (1, 0), (2, 0), (0, 1))]

    assert told == [False, False, True, True]


def test_dev_examples_that_a_constant_answers_are_told() -> None:
    train = examples(*CLEAN)

    (warning,) = data_warnings(data_of(train, examples(("x", "a"), ("y", "a"))), max_length=8)

    assert warning.problem is DataProblem.ONE_ANSWER
    assert warning.found == "all 2 examples: 'a'"
    assert problems(data_of(train, examples(("x", "a"), ("y", "b")))) == []


def test_a_label_far_rarer_than_another_is_told() -> None:
    def is_told(times: int) -> bool:
        rows = [(f"text {number}", "common") for number in range(times)]
        return DataProblem.IMBALANCE in problems(data_of(examples(*rows, ("other", "rare"))))

    assert [is_told(MAX_IMBALANCE - 1), is_told(MAX_IMBALANCE)] == [False, True]

import pytest

from nunatak_training.data import Example, ExampleSet
from nunatak_training.data.examples import sorted_labels

FIRST = Example(text="one", label="a")
SECOND = Example(text="two", text_pair="three", label="b")


def digest(*examples: Example) -> str:
    return ExampleSet(examples=examples).digest


def test_equal_examples_have_equal_digests() -> None:
    assert digest(FIRST, SECOND) == digest(FIRST, SECOND)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((SECOND, FIRST), id="order"),
        pytest.param((FIRST,), id="fewer"),
        pytest.param((FIRST, Example(text="two", text_pair="three", label="c")), id="label"),
        pytest.param((FIRST, Example(text="two", text_pair=None, label="b")), id="no-pair"),
        pytest.param((FIRST, Example(text='two","three', label="b")), id="quotes"),
    ],
)
def test_any_difference_changes_the_digest(others: tuple[Example, ...]) -> None:
    assert digest(*others) != digest(FIRST, SECOND)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(["b", "a", "b"], ("a", "b"), id="text"),
        pytest.param(["10", "9", "-1"], ("-1", "9", "10"), id="integers"),
        pytest.param(["10", "9", "x"], ("10", "9", "x"), id="not-all-integers"),
        pytest.param(["1", "01", "0"], ("0", "01", "1"), id="leading-zeros"),
        pytest.param(["\u0662", "10"], ("10", "\u0662"), id="digits-of-another-script"),
    ],
)
def test_labels_are_sorted_by_value_only_if_all_are_integers(
    labels: list[str], expected: tuple[str, ...]
) -> None:
    assert sorted_labels(labels) == expected


def test_pair_is_a_pair_for_the_tokenizer() -> None:
    assert FIRST.model_input == "one"
    assert SECOND.model_input == ("two", "three")

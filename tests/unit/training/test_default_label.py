"""The label that means that nothing was found: a named label, or the more frequent of two."""

import pytest

from doubles.backbones import tiny_backbone
from nunatak_contract.methods import HeadOnly
from nunatak_training.data import Example, ExampleSet, TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import check_recipe
from nunatak_training.publishing import default_label_of
from nunatak_training.recipes import default_recipe


def data_of(*labels: str) -> TaskData:
    examples = tuple(Example(text=f"text {n}", label=label) for n, label in enumerate(labels))
    both = ExampleSet(examples=examples)
    return TaskData(name="data", train=both, dev=both, labels=tuple(sorted(set(labels))))


@pytest.mark.parametrize(
    ("labels", "named", "default"),
    [
        (("a", "b", "b"), None, "b"),
        (("b", "a", "b", "a"), None, "a"),
        (("a", "b", "b"), "a", "a"),
        (("a", "b", "b", "c"), None, None),
        (("a", "b", "b", "c"), "c", "c"),
        (("a", "b", "b"), "none", None),
        (("a", "b", "none"), "none", "none"),
    ],
)
def test_the_default_label_is_the_named_one_or_of_two_the_more_frequent(
    labels: tuple[str, ...], named: str | None, default: str | None
) -> None:
    recipe = default_recipe(HeadOnly(), changes={"default_label": named, "max_length": 16})
    check_recipe(recipe, data_of(*labels), tiny_backbone())

    assert default_label_of(data_of(*labels), recipe) == default


def test_a_default_label_that_is_no_label_is_refused() -> None:
    recipe = default_recipe(HeadOnly(), changes={"default_label": "z", "max_length": 16})

    with pytest.raises(InvalidRecipeError, match="must be none or one of 'a', 'b', got 'z'"):
        check_recipe(recipe, data_of("a", "b"), tiny_backbone())


def test_a_recipe_without_a_word_on_long_texts_keeps_its_digest() -> None:
    assert not {"default_label", "on_long"} & default_recipe(HeadOnly()).settings().keys()

import math
import pickle
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.problems import REASONS
from nunatak_contract.questions import TypedQuestion
from nunatak_contract.record import Record, problems_of, problems_text
from nunatak_server.errors import OverloadedError


def test_an_error_has_its_code_its_fields_and_a_message_of_them() -> None:
    error = NunatakError("invalid_row", where="train.jsonl:17", problem="'text' is empty")

    assert error.code == "invalid_row"
    assert error.fields == {"where": "train.jsonl:17", "problem": "'text' is empty"}
    assert str(error) == "train.jsonl:17: 'text' is empty"


def test_braces_in_a_value_are_no_fields() -> None:
    assert str(NunatakError("invalid_recipe", problem="got {where}")) == "got {where}"


@pytest.mark.parametrize("code", ["no_such_code", "invalid_text"], ids=["unlisted", "no-value"])
def test_a_code_that_nobody_listed_or_without_a_value_of_its_message_is_a_bug(code: str) -> None:
    with pytest.raises(KeyError):
        NunatakError(code)


def test_a_long_name_is_quoted_in_part() -> None:
    error = InvalidNameError("task name", "x" * 500, "a name")

    assert str(error) == f"task name must be a name, got {'x' * 80!r}"


def test_codes_are_words_of_small_letters() -> None:
    assert all(code.replace("_", "").isalpha() and code.islower() for code in REASONS)


class Everything(Record, frozen=True):
    count: int = Field(1, ge=1, le=5)
    share: float = Field(0.5, gt=0, lt=1)
    name: str = Field("a", min_length=1, max_length=3, pattern="^a")
    flag: bool = True
    numbers: tuple[int, ...] = Field((), max_length=1)
    by_name: dict[str, int] = Field(default_factory=dict[str, int])
    choice: Literal["a", "b"] = "a"
    needed: int


VALUES: tuple[object, ...] = (None, "x", "aaaa", "", 9, -1, 1.5, math.nan, [1, 2], {"a": "b"}, {})


@pytest.mark.parametrize("field", [*Everything.model_fields, "other"])
def test_no_word_of_pydantic_is_in_an_error(field: str) -> None:
    for value in VALUES:
        try:
            Everything.model_validate({field: value})
        except ValidationError as error:
            told = [problem for _, problem in problems_of(error)]

            assert all(it.startswith(("expected ", "there is no such field")) for it in told), told
            assert "valid" not in str(told)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"options": ["a"]}, "options.0: expected an object, got a text"),
        ({"options": []}, "question: a choice needs 2 to 255 options"),
        ({"type": "score", "options": [{"value": "a"}]}, "question: a score has no options"),
        ({"options": [], "criteria": {}}, "question: `criteria` says what `options` says: "),
    ],
)
def test_an_error_of_pydantic_names_the_place_and_no_class(
    fields: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        TypedQuestion.model_validate({"type": "choice", **fields})

    assert problems_text(caught.value, "question").startswith(told)


@pytest.mark.parametrize(
    "error",
    [
        NunatakError("invalid_option", problem="expected 1"),
        InvalidNameError("task", "A B", "lower case"),
        OverloadedError("requests", 3, retry_after_s=2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_it_was_raised(error: NunatakError) -> None:
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)

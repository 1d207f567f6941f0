"""Laws of the wire format of requests."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pytest

from nunatak_client import InvalidInputError
from nunatak_client.calls import (
    Inputs,
    Parts,
    json_body,
    judge,
    path_segment,
    task_target,
    wire_inputs,
)
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input, Query, Question

DOCUMENTS = cast("list[str]", {"a": "b"})
ITERATOR = cast("list[str]", iter(["a"]))


@pytest.mark.parametrize(
    ("inputs", "value", "num_inputs"),
    [
        ("a", "a", None),
        (("a", "b"), {"text": "a", "text_pair": "b"}, None),
        (["a"], ["a"], 1),
        (["a", ("b", "c")], ["a", {"text": "b", "text_pair": "c"}], 2),
        (Question(question="q", context="c"), {"question": "q", "context": "c"}, None),
        ([Query(query="q", documents=("a", "b"))], [{"query": "q", "documents": ["a", "b"]}], 1),
    ],
)
def test_inputs_follow_the_contract(inputs: Inputs, value: object, num_inputs: int | None) -> None:
    wire = wire_inputs(inputs)

    assert wire.value == value
    assert wire.num_inputs == num_inputs


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        ("a", "b", "c"),
        ["a", 3],
        [["a", "b"]],
        [b"bytes"],
        Query(query="q", documents=()),
        Query(query="q", documents="documents"),
        3,
        None,
        {"text": "a"},
        {"a", "b"},
        pd.DataFrame({"text": ["a"]}),
        Query(query="q", documents=DOCUMENTS),
        Query(query="q", documents=ITERATOR),
    ],
)
def test_inputs_that_are_no_texts_are_refused_before_sending(inputs: Inputs) -> None:
    with pytest.raises(InvalidInputError):
        wire_inputs(inputs)


@pytest.mark.parametrize(
    "texts",
    [
        {"text": "a"},
        {"a", "b"},
        b"a",
        pd.DataFrame({"text": ["a"]}),
        pl.LazyFrame({"text": ["a"]}),
        np.array("a"),
    ],
    ids=type,
)
def test_no_policy_judges_names_of_fields_or_bytes_in_place_of_their_texts(
    texts: list[str],
) -> None:
    with pytest.raises(InvalidInputError, match="pass a list, or one column"):
        judge("guard", texts)
    for read in (Parts, wire_inputs):
        with pytest.raises(InvalidInputError, match="pass a list, or one column"):
            read(texts)


def test_the_place_of_a_wrong_input_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"^input 1: an input must be a text"):
        wire_inputs(["a", None])  # pyrefly: ignore[bad-argument-type]


def test_a_text_is_no_list_of_letters() -> None:
    with pytest.raises(InvalidInputError, match="list"):
        Parts("text")


def test_an_error_of_the_inputs_comes_after_the_inputs_before_it() -> None:
    def inputs() -> Iterator[Input]:
        yield from ("a", "b")
        raise ValueError("row 3")

    parts = Parts(inputs())
    part = parts.take()

    assert part == ["a", "b"]
    parts.refuse(part, NunatakError("too_many_tokens", num_tokens=9, limit=8))
    assert [parts.take(), parts.take()] == [["a"], ["b"]]
    with pytest.raises(ValueError, match="row 3"):
        parts.take()


def test_columns_of_tables_are_lists_of_texts() -> None:
    column = pd.Series(["a", "b"], index=[7, 8])

    assert wire_inputs(column).value == ["a", "b"]  # pyrefly: ignore[bad-argument-type]


def test_text_travels_as_utf8() -> None:
    assert json_body({"inputs": "Gr\u00fc\u00dfe"}) == '{"inputs":"Gr\u00fc\u00dfe"}'.encode()


def test_lone_surrogate_is_refused_before_sending() -> None:
    with pytest.raises(InvalidInputError, match="surrogate"):
        json_body({"inputs": "a\ud800"})


@pytest.mark.parametrize("value", [np.int64(3), float("nan")])
def test_a_value_that_json_cannot_hold_is_refused_before_sending(value: Any) -> None:  # noqa: ANN401 - no value of JSON
    with pytest.raises(InvalidInputError, match="numbers of Python"):
        json_body({"version": value})


@pytest.mark.parametrize(
    ("reference", "path", "query"),
    [
        ("tone", "/v1/tasks/tone", {}),
        ("tone@prod", "/v1/tasks/tone@prod", {}),
        ("tone/3", "/v1/tasks/tone", {"version": "3"}),
        ("a b?c#d", "/v1/tasks/a%20b%3Fc%23d", {}),
        ("a/../../x", "/v1/tasks/a", {"version": "../../x"}),
    ],
)
def test_reference_becomes_path_and_query(reference: str, path: str, query: dict[str, str]) -> None:
    assert task_target(reference) == (path, query)


@pytest.mark.parametrize("name", ["", ".", "..", "/3", "../x", ["tone", "intent"], None])
def test_reference_that_would_change_the_path_or_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(InvalidInputError, match="task reference must be a name"):
        task_target(cast("str", name))


def test_a_segment_is_quoted_and_stays_one() -> None:
    assert path_segment("alias", "a b") == "a%20b"
    with pytest.raises(InvalidInputError, match="policy must be a name such as 'tone', got"):
        path_segment("policy", "guard/1")

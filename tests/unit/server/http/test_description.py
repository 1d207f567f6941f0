"""The grammar in the schema equals the grammar of the registry."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nunatak_contract.errors import InvalidNameError
from nunatak_contract.names import MAX_NAME_LENGTH, MAX_VERSION, TaskReference, check_version
from nunatak_server.http.pages import REFERENCE, VERSION, integers_up_to

LONGEST = "a" * MAX_NAME_LENGTH


def accepts(schema: dict[str, str], text: str) -> bool:
    return re.search(schema["pattern"], text) is not None


@given(st.integers(10, 5000), st.integers(0, 6000))
def test_integers_up_to_a_limit_are_described(limit: int, number: int) -> None:
    found = re.fullmatch(integers_up_to(limit), str(number)) is not None

    assert found == (1 <= number <= limit)


@given(st.integers(-1, 2 * MAX_VERSION).map(str) | st.text("0129"))
@example(str(MAX_VERSION))
@example(str(MAX_VERSION + 1))
@example("01")
def test_a_version_is_described_if_and_only_if_it_is_taken(text: str) -> None:
    try:
        check_version(text)
        is_taken = True
    except InvalidNameError:
        is_taken = False

    assert accepts(VERSION, text) == is_taken


@given(st.text("ab0.-_@", max_size=8))
def test_a_reference_is_described_if_and_only_if_it_is_taken(text: str) -> None:
    try:
        TaskReference.parse(text)
        is_taken = True
    except InvalidNameError:
        is_taken = False

    assert accepts(REFERENCE, text) == is_taken


@pytest.mark.parametrize("text", [LONGEST, f"{LONGEST}@{LONGEST}"])
def test_names_are_described_up_to_their_longest(text: str) -> None:
    assert accepts(REFERENCE, text)
    assert not accepts(REFERENCE, f"{text}a")
    assert not accepts(REFERENCE, f"a{text}")

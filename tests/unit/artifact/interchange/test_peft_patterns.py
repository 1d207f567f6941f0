"""Patterns from a foreign file: matched like `re`, within a time limit."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.refusals import raises
from nunatak_artifact.interchange.peft_config import matches

NAMES = [
    "bert.encoder.layer.0.attention.self.query",
    "bert.encoder.layer.11.output.dense",
    "bert.pooler.dense",
]


def found(*patterns: str) -> list[frozenset[str]]:
    return matches(patterns, NAMES, folder="adapter", file="adapter_config.json")


def test_each_pattern_finds_the_names_it_matches_whole() -> None:
    assert found(r".*\.(query|dense)", "bert.pooler.dense", "query") == [
        frozenset(NAMES),
        frozenset({"bert.pooler.dense"}),
        frozenset(),
    ]


@given(st.text(alphabet="bert.pool-_0", max_size=12))
def test_plain_names_match_as_in_re(pattern: str) -> None:
    assert found(pattern) == [frozenset(it for it in NAMES if re.fullmatch(pattern, it))]


@pytest.mark.parametrize("pattern", ["((", "*", "(?P<a>", "a{2,1}", "\\", "[", "(" * 2000])
def test_what_is_no_pattern_is_a_corrupt_file(pattern: str) -> None:
    with raises("corrupt_file", match="no regular expression"):
        found(pattern)


def test_a_pattern_that_would_take_years_is_given_up() -> None:
    started = time.monotonic()

    with raises("corrupt_file", match="to match"):
        matches(
            ["(.|.)*(.|.)*x"],
            NAMES,
            folder="adapter",
            file="adapter_config.json",
            time_limit=0.5,
        )

    assert time.monotonic() - started < 5

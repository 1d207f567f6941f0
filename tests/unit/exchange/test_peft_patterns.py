"""Patterns from a foreign file: they reach peft only if they match within a time limit."""

import time
from pathlib import Path
from typing import Any

import pytest

from doubles.refusals import raises
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.peft_config import check_patterns

NAMES = [
    "bert.encoder.layer.0.attention.self.query",
    "bert.encoder.layer.11.output.dense",
    "bert.pooler.dense",
]
ENDLESS = "(.|.)*(.|.)*x"
FIELDS: dict[str, Any] = {
    "target_modules": ENDLESS,
    "exclude_modules": ENDLESS,
    "feedforward_modules": ENDLESS,
    "modules_to_save": [ENDLESS],
    "layers_pattern": [ENDLESS],
    "rank_pattern": {ENDLESS: 2},
    "alpha_pattern": {ENDLESS: 2},
    "target_parameters": [ENDLESS],
}


@pytest.mark.parametrize("pattern", [r".*\.(query|dense)", "bert.pooler.dense", "query", ""])
def test_a_pattern_that_matches_at_once_is_let_through(pattern: str) -> None:
    check_patterns(Checkpoint(Path("adapter")), {"target_modules": pattern}, NAMES)


@pytest.mark.parametrize("pattern", ["((", "*", "(?P<a>", "a{2,1}", "\\", "[", "(" * 2000])
def test_what_is_no_pattern_is_a_corrupt_file(pattern: str) -> None:
    with raises("corrupt_file", match="no regular expression"):
        check_patterns(Checkpoint(Path("adapter")), {"target_modules": pattern}, NAMES)


@pytest.mark.parametrize("field", FIELDS)
def test_a_pattern_that_would_take_years_is_given_up_wherever_it_stands(field: str) -> None:
    started = time.monotonic()

    with raises("corrupt_file", match="to match"):
        check_patterns(Checkpoint(Path("adapter")), {field: FIELDS[field]}, NAMES, time_limit=0.3)

    assert time.monotonic() - started < 5


def test_texts_that_peft_does_not_match_are_no_patterns() -> None:
    check_patterns(
        Checkpoint(Path("adapter")), {"base_model_name_or_path": "C:\\models\\(base"}, NAMES
    )

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_server.batching.pace import FIXED_SHARE, MIN_EFFICIENT_TOKENS, Pace

sizes = st.lists(st.integers(10, 4000), min_size=2, max_size=30).filter(
    lambda them: max(them) > 4 * min(them)
)


def pace_of(batches: Sequence[tuple[float, float]]) -> Pace:
    """Return the pace after batches of tokens and seconds."""
    pace = Pace().after(work=1, asked_work=1, seconds=100)
    for work, seconds in batches:
        pace = pace.after(work=work, asked_work=work, seconds=seconds)
    return pace


@given(sizes, st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3))
@settings(derandomize=True)
def test_a_batch_of_efficient_size_spends_its_share_on_what_is_fixed(
    tokens: list[int], fixed_s: float, per_token_s: float
) -> None:
    size = pace_of([(n, fixed_s + n * per_token_s) for n in tokens]).efficient_tokens

    if size > MIN_EFFICIENT_TOKENS and size < inf:
        assert fixed_s / (fixed_s + size * per_token_s) == pytest.approx(FIXED_SHARE, rel=0.01)


def test_batches_of_one_size_tell_nothing_about_the_fixed_part() -> None:
    assert pace_of([(100, 1.0)] * 50).efficient_tokens == inf


def test_what_was_learnt_is_kept_while_all_batches_are_of_one_size() -> None:
    learnt = [(10, 1.01), (1000, 2.0)]

    before, after = pace_of(learnt), pace_of(learnt + [(500, 1.5)] * 2000)

    assert before.efficient_tokens == pytest.approx(1000 * (1 / FIXED_SHARE - 1))
    assert after.efficient_tokens == pytest.approx(1000 * (1 / FIXED_SHARE - 1), rel=0.3)


def test_a_machine_without_a_fixed_part_still_gets_a_few_rows() -> None:
    assert pace_of([(n, n * 1e-3) for n in (10, 1000)]).efficient_tokens == MIN_EFFICIENT_TOKENS


def test_the_first_batch_is_not_counted() -> None:
    pace = Pace().after(work=9, asked_work=9, seconds=1)

    assert (pace.tokens_per_s, pace.largest_tokens, pace.efficient_tokens) == (None, 0, inf)


def test_the_pace_is_that_of_the_fastest_of_recent_batches() -> None:
    fast, slow = (100, 1.0), (100, 2.0)

    assert pace_of([fast, slow]).tokens_per_s == pytest.approx(98)
    assert pace_of([fast, *[slow] * 200]).tokens_per_s == 50

"""Laws of backoff."""

import pytest

from nunatak_client import RetryPolicy


def test_delay_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(retries=5, base_delay_s=1, max_delay_s=5, jitter=lambda: 1.0)

    assert [policy.delay_s(attempt) for attempt in range(6)] == [1, 2, 4, 5, 5, None]


@pytest.mark.parametrize("jitter", [0.0, 0.25, 1.0])
def test_jitter_only_shortens(jitter: float) -> None:
    policy = RetryPolicy(base_delay_s=1, jitter=lambda: jitter)

    assert policy.delay_s(0) == jitter


def test_wait_that_the_server_asks_for_is_a_lower_bound() -> None:
    policy = RetryPolicy(base_delay_s=1, jitter=lambda: 0.0)

    assert policy.delay_s(0, at_least_s=0.5) == 0.5


def test_wait_beyond_the_cap_is_left_to_the_caller() -> None:
    assert RetryPolicy(max_delay_s=5).delay_s(0, at_least_s=6) is None

"""Laws of the statistics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nunatak_loadtest.samples import (
    Latency,
    RequestStatistics,
    Sample,
    percentile,
    span_s,
)

TIMES = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=50)


def sample(
    response_ms: float, *, task: str = "tone", started_s: float = 0.0, error: str | None = None
) -> Sample:
    return Sample(tasks=(task,), started_s=started_s, response_ms=response_ms, error=error)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99, 99.0), (100, 100.0)]
)
def test_percentiles_of_one_to_a_hundred_are_themselves(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 101)], percent) == expected


@given(times=TIMES, percent=st.floats(min_value=0, max_value=100))
def test_percentile_is_measured_and_covers_its_share(times: list[float], percent: float) -> None:
    ordered = sorted(times)

    value = percentile(ordered, percent)

    assert value in ordered
    covered = sum(time <= value for time in ordered)
    assert covered / len(ordered) >= percent / 100 - 1e-9


def test_times_are_not_rounded() -> None:
    latency = Latency.of([147.318, 147.322, 147.319])

    assert latency is not None
    assert latency.p50_ms == 147.319
    assert latency.max_ms == 147.322


def test_no_answer_has_no_latency() -> None:
    statistics = RequestStatistics.of([sample(5, error="overloaded")], span_s=1.0)

    assert statistics.latency is None
    assert statistics.mean_queue_ms is None
    assert statistics.requests_per_s == 0


def test_failures_count_but_do_not_flatter_the_times() -> None:
    samples = [sample(10), sample(1, error="overloaded"), sample(1, error="overloaded")]

    statistics = RequestStatistics.of(samples, span_s=2.0)

    assert statistics.requests == 3
    assert statistics.failures == 2
    assert statistics.failure_codes == {"overloaded": 2}
    assert statistics.requests_per_s == 0.5
    assert statistics.latency is not None
    assert statistics.latency.p50_ms == 10


def test_mean_timings_leave_absent_ones_out() -> None:
    samples = [
        Sample(tasks=("tone",), started_s=0, response_ms=1, queue_ms=2, batch_size=4),
        Sample(tasks=("tone",), started_s=0, response_ms=1, queue_ms=4),
    ]

    statistics = RequestStatistics.of(samples, span_s=1.0)

    assert statistics.mean_queue_ms == 3
    assert statistics.mean_batch_size == 4


def test_span_reaches_from_first_start_to_last_end() -> None:
    assert span_s([sample(500, started_s=10), sample(3000, started_s=9)]) == 3
    assert span_s([]) == 0

"""A server that freezes under an open and under a closed loop of Locust."""

import pytest

from doubles.frozen_server import freezing_server
from nunatak_loadtest.process import run_locust

SECONDS, FREEZE_S = 3.0, 0.8


@pytest.mark.slow
def test_a_frozen_server_is_seen_by_an_open_loop_and_hidden_by_a_closed_one() -> None:
    found = dict[str, tuple[float, float]]()
    for name, users, rate in (("open", None, 60.0), ("closed", 2, None)):
        with freezing_server(freeze_at_s=SECONDS + 1, freeze_s=FREEZE_S) as server:
            report = run_locust(
                "verdicts",
                server=server,
                tasks=["guard"],
                users=users,
                rate_per_s=rate,
                seconds=SECONDS,
            )
        assert report.overall.failures == 0
        found[name] = report.overall.p95_ms, report.overall.max_ms

    assert min(most for _, most in found.values()) > 500 * FREEZE_S
    assert found["open"][0] > 250 * FREEZE_S > found["closed"][0]

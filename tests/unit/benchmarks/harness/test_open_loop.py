"""Laws of the loops of the races."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from benchmarks.harness.open_loop import Planned, drive_closed, drive_open, percentile, plan
from nunatak_client import ConnectionFailedError
from nunatak_loadtest.scenarios import Scenario

SCENARIO = Scenario(name="x")


class Blocking:
    """A client that keeps the whole loop busy for its answers, and knows nobody but `tone`."""

    def __init__(self, busy_s: float) -> None:
        self._busy_s = busy_s
        self.asked = list[str]()

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        self.asked.append(text)
        end_s = time.monotonic() + self._busy_s
        while time.monotonic() < end_s:
            pass
        if tuple(tasks) != ("tone",):
            raise ConnectionFailedError("nobody there")


def test_a_late_request_counts_from_its_due_time() -> None:
    planned = [Planned(due_s=0.0, tasks=("tone",), text=str(it)) for it in range(3)]

    samples = asyncio.run(drive_open(Blocking(busy_s=0.02), planned))

    assert [it.response_ms > 20 * number for number, it in enumerate(samples, 1)] == [True] * 3
    assert samples[2].lag_ms > 20
    assert samples[0].started_s == pytest.approx(samples[2].started_s)


def test_samples_are_in_the_order_of_the_plan_with_their_failures() -> None:
    planned = [Planned(due_s=it / 100, tasks=(name,), text=name) for it, name in enumerate("ab")]
    planned.insert(1, Planned(due_s=0.005, tasks=("tone",), text="tone"))
    client = Blocking(busy_s=0)

    samples = asyncio.run(drive_open(client, planned))

    assert client.asked == ["a", "tone", "b"]
    assert [it.error for it in samples] == ["connection_failed", None, "connection_failed"]


def test_users_of_a_closed_loop_ask_until_the_end() -> None:
    client = Blocking(busy_s=0.01)

    samples = asyncio.run(drive_closed(client, lambda: (("tone",), "x"), users=2, seconds=0.1))

    assert 5 <= len(samples) <= 12
    assert all(it.lag_ms < 1 or it.error is None for it in samples)


def test_a_plan_is_a_function_of_its_seed_and_ends_in_time() -> None:
    first, same, other = (
        plan(SCENARIO, ["tone"], rate_per_s=100, seconds=2, seed=seed) for seed in (1, 1, 2)
    )

    assert first == same != other
    assert 150 < len(first) < 250
    assert first[0].due_s > 0
    assert first[-1].due_s < 2


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_percentile_is_a_measured_value(percent: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], percent) == value

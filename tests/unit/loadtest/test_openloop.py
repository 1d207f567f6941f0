"""Laws of the open loop, and of the closed one beside it."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from doubles.frozen_server import freezing_server
from nunatak_client import ConnectionFailedError
from nunatak_client.results import Timings
from nunatak_loadtest import Scenario
from nunatak_loadtest.askers import NunatakAsker
from nunatak_loadtest.openloop import drive
from nunatak_loadtest.runner import warm
from nunatak_loadtest.samples import Sample, percentile
from nunatak_loadtest.scenario import Poisson, WarmUp
from nunatak_loadtest.steadiness import is_steady
from nunatak_loadtest.traffic import Planned, plan

FREEZE_S, SECONDS, RATE = 0.4, 2.0, 100.0
SCENARIO = Scenario(name="freeze", arrivals=Poisson(rate_per_s=RATE))


class HandClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class SlowAsker:
    """Takes time of the hand clock to send, as a stalled generator does."""

    def __init__(self, clock: HandClock, *, busy_s: float) -> None:
        self._clock = clock
        self._busy_s = busy_s
        self.asked = list[Sequence[str]]()

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        self._clock.now += self._busy_s
        self.asked.append(tasks)
        if "broken" in tasks:
            raise ConnectionFailedError("nobody there")
        return Timings(batch_size=len(tasks))


def planned(*due_s: float, tasks: tuple[str, ...] = ("tone",)) -> list[Planned]:
    return [Planned(due_s=it, tasks=tasks, text=f"text {it}") for it in due_s]


def driven(requests: list[Planned], *, busy_s: float = 0.0) -> list[Sample]:
    clock = HandClock()
    return asyncio.run(
        drive(SlowAsker(clock, busy_s=busy_s), requests, clock=clock, sleep=clock.sleep)
    )


def p95(samples: Sequence[Sample]) -> float:
    return percentile(sorted(sample.response_ms for sample in samples), 95)


def test_time_runs_from_when_a_request_was_due_not_from_when_it_left() -> None:
    first, second, third = driven(planned(1.0, 1.5, 4.0), busy_s=2.0)

    assert (first.response_ms, first.lag_ms) == (2000, 0)
    assert (second.response_ms, second.lag_ms) == (3500, 1500)
    assert (third.response_ms, third.lag_ms) == (3000, 1000)


def test_every_planned_request_is_sent_once_in_order() -> None:
    requests = plan(SCENARIO, ("a", "b"), seed=0, seconds=3)

    samples = driven(list(requests))

    assert [sample.tasks for sample in samples] == [request.tasks for request in requests]
    starts = [sample.started_s - 100.0 for sample in samples]
    assert starts == pytest.approx([request.due_s for request in requests])


def test_failure_is_a_sample_with_its_code_and_stops_nothing() -> None:
    broken, fine = driven([*planned(0.1, tasks=("broken",)), *planned(0.2, tasks=("a", "b"))])

    assert broken.error == "connection_failed"
    assert fine.error is None
    assert fine.batch_size == 2


def test_freeze_shows_in_the_p95_of_the_open_loop_and_hides_from_a_user_who_waits() -> None:
    async def open_loop(address: str) -> list[Sample]:
        async with NunatakAsker(address) as asker:
            return await drive(asker, plan(SCENARIO, ("tone",), seed=0, seconds=SECONDS))

    async def one_user(address: str) -> list[float]:
        times_ms, end = list[float](), time.monotonic() + SECONDS
        async with NunatakAsker(address) as asker:
            while (began := time.monotonic()) < end:
                await asker.ask(["tone"], "text")
                times_ms.append((time.monotonic() - began) * 1000)
        return times_ms

    with freezing_server(freeze_at_s=0.5, freeze_s=FREEZE_S) as address:
        seen = asyncio.run(open_loop(address))
    with freezing_server(freeze_at_s=0.5, freeze_s=FREEZE_S) as address:
        hidden = asyncio.run(one_user(address))

    assert not any(sample.error for sample in seen)
    assert p95(seen) > 0.4 * FREEZE_S * 1000
    assert percentile(sorted(hidden), 95) < 0.2 * FREEZE_S * 1000


@pytest.mark.parametrize(
    ("medians", "steady"),
    [
        pytest.param([10, 10.2, 10.4], True, id="within-5-percent"),
        pytest.param([10, 10.2, 10.6], False, id="beyond"),
        pytest.param([90, 10, 10, 10], True, id="only-the-last-three-count"),
        pytest.param([10, 10], False, id="too-few"),
        pytest.param([10, None, 10], False, id="a-window-without-answers"),
    ],
)
def test_steady_means_that_three_windows_agree(
    medians: list[float | None], *, steady: bool
) -> None:
    assert is_steady(medians, tolerance=0.05) is steady


@pytest.mark.parametrize(
    ("longest_s", "windows", "steady"), [(10.0, 3, True), (0.5, 2, False), (0.0, 0, None)]
)
def test_warm_up_ends_when_steady_or_after_its_time(
    longest_s: float, windows: int, *, steady: bool | None
) -> None:
    clock = HandClock()
    rule = WarmUp(window_s=0.2, longest_s=longest_s)
    scenario = SCENARIO.model_copy(update={"warm_up": rule})
    asker = SlowAsker(clock, busy_s=0.0)

    warmed = asyncio.run(warm(asker, scenario, ("tone",), clock=clock, sleep=clock.sleep))

    assert len(warmed.window_medians_ms) == windows
    assert warmed.steady is steady

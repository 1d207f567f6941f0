"""Laws of the load generator: the open loop and the closed loop."""

import asyncio
from collections.abc import Sequence

import pytest

from doubles.frozen_server import freezing_server
from nunatak_client import ConnectionFailedError, Timings
from nunatak_loadtest import Scenario
from nunatak_loadtest.generator import NunatakLoadClient, drive, drive_open, spells
from nunatak_loadtest.runner import is_steady, warm
from nunatak_loadtest.samples import Sample, percentile
from nunatak_loadtest.scenario import Closed, Poisson, Step, WarmUp
from nunatak_loadtest.traffic import Planned, plan

FREEZE_S, SECONDS, RATE = 0.4, 2.0, 100.0
SCENARIO = Scenario(name="freeze", arrivals=Poisson(rate_per_s=RATE))


class HandClock:
    """A clock that moves only during sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class SlowClient:
    """Answers after a time on the hand clock, and blocks everything else."""

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
        drive_open(SlowClient(clock, busy_s=busy_s), requests, clock=clock, sleep=clock.sleep)
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


async def test_freeze_shows_in_the_p95_of_the_open_loop_and_hides_from_a_user_who_waits() -> None:
    async def ask(address: str, scenario: Scenario) -> list[Sample]:
        async with NunatakLoadClient(address) as client:
            return await drive(client, scenario, ("tone",), seed=0, seconds=SECONDS)

    one_user = SCENARIO.model_copy(update={"arrivals": Closed(users=1)})
    with freezing_server(freeze_at_s=0.5, freeze_s=FREEZE_S) as address:
        seen = await ask(address, SCENARIO)
    with freezing_server(freeze_at_s=0.5, freeze_s=FREEZE_S) as address:
        hidden = await ask(address, one_user)

    assert not any(sample.error for sample in (*seen, *hidden))
    assert p95(seen) > 0.4 * FREEZE_S * 1000
    assert p95(hidden) < 0.2 * FREEZE_S * 1000


class WaitingClient:
    """Answers after a time on the hand clock, and counts the open requests."""

    def __init__(self, clock: HandClock, *, answer_s: float) -> None:
        self._clock = clock
        self._answer_s = answer_s
        self.under_way = 0
        self.most = 0
        self.texts = list[str]()

    async def ask(self, tasks: Sequence[str], text: str) -> Timings:
        self.texts.append(text)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self._clock.sleep(self._answer_s)
        self.under_way -= 1
        return Timings()


def used(arrivals: Closed, *, seconds: float = 10.0) -> tuple[WaitingClient, list[Sample]]:
    clock = HandClock()
    client = WaitingClient(clock, answer_s=0.5)
    scenario = Scenario(name="users", arrivals=arrivals)
    samples = asyncio.run(
        drive(client, scenario, ("tone",), seed=0, seconds=seconds, clock=clock, sleep=clock.sleep)
    )
    return client, samples


def test_user_asks_again_once_the_answer_is_there_until_the_time_is_over() -> None:
    _, samples = used(Closed(users=1), seconds=2.0)

    assert [sample.started_s - 100 for sample in samples] == [0, 0.5, 1.0, 1.5]
    assert {sample.response_ms for sample in samples} == {500}
    assert {sample.lag_ms for sample in samples} == {0}


def test_as_many_requests_are_under_way_as_there_are_users_each_with_texts_of_its_own() -> None:
    client, samples = used(Closed(users=4))

    assert client.most == 4
    assert client.under_way == 0
    assert len(set(client.texts)) == len(samples)


def test_users_take_part_in_the_steps_that_are_large_enough() -> None:
    stages = [(1, 15.0), (4, 10.0), (2, 5.0)]

    assert [list(spells(user, stages)) for user in range(4)] == [
        [(0, 15), (15, 25), (25, 30)],
        [(15, 25), (25, 30)],
        [(15, 25)],
        [(15, 25)],
    ]


def test_steps_of_a_scenario_say_how_long_it_lasts() -> None:
    steps = (Step(users=1, seconds=2), Step(users=3, seconds=2))

    client, samples = used(Closed(steps=steps), seconds=1000.0)

    assert client.most == 3
    assert max(sample.started_s for sample in samples) < 104.0
    assert min(sample.started_s for sample in samples) == 100.0


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
async def test_warm_up_ends_when_steady_or_after_its_time(
    longest_s: float, windows: int, *, steady: bool | None
) -> None:
    clock = HandClock()
    rule = WarmUp(window_s=0.2, longest_s=longest_s)
    scenario = SCENARIO.model_copy(update={"warm_up": rule})
    client = SlowClient(clock, busy_s=0.0)

    warmed = await warm(client, scenario, ("tone",), clock=clock, sleep=clock.sleep)

    assert len(warmed.window_medians_ms) == windows
    assert warmed.steady is steady

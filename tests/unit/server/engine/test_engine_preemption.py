"""Laws of the engine between the layers of a batch."""

import asyncio
import itertools
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from doubles.engines import (
    FakeCompute,
    LayeredCompute,
    all_outcomes,
    logits_of,
    make_engine,
    make_row,
)
from doubles.refusals import code_of
from doubles.serving import ManualClock, RecordingObserver
from nunatak_model import Branch
from nunatak_server.engine.compute import BatchReport
from nunatak_server.errors import DeadlineExceededError, EngineFailedError
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import PendingRow


def make_heavy(branch: Branch) -> list[PendingRow]:
    """More rows of one task than one batch takes."""
    return [make_row(branch, token, task="heavy") for token in range(9)]


@pytest.mark.parametrize("comes_in_a_batch", [False, True], ids=["between-layers", "in-a-batch"])
async def test_rows_go_before_the_layers_of_a_heavy_flow_that_are_left(
    branch: Branch, *, comes_in_a_batch: bool
) -> None:
    heavy = make_heavy(branch)
    light, late = make_row(branch, 100, task="light"), make_row(branch, 101, task="late")
    coming = [[late]]

    def come(num_rows: int = 1) -> None:
        if num_rows == 1 and coming:
            engine.submit(coming.pop())

    compute = LayeredCompute(lambda: engine.submit([light]), *[come] * (not comes_in_a_batch))
    if comes_in_a_batch:
        compute.on_batch = come
    observer = RecordingObserver()
    engine = make_engine(compute, observer=observer)

    outcomes = await all_outcomes(engine, heavy, of=[*heavy, light, late])

    assert [logits_of(outcome)[0] for outcome in outcomes] == [*range(9), 100, 101]
    assert compute.ended == [[100], [101], [0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [batch.num_rows for batch in observer.batches] == [1, 1, 4, 4, 1]


async def test_rows_of_two_backbones_that_come_together_both_preempt(branch: Branch) -> None:
    heavy = make_heavy(branch)
    light = [make_row(branch, 100, task="light"), make_row(branch, 101, backbone="other")]
    compute, other = LayeredCompute(lambda: engine.submit(light)), FakeCompute()
    observer = RecordingObserver()
    engine = make_engine(compute, observer=observer, others={"other": other})

    outcomes = await all_outcomes(engine, heavy, of=[*heavy, *light])

    assert [logits_of(outcome)[0] for outcome in outcomes] == [*range(9), 100, 101]
    assert other.batches == [[101]]
    assert compute.ended == [[100], [0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [batch.num_rows for batch in observer.batches] == [1, 1, 4, 4, 1]


async def test_a_device_that_does_not_stop_computes_light_rows_first(branch: Branch) -> None:
    heavy, light = make_heavy(branch), make_row(branch, 100, task="light")
    compute = FakeCompute()
    engine = make_engine(compute)

    await all_outcomes(engine, [*heavy, light])

    assert compute.batches == [[100], [0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("dropped", ["shadow", "cancelled", "expired"])
async def test_a_row_that_is_dropped_keeps_none_of_its_flow_from_going_first(
    branch: Branch, dropped: str
) -> None:
    compute = LayeredCompute(lambda: None)
    engine = make_engine(compute)
    heavy, light = make_heavy(branch), make_row(branch, 100, task="light")
    other = make_row(branch, 101, task="light", deadline=-1 if dropped == "expired" else 10)
    if dropped == "shadow":
        other = replace(other, is_shadow=True)
    if dropped == "cancelled":
        other.future.cancel()

    await all_outcomes(engine, [*heavy, light, other], of=[*heavy, light])

    assert compute.ended[0] == [100]


async def test_a_shadow_keeps_no_later_row_of_its_flow_from_preemption(branch: Branch) -> None:
    first, later = make_row(branch, 100, task="light"), make_row(branch, 101, task="light")
    shadow = replace(make_row(branch, 102, task="light"), is_shadow=True)
    compute = LayeredCompute(lambda: engine.submit([first, shadow]), lambda: engine.submit([later]))
    engine = make_engine(compute)
    heavy = make_heavy(branch)

    await all_outcomes(engine, heavy, of=[*heavy, first, later])

    assert compute.ended[:2] == [[100], [101]]


async def test_a_shadow_is_dropped_with_the_last_row_it_could_be_computed_beside(
    branch: Branch,
) -> None:
    clock = ManualClock()
    running, late = make_row(branch, 1), make_row(branch, 2, task="late", deadline=5)
    shadow = replace(make_row(branch, 3, task="late"), is_shadow=True)

    def pass_deadline() -> None:
        clock.now = 5

    compute = LayeredCompute(lambda: engine.submit([late, shadow]), pass_deadline)
    engine = make_engine(compute, clock=clock)
    engine.submit([running])
    engine.start()

    outcome = await asyncio.wait_for(shadow.future, timeout=10)

    assert isinstance(await late.future, DeadlineExceededError)
    assert isinstance(outcome, DeadlineExceededError)
    assert compute.ended == [[1]]
    await engine.aclose()


async def test_what_preempts_a_batch_is_not_counted_as_its_time(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopwatch = ManualClock()

    def light_arrives() -> None:
        stopwatch.now += 1.0
        engine.submit([light])

    def take_time(num_rows: int) -> None:
        stopwatch.now += num_rows

    compute = LayeredCompute(light_arrives, on_batch=take_time)
    engine = make_engine(compute, stopwatch=stopwatch)
    paces: list[float] = []
    after = BatchTimeModel.after
    heavy, light = make_heavy(branch), make_row(branch, 100, task="light")

    def remember(time_model: BatchTimeModel, *, seconds: float, **batch: Any) -> BatchTimeModel:  # noqa: ANN401 - the rest
        paces.append(seconds)
        return after(time_model, seconds=seconds, **batch)

    monkeypatch.setattr(BatchTimeModel, "after", remember)
    await all_outcomes(engine, heavy, of=[*heavy, light])

    assert paces == [1.0, 5.0, 4.0, 1.0]


async def test_a_failure_while_preemption_is_the_engine_s_and_answers_everybody(
    branch: Branch,
) -> None:
    class BrokenObserver(RecordingObserver):
        def observe_batch(self, report: BatchReport) -> None:
            raise ArithmeticError

    heavy, light = make_heavy(branch), make_row(branch, 100, task="light")
    fatal: list[EngineFailedError] = []
    compute = LayeredCompute(lambda: engine.submit([light]))
    engine = make_engine(compute, fatal=fatal, observer=BrokenObserver())

    outcomes = await all_outcomes(engine, heavy, of=[*heavy, light])

    assert {code_of(outcome) for outcome in outcomes} == {"not_ready"}
    assert [error.fields["reason"] for error in fatal] == ["ArithmeticError"]


async def test_a_batch_is_preempted_by_four_times_its_work_and_others_go_later(
    branch: Branch,
) -> None:
    heavy = make_heavy(branch)
    light = [make_row(branch, 100 + number, task=f"light-{number}") for number in range(20)]
    arrivals = [lambda row=row: engine.submit([row]) for row in light]
    compute = LayeredCompute(*arrivals)
    engine = make_engine(compute)

    await all_outcomes(engine, heavy, of=[*heavy, *light])

    before = list(itertools.takewhile(lambda tokens: tokens != [0, 1, 2, 3], compute.ended))
    assert sum(map(len, before)) == 4 * 4
    assert sorted(chain.from_iterable(compute.ended)) == [*range(9), *range(100, 120)]

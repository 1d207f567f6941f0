"""Laws of the engine."""

import asyncio
import dataclasses
import threading
import weakref
from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.engines import (
    LIMITS,
    POISON,
    FakeCompute,
    all_outcomes,
    logits_of,
    make_engine,
    make_row,
)
from doubles.refusals import code_of, raises
from doubles.serving import ManualClock, RecordingObserver
from doubles.waiting import changed
from nunatak_contract.errors import NunatakError
from nunatak_model import Branch, TrunkCache, TrunkSource
from nunatak_server.engine.compute import BatchCompute
from nunatak_server.errors import (
    DeadlineExceededError,
    EngineFailedError,
    OutOfMemoryError,
    TaskUnhealthyError,
)
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import RowAnswer


class WatchedCache(TrunkCache):
    """A trunk cache that remembers which threads use it."""

    def __init__(self) -> None:
        super().__init__(max_bytes=2**20)
        self.threads: set[str] = set()

    def depths(self, source: TrunkSource) -> Collection[int]:
        self.threads.add(threading.current_thread().name)
        return super().depths(source)

    def read(self, source: TrunkSource, depth: int) -> Tensor:
        self.threads.add(threading.current_thread().name)
        return super().read(source, depth)

    def offer(self, source: TrunkSource, depth: int, state: Tensor) -> None:
        self.threads.add(threading.current_thread().name)
        super().offer(source, depth, state)


async def test_an_engine_stalls_while_rows_wait_and_no_batch_ends(branch: Branch) -> None:
    compute, clock = FakeCompute(), ManualClock()
    engine = make_engine(compute, clock=clock)
    engine.start()
    clock.now += 100
    assert engine.stalled_s == 0

    compute.may_finish.clear()
    row = make_row(branch, 3, deadline=1000)
    engine.submit([row])
    assert engine.stalled_s == 0
    await asyncio.to_thread(compute.has_begun.wait)
    clock.now += 7
    assert engine.stalled_s == 7

    compute.may_finish.set()
    await row.future
    await engine.aclose()
    clock.now += 100
    assert engine.stalled_s == 0


async def test_an_idle_engine_holds_no_version(branch: Branch) -> None:
    engine = make_engine(FakeCompute())
    engine.start()
    parameter = torch.zeros(1)
    row = make_row(dataclasses.replace(branch, parameters={"own": parameter}), 3)
    loop, is_free = asyncio.get_running_loop(), asyncio.Event()
    weakref.finalize(parameter, loop.call_soon_threadsafe, is_free.set)
    del parameter
    engine.submit([row])
    await row.future
    del row

    await asyncio.wait_for(is_free.wait(), timeout=10)
    await engine.aclose()


async def test_every_row_gets_its_own_answer_before_the_engine_ends_and_none_later(
    branch: Branch,
) -> None:
    compute, observer = FakeCompute(), RecordingObserver()
    engine = make_engine(compute, observer=observer)
    rows = [make_row(branch, token) for token in range(50)]
    engine.start()
    for row in rows:
        engine.submit([row])
    await engine.aclose()

    assert [logits_of(await row.future)[0] for row in rows] == list(range(50))
    with raises("not_ready"):
        engine.submit([make_row(branch, 1)])
    assert sum(report.num_rows for report in observer.batches) == 50
    assert max(map(len, compute.batches)) <= LIMITS.max_rows


async def test_an_answer_counts_the_rows_of_its_own_caller_alone(branch: Branch) -> None:
    engine = make_engine(FakeCompute())
    own, others, shadow = (
        [
            dataclasses.replace(
                changed(make_row(branch, token), caller=caller), is_shadow=is_shadow
            )
            for token in tokens
        ]
        for caller, is_shadow, tokens in (
            ("a", False, (1,)),
            ("b", False, (2, 3)),
            ("a", True, (4,)),
        )
    )

    found = await all_outcomes(engine, [*own, *others, *shadow], of=[*own, *others])

    assert [it.batch_rows for it in found if isinstance(it, RowAnswer)] == [1, 2, 2]


async def test_an_engine_has_rows_until_they_are_answered(branch: Branch) -> None:
    during = list[int]()
    compute = FakeCompute(on_batch=lambda _: during.append(engine.num_rows))
    engine = make_engine(compute)
    rows = [make_row(branch, token) for token in range(3)]

    assert engine.num_rows == 0
    engine.submit(rows[:2])
    assert engine.num_rows == 2
    await all_outcomes(engine, rows[2:], of=rows)

    # The batch that runs, and what waits for the next one.
    assert during[0] == 3
    assert sum(map(len, compute.batches)) == 3
    assert engine.num_rows == 0


async def test_time_that_others_take_on_the_same_cores_does_not_count(branch: Branch) -> None:
    async def times_in(wall_s: float) -> BatchTimeModel:
        clock, stopwatch = ManualClock(), ManualClock()

        def advance(_num_rows: int) -> None:
            clock.now += wall_s
            stopwatch.now += 0.5

        observer, compute = RecordingObserver(), FakeCompute(on_batch=advance)
        engine = make_engine(compute, clock=clock, observer=observer, stopwatch=stopwatch)
        engine.start()
        for token in range(3):
            row = make_row(branch, token, deadline=1000)
            engine.submit([row])
            await row.future
        await engine.aclose()
        assert [report.compute_s for report in observer.batches] == [wall_s] * 3
        return engine.time_model()

    alone, crowded = (await times_in(0.5)), (await times_in(5.0))

    assert alone.tokens_per_s is not None
    assert crowded == alone


async def test_a_row_past_its_deadline_is_told_so_and_never_computed(branch: Branch) -> None:
    compute = FakeCompute()
    engine = make_engine(compute, clock=ManualClock(now=5))
    late, timely = make_row(branch, 1, deadline=5), make_row(branch, 2, deadline=6)

    outcomes = await all_outcomes(engine, [late, timely])

    assert isinstance(outcomes[0], DeadlineExceededError)
    assert logits_of(outcomes[1])[0] == 2
    assert compute.batches == [[2]]


async def test_rows_that_are_withdrawn_while_they_wait_are_never_computed(branch: Branch) -> None:
    """One that leaves during its batch takes the answer from no other row of the batch."""
    compute = FakeCompute()
    compute.may_finish.clear()
    engine = make_engine(compute)
    running, beside, gone, *waiting = (make_row(branch, token) for token in range(1, 6))
    engine.start()
    engine.submit([running, beside])
    await asyncio.to_thread(compute.has_begun.wait, 60)

    engine.submit([gone, waiting[0]])
    engine.submit(waiting[1:])
    engine.withdraw([running, gone])
    compute.may_finish.set()
    answers = await asyncio.gather(*(row.future for row in (beside, *waiting)))
    await engine.aclose()

    assert compute.batches == [[1, 2], [4, 5]]
    assert [logits_of(it)[0] for it in answers] == [2, 4, 5]
    assert running.is_cancelled
    assert gone.is_cancelled
    assert engine.num_rows == 0


async def test_a_row_that_is_withdrawn_between_two_batches_is_never_computed(
    branch: Branch,
) -> None:
    loop = asyncio.get_running_loop()

    def withdraw(_num_rows: int) -> None:
        done = threading.Event()
        loop.call_soon_threadsafe(lambda: (engine.withdraw([rows[-1]]), done.set()))
        assert done.wait(timeout=60)

    compute = FakeCompute(on_batch=withdraw)
    engine = make_engine(compute)
    rows = [make_row(branch, 1 + number) for number in range(LIMITS.max_rows + 1)]
    engine.submit(rows)
    engine.start()
    await asyncio.wait([row.future for row in rows])
    await engine.aclose()

    assert compute.batches == [list(range(1, LIMITS.max_rows + 1))]
    assert rows[-1].is_cancelled


NO_NUMBERS = (float("nan"), float("inf"), float("-inf"))


@pytest.mark.parametrize(
    ("failure", "logit", "expected"),
    [
        (RuntimeError("shape mismatch"), 0.0, TaskUnhealthyError),
        (OutOfMemoryError(), 0.0, OutOfMemoryError),
        *((None, it, TaskUnhealthyError) for it in NO_NUMBERS),
    ],
    ids=["breaks", "without-memory", *map(str, NO_NUMBERS)],
)
async def test_a_version_that_cannot_be_computed_fails_alone(
    branch: Branch, failure: Exception | None, logit: float, expected: type[NunatakError]
) -> None:
    engine = make_engine(FakeCompute(failure=failure, of_poison=logit))
    good, bad = make_row(branch, 1, task="good"), make_row(branch, POISON, task="bad")
    again = make_row(branch, 3)
    engine.start()

    engine.submit([good, bad])
    answer, outcome = await good.future, await bad.future
    engine.submit([again])

    assert [logits_of(it)[0] for it in (answer, await again.future)] == [1, 3]
    assert isinstance(outcome, expected)
    assert "shape mismatch" not in str(outcome)
    # A traceback would keep the tensors of the batch as long as the caller keeps the error.
    assert (outcome.__traceback__, outcome.__cause__) == (None, None)
    await engine.aclose()


async def test_rows_are_computed_as_without_a_shadow_if_it_fails(branch: Branch) -> None:
    rows = [make_row(branch, token, task=f"task-{token}") for token in (1, 2)]
    shadow = dataclasses.replace(make_row(branch, POISON, task="shadow"), is_shadow=True)
    compute = FakeCompute(failure=RuntimeError("shape mismatch"))

    *answers, outcome = await all_outcomes(make_engine(compute), [*rows, shadow])

    assert [logits_of(it)[0] for it in answers] == [1, 2]
    assert isinstance(outcome, TaskUnhealthyError)
    assert compute.batches == [[1, 2, POISON], [1, 2], [POISON]]


async def test_a_lost_device_answers_everybody_and_is_reported_once(branch: Branch) -> None:
    compute = FakeCompute(failure=EngineFailedError("AcceleratorError"))
    compute.may_finish.clear()
    fatal: list[EngineFailedError] = []
    engine = make_engine(compute, fatal=fatal)
    in_batch, queued = make_row(branch, POISON), make_row(branch, 1)
    engine.start()
    engine.submit([in_batch])
    await asyncio.to_thread(compute.has_begun.wait, 60)
    engine.submit([queued])

    compute.may_finish.set()
    outcomes = [await in_batch.future, await queued.future]
    await engine.aclose()

    assert {code_of(outcome) for outcome in outcomes} == {"not_ready"}
    assert [error.fields["reason"] for error in fatal] == ["AcceleratorError"]
    with raises("not_ready"):
        engine.submit([make_row(branch, 2)])


async def test_a_failure_of_the_engine_itself_is_never_silent(branch: Branch) -> None:
    class BrokenClock(ManualClock):
        def __call__(self) -> float:
            if threading.current_thread() is not threading.main_thread():
                raise ArithmeticError
            return super().__call__()

    fatal: list[EngineFailedError] = []
    engine = make_engine(FakeCompute(), fatal=fatal, clock=BrokenClock())

    (outcome,) = await all_outcomes(engine, [make_row(branch, 1)])

    assert code_of(outcome) == "not_ready"
    assert [error.fields["reason"] for error in fatal] == ["ArithmeticError"]


async def test_the_trunk_cache_is_used_on_the_engine_thread_alone(branch: Branch) -> None:
    cache = WatchedCache()
    engine = make_engine(BatchCompute(tiny_backbone(num_layers=1), trunk=cache))
    engine.start()

    for token in (5, 6, 5, 6, 5):
        rows = [make_row(branch, token) for _ in range(3)]
        engine.submit(rows)
        outcomes = await asyncio.gather(*(row.future for row in rows))
        assert all(isinstance(outcome, RowAnswer) for outcome in outcomes)
    await engine.aclose()

    assert cache.threads == {"nunatak-engine"}
    assert (cache.stats.hits, cache.stats.misses) == (3, 2)

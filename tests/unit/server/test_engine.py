import asyncio
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Sequence

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.serving import ManualClock, RecordingObserver
from doubles.tasks import random_parameters, spec_of
from nunatak_model import (
    BetweenLayers,
    Branch,
    Encoding,
    HeadOnly,
    Row,
    TrunkCache,
    TrunkSource,
    build_branch,
)
from nunatak_server.batching.computing import Compute
from nunatak_server.batching.pace import Pace
from nunatak_server.batching.planner import BatchLimits
from nunatak_server.batching.reports import BatchReport
from nunatak_server.batching.rows import PendingRow, RowAnswer, RowOutcome
from nunatak_server.compute import BatchCompute
from nunatak_server.engine import Engine
from nunatak_server.errors import (
    DeadlineExceededError,
    EngineFailedError,
    NotReadyError,
    TaskUnhealthyError,
)

LIMITS = BatchLimits(max_tokens=64, max_rows=4)
POISON = 666
_counter = itertools.count()


@pytest.fixture(scope="module")
def branch() -> Branch:
    backbone = tiny_backbone(num_layers=1)
    spec = spec_of(backbone, HeadOnly(), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


class FakeCompute:
    """Answers each row with its first token; breaks on poisoned rows; can be held up."""

    stops_between_layers = False

    def __init__(
        self,
        failure: Exception | None = None,
        *,
        on_batch: Callable[[int], None] = lambda _num_rows: None,
    ) -> None:
        self.failure = failure
        self.on_batch = on_batch
        self.batches: list[list[int]] = []
        self.has_begun = threading.Event()
        self.may_finish = threading.Event()
        self.may_finish.set()

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        del between_layers
        tokens = [row.encoding.token_ids[0] for row in rows]
        self.batches.append(tokens)
        self.on_batch(len(rows))
        self.has_begun.set()
        self.may_finish.wait(timeout=60)
        if POISON in tokens and self.failure is not None:
            raise self.failure
        return [[float(token), -1.0] for token in tokens]


class LayeredCompute:
    """Answers each row with its first token, after layers between which `events` take place."""

    stops_between_layers = True

    def __init__(
        self,
        *events: Callable[[], None],
        on_batch: Callable[[int], None] = lambda _num_rows: None,
    ) -> None:
        self.events = list(events)
        self.on_batch = on_batch
        self.ended: list[list[int]] = []
        self.may_begin = threading.Event()

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        self.may_begin.wait(timeout=60)
        self.on_batch(len(rows))
        tokens = [row.encoding.token_ids[0] for row in rows]
        if between_layers is not None:
            events, self.events = self.events, []
            for layer, event in enumerate(events):
                event()
                between_layers(layer / 8)
        self.ended.append(tokens)
        return [[float(token), -1.0] for token in tokens]


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


def make_engine(
    compute: Compute,
    *,
    fatal: list[EngineFailedError] | None = None,
    clock: ManualClock | None = None,
    observer: RecordingObserver | None = None,
    stopwatch: ManualClock | None = None,
) -> Engine:
    return Engine(
        compute=compute,
        limits=LIMITS,
        observer=observer or RecordingObserver(),
        on_fatal=(fatal if fatal is not None else []).append,
        clock=clock or ManualClock(),
        stopwatch=stopwatch or ManualClock(),
    )


def make_row(branch: Branch, token: int, *, task: str = "tone", deadline: float = 10) -> PendingRow:
    future: asyncio.Future[RowOutcome] = asyncio.get_running_loop().create_future()
    return PendingRow(
        task=task,
        version=1,
        branch=branch,
        encoding=Encoding(token_ids=(token, 2), type_ids=(0, 0)),
        group=next(_counter),
        trunk_tokens=2,
        branch_tokens=0,
        deadline=deadline,
        submitted_at=0.0,
        future=future,
    )


def logits_of(outcome: RowOutcome) -> list[float]:
    assert isinstance(outcome, RowAnswer)
    return outcome.logits


def test_an_idle_engine_holds_no_version(branch: Branch) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_every_row_gets_its_own_answer(branch: Branch) -> None:
    async def scenario() -> None:
        compute, observer = FakeCompute(), RecordingObserver()
        engine = make_engine(compute, observer=observer)
        engine.start()
        rows = [make_row(branch, token) for token in range(50)]

        for row in rows:
            engine.submit([row])
        outcomes = [await row.future for row in rows]
        await engine.aclose()

        assert [logits_of(outcome)[0] for outcome in outcomes] == list(range(50))
        assert sum(report.num_rows for report in observer.batches) == 50
        assert max(map(len, compute.batches)) <= LIMITS.max_rows

    asyncio.run(scenario())


def test_time_that_others_take_on_the_same_cores_does_not_slow_the_pace(branch: Branch) -> None:
    async def pace_in(wall_s: float) -> Pace:
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
        return engine.pace

    alone, crowded = asyncio.run(pace_in(0.5)), asyncio.run(pace_in(5.0))

    assert alone.tokens_per_s is not None
    assert crowded == alone


def test_what_arrives_while_a_batch_runs_forms_the_next_one(branch: Branch) -> None:
    async def scenario() -> None:
        compute = FakeCompute()
        compute.may_finish.clear()
        engine = make_engine(compute)
        engine.start()
        first, *others = [make_row(branch, token) for token in range(4)]

        engine.submit([first])
        await asyncio.to_thread(compute.has_begun.wait, 60)
        for row in others:
            engine.submit([row])
        compute.may_finish.set()
        for row in (first, *others):
            await row.future
        await engine.aclose()

        assert compute.batches == [[0], [1, 2, 3]]

    asyncio.run(scenario())


def test_a_row_past_its_deadline_is_told_so_and_never_computed(branch: Branch) -> None:
    async def scenario() -> None:
        compute = FakeCompute()
        engine = make_engine(compute, clock=ManualClock(now=5))
        late, timely = make_row(branch, 1, deadline=5), make_row(branch, 2, deadline=6)
        engine.start()

        engine.submit([late, timely])
        outcomes = [await late.future, await timely.future]
        await engine.aclose()

        assert isinstance(outcomes[0], DeadlineExceededError)
        assert logits_of(outcomes[1])[0] == 2
        assert compute.batches == [[2]]

    asyncio.run(scenario())


def test_rows_nobody_waits_for_are_never_computed(branch: Branch) -> None:
    async def scenario() -> None:
        compute = FakeCompute()
        engine = make_engine(compute)
        gone, waiting = make_row(branch, 1), make_row(branch, 2)
        gone.future.cancel()
        engine.start()

        engine.submit([gone, waiting])
        await waiting.future
        await engine.aclose()

        assert compute.batches == [[2]]

    asyncio.run(scenario())


def test_a_caller_that_leaves_during_the_batch_disturbs_nobody(branch: Branch) -> None:
    async def scenario() -> None:
        compute = FakeCompute()
        compute.may_finish.clear()
        engine = make_engine(compute)
        gone, waiting = make_row(branch, 1), make_row(branch, 2)
        engine.start()
        engine.submit([gone, waiting])
        await asyncio.to_thread(compute.has_begun.wait, 60)

        gone.future.cancel()
        compute.may_finish.set()

        assert logits_of(await waiting.future)[0] == 2
        await engine.aclose()

    asyncio.run(scenario())


def test_a_task_that_breaks_a_batch_fails_alone(branch: Branch) -> None:
    async def scenario() -> None:
        compute = FakeCompute(failure=RuntimeError("shape mismatch"))
        engine = make_engine(compute)
        good, bad = make_row(branch, 1, task="good"), make_row(branch, POISON, task="bad")
        engine.start()

        engine.submit([good, bad])
        outcomes = [await good.future, await bad.future]
        again = make_row(branch, 3)
        engine.submit([again])

        assert logits_of(outcomes[0])[0] == 1
        assert isinstance(outcomes[1], TaskUnhealthyError)
        assert "shape mismatch" not in str(outcomes[1])
        assert logits_of(await again.future)[0] == 3
        await engine.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_fail_their_row_alone(branch: Branch, value: float) -> None:
    class Poisoned(FakeCompute):
        def __call__(
            self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
        ) -> list[list[float]]:
            answers = super().__call__(rows, between_layers=between_layers)
            return [[value if token == POISON else token, 0.0] for token, _ in answers]

    async def scenario() -> None:
        engine = make_engine(Poisoned())
        good, bad = make_row(branch, 1), make_row(branch, POISON)
        engine.start()

        engine.submit([good, bad])

        assert logits_of(await good.future)[0] == 1
        outcome = await bad.future
        assert isinstance(outcome, TaskUnhealthyError)
        assert outcome.code == "task_unhealthy"
        await engine.aclose()

    asyncio.run(scenario())


def test_a_lost_device_answers_everybody_and_is_reported_once(branch: Branch) -> None:
    async def scenario() -> None:
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

        assert all(isinstance(outcome, NotReadyError) for outcome in outcomes)
        assert [error.reason for error in fatal] == ["AcceleratorError"]
        with pytest.raises(NotReadyError):
            engine.submit([make_row(branch, 2)])

    asyncio.run(scenario())


def test_a_failure_of_the_engine_itself_is_never_silent(branch: Branch) -> None:
    class BrokenClock(ManualClock):
        def __call__(self) -> float:
            raise ArithmeticError

    async def scenario() -> None:
        fatal: list[EngineFailedError] = []
        engine = make_engine(FakeCompute(), fatal=fatal, clock=BrokenClock())
        row = make_row(branch, 1)
        engine.start()

        engine.submit([row])
        outcome = await row.future
        await engine.aclose()

        assert isinstance(outcome, NotReadyError)
        assert [error.reason for error in fatal] == ["ArithmeticError"]

    asyncio.run(scenario())


def test_the_trunk_cache_is_used_on_the_engine_thread_alone(branch: Branch) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_closing_answers_what_was_accepted_and_refuses_the_rest(branch: Branch) -> None:
    async def scenario() -> None:
        engine = make_engine(FakeCompute())
        rows = [make_row(branch, token) for token in range(20)]
        engine.start()
        engine.submit(rows)

        await engine.aclose()

        assert [logits_of(await row.future)[0] for row in rows] == list(range(20))
        with pytest.raises(NotReadyError):
            engine.submit([make_row(branch, 1)])

    asyncio.run(scenario())


def make_flood(branch: Branch) -> list[PendingRow]:
    """More rows of one task than one batch takes."""
    return [make_row(branch, token, task="flood") for token in range(6)]


def test_rows_go_before_the_layers_of_a_flood_that_are_left(branch: Branch) -> None:
    async def scenario() -> None:
        flood = make_flood(branch)
        quiet, late = make_row(branch, 100, task="quiet"), make_row(branch, 101, task="late")
        compute = LayeredCompute(lambda: engine.submit([quiet]), lambda: engine.submit([late]))
        observer = RecordingObserver()
        engine = make_engine(compute, observer=observer)
        engine.submit(flood)
        engine.start()
        compute.may_begin.set()

        outcomes = await asyncio.gather(*(row.future for row in (*flood, quiet, late)))
        await engine.aclose()

        assert [logits_of(outcome)[0] for outcome in outcomes] == [*range(6), 100, 101]
        assert compute.ended == [[100], [101], [0, 1, 2, 3], [4, 5]]
        assert [batch.has_overtaken for batch in observer.batches] == [True, True, False, False]

    asyncio.run(scenario())


def test_a_row_that_waits_beside_a_flood_is_computed_before_its_first_layer(branch: Branch) -> None:
    async def scenario() -> None:
        compute = LayeredCompute(lambda: None)
        engine = make_engine(compute)
        rows = [*make_flood(branch), make_row(branch, 100, task="quiet")]
        engine.submit(rows)
        engine.start()
        compute.may_begin.set()

        await asyncio.gather(*(row.future for row in rows))
        await engine.aclose()

        assert compute.ended[0] == [100]

    asyncio.run(scenario())


def test_what_overtakes_a_batch_is_not_counted_as_its_time(branch: Branch) -> None:
    async def scenario() -> None:
        stopwatch = ManualClock()

        def quiet_arrives() -> None:
            stopwatch.now += 1.0
            engine.submit([quiet])

        def take_time(num_rows: int) -> None:
            stopwatch.now += num_rows

        compute = LayeredCompute(quiet_arrives, on_batch=take_time)
        engine = make_engine(compute, stopwatch=stopwatch)
        paces: list[float] = []
        after = Pace.after
        flood, quiet = make_flood(branch), make_row(branch, 100, task="quiet")

        def remember(pace: Pace, *, work: float, asked_work: float, seconds: float) -> Pace:
            paces.append(seconds)
            return after(pace, work=work, asked_work=asked_work, seconds=seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pace, "after", remember)
            engine.submit(flood)
            engine.start()
            compute.may_begin.set()
            await asyncio.gather(*(row.future for row in (*flood, quiet)))
            await engine.aclose()

        assert paces == [1.0, 5.0, 2.0]

    asyncio.run(scenario())


def test_a_failure_while_overtaking_is_the_engine_s_and_answers_everybody(branch: Branch) -> None:
    class BrokenObserver(RecordingObserver):
        def observe_batch(self, report: BatchReport) -> None:
            raise ArithmeticError

    async def scenario() -> None:
        flood, quiet = make_flood(branch), make_row(branch, 100, task="quiet")
        fatal: list[EngineFailedError] = []
        compute = LayeredCompute(lambda: engine.submit([quiet]))
        engine = make_engine(compute, fatal=fatal, observer=BrokenObserver())
        engine.submit(flood)
        engine.start()
        compute.may_begin.set()

        outcomes = await asyncio.gather(*(row.future for row in (*flood, quiet)))

        assert all(isinstance(outcome, NotReadyError) for outcome in outcomes)
        assert [error.reason for error in fatal] == ["ArithmeticError"]

    asyncio.run(scenario())

import asyncio
from dataclasses import replace

import pytest

from doubles.engines import ANSWER, FakeEngine
from doubles.leases import names, until
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.services import Bench, make_admission, make_bench
from doubles.serving import ManualClock
from nunatak_model import Backbone, Branch
from nunatak_server.errors import DeadlineExceededError, DeadlineTooShortError
from nunatak_server.predict.types import Handling, PredictionRequest, TaskFailure, TaskPrediction
from nunatak_server.scheduler.admission import Readiness, RegistryLease, State
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import PendingRow, Priority, RowAnswer


@pytest.fixture(name="bench")
def make_ready(backbone: Backbone, branch: Branch) -> Bench[FakeEngine]:
    """A service with the tasks `one` and `two`, which are not in memory."""
    bench = make_bench(backbone, branch)
    bench.store.add("one")
    bench.store.add("two")
    return bench


async def test_rows_of_one_text_form_one_group_with_one_trunk(bench: Bench[FakeEngine]) -> None:
    await bench.ask("one")
    await bench.ask("two")
    bench.engine.rows.clear()

    await bench.ask("one", "two")
    await bench.ask("one")

    first, second, third, fourth, later, _ = bench.engine.rows
    assert (first.task, second.task, third.task, fourth.task) == ("one", "one", "two", "two")
    assert first.spec.group == third.spec.group != second.spec.group == fourth.spec.group
    assert first.spec.encoding == third.spec.encoding == later.spec.encoding
    assert later.spec.group not in {first.spec.group, second.spec.group}
    assert (first.spec.trunk_tokens, first.spec.branch_tokens) == (3, 3)


async def test_timings_match_the_slowest_row(
    bench: Bench[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([replace(ANSWER, queue_s=0.0, batch_rows=1), ANSWER])

    def outcome_of(_: PendingRow) -> RowAnswer:
        return next(outcomes)

    monkeypatch.setattr(bench.engine, "outcome_of", outcome_of)

    timings = (await bench.ask("one")).timings

    assert (timings.queue_s, timings.compute_s, timings.batch_rows) == (0.1, 0.5, 2)


@pytest.mark.parametrize("end", ["leaves", "is late"])
async def test_a_caller_that_leaves_or_is_late_frees_everything_it_held(
    bench: Bench[FakeEngine], end: str
) -> None:
    await bench.ask("one")
    bench.engine.answers_at_once = False
    bench.engine.has_rows.clear()
    asking = asyncio.create_task(bench.ask("one", deadline_s=60 if end == "leaves" else 0.05))
    await bench.engine.has_rows.wait()
    assert bench.admission.requests.total == 1
    assert bench.admission.tokens.total > 0

    if end == "leaves":
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if end == "leaves" else DeadlineExceededError):
        await asking

    assert all(row.is_cancelled for row in bench.engine.rows[-2:])
    assert (bench.admission.requests.total, bench.admission.tokens.total) == (0, 0)
    assert bench.residency.evict("one") == (1,)


async def test_a_request_may_name_more_tasks_than_memory_has_room_for(
    backbone: Backbone, branch: Branch
) -> None:
    bench = make_bench(backbone, branch, room_for=2)
    names = [f"task-{index}" for index in range(6)]
    for name in names:
        bench.store.add(name)

    for _ in range(2):
        results = (await bench.ask(*names)).results
        assert [getattr(result, "task", None) for result in results] == names

    assert len(bench.residency.resident()) <= 2


async def test_cold_tasks_that_fit_are_asked_together_once_all_are_loaded(
    bench: Bench[FakeEngine],
) -> None:
    for name in ("hot", "first", "second", "third"):
        bench.store.add(name)
    await bench.ask("hot")
    bench.engine.submissions.clear()

    await bench.ask("first", "hot", "second", "third")

    assert bench.engine.submissions == [{"hot"}, {"first", "second", "third"}]


async def test_a_deadline_that_cannot_be_met_is_refused_before_anything_is_done(
    backbone: Backbone, branch: Branch
) -> None:
    admission = make_admission(time_model=BatchTimeModel(tokens_per_s=10.0))
    bench = make_bench(backbone, branch, admission=admission)
    bench.store.add("busy")
    bench.store.add("free")
    with bench.admission.admit() as queued:
        queued.take_tokens({"busy": 300})

        with pytest.raises(DeadlineTooShortError) as refused:
            await bench.ask("busy", deadline_s=20)
        assert refused.value.fields["wait_ms"] == 30_000
        busy, free = (await bench.ask("busy", "free", deadline_s=20)).results
        await bench.ask("busy", deadline_s=60)

    assert isinstance(busy, TaskFailure)
    assert isinstance(busy.error, DeadlineTooShortError)
    assert isinstance(free, TaskPrediction)
    assert [row.task for row in bench.engine.rows] == ["free"] * 2 + ["busy"] * 2
    refusals = 'outcome="deadline_too_short",task="busy"} 2.0'
    assert refusals in rendered(bench.metrics)


async def test_rows_carry_who_sent_them_and_how_urgent_they_are(bench: Bench[FakeEngine]) -> None:
    handling = Handling(default_deadline_s=60, caller="gold", priority=Priority.HIGH)

    await bench.service.predict(
        PredictionRequest(references=("one",), inputs=("a",), handling=handling)
    )

    (row,) = bench.engine.rows
    assert (row.spec.caller, row.spec.priority, row.task) == ("gold", Priority.HIGH, "one")
    assert row.spec.trunk_share == 0.5


@pytest.mark.parametrize("num_turns", range(12))
async def test_a_caller_that_goes_while_cold_tasks_arrive_leaves_no_lease(
    bench: Bench[FakeEngine], num_turns: int
) -> None:
    bench.engine.answers_at_once = False
    asking = asyncio.create_task(bench.ask("one", "two"))
    await until(lambda: len(names(bench.residency)) == 2)
    for _ in range(num_turns):
        await asyncio.sleep(0)

    asking.cancel()
    await asyncio.wait([asking])

    assert bench.residency.evict("one") == (1,)
    assert bench.residency.evict("two") == (1,)


def test_a_process_takes_requests_only_while_it_is_ready_and_stays_failed() -> None:
    readiness = Readiness()
    with raises("not_ready", match="starting"):
        readiness.check()
    readiness.move_to(State.READY)
    readiness.check()
    readiness.move_to(State.DRAINING)
    with raises("draining"):
        readiness.check()

    for state in (State.FAILED, State.READY):
        readiness.move_to(state)
        with raises("not_ready", match="failed"):
            readiness.check()


def test_a_process_that_gets_nothing_done_is_not_ready_until_it_does() -> None:
    stalled_s = 0.0
    readiness = Readiness(stalled_s=lambda: stalled_s, max_stall_s=60)
    readiness.move_to(State.READY)

    stalled_s = 61.0
    with raises("not_ready", match="no batch has ended"):
        readiness.check_ready()
    assert not readiness.is_ready
    readiness.check()

    stalled_s = 0.0
    readiness.check_ready()
    assert readiness.is_ready


def test_a_process_whose_lease_has_ended_takes_no_requests_until_it_has_a_new_one() -> None:
    clock = ManualClock()
    lease = RegistryLease(seconds=10, clock=clock)
    readiness = Readiness(lease=lease)
    readiness.move_to(State.READY)
    assert not readiness.takes_requests, "there was no lease yet"
    lease.renew(0.0)
    readiness.check()

    clock.now = 10.0
    for state in (State.READY, State.LEAVING):
        readiness.move_to(state)
        assert not readiness.is_ready
        assert not readiness.takes_requests
        with raises("not_ready", match="its lease has ended"):
            readiness.check()

    lease.renew(5.0)
    readiness.move_to(State.READY)
    readiness.check()

"""Results arrive as soon as they are ready, each once, and none waits for another."""

import asyncio
import contextlib
from contextlib import aclosing
from dataclasses import replace

import pytest

from doubles.engines import FakeEngine
from doubles.leases import until
from doubles.refusals import raises
from doubles.rendering import rendered
from doubles.services import Bench, Held, ask_for, make_admission
from nunatak_contract.enums import OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Parameters
from nunatak_server.errors import (
    DeadlineExceededError,
    DeadlineTooShortError,
    OutOfMemoryError,
    OverloadedError,
)
from nunatak_server.predict.types import PredictionRequest, StreamedResult, TaskPrediction
from nunatak_server.scheduler.batch_time import BatchTimeModel
from nunatak_server.scheduler.rows import RowOutcome
from nunatak_server.tokenization import Tokenization

NUM_TOKENS = 30
"""Tokens of a queue. A text has three tokens, and two tasks read it for the price of one and a
half."""
MOST = {"other": 11.0, "another": 11.0}
"""Tokens that leave room for one task about two texts, but not for two tasks."""


def name_of(streamed: StreamedResult) -> str:
    """Return the task that answered, or the code of its failure."""
    result = streamed.result
    return result.task if isinstance(result, TaskPrediction) else f"{result.error.code}"


async def refusals_of(bench: Bench[FakeEngine], asked: PredictionRequest) -> set[str]:
    """The refusals of a request, answered as a whole and answered line by line."""
    found = set[str]()
    for answering in (bench.service.predict(asked), anext(bench.service.stream(asked))):
        with pytest.raises(NunatakError) as refusal:
            await answering
        found.add(str(refusal.value))
    return found


async def test_a_cold_task_holds_back_no_line_of_a_hot_one(held: Held) -> None:
    bench, store, engine = await held("hot", "warm")
    # Its version is known, so all are asked together.
    await bench.facts.traffic([store.add("cold")], "a test")
    store.may_load.clear()

    async with aclosing(bench.service.stream(ask_for("cold", "hot", "warm"))) as results:
        first = {name_of(await anext(results)), name_of(await anext(results))}
        assert first == {"hot", "warm"}
        # The tasks in memory were asked together, so that they share the trunk.
        assert engine.submissions == [{"hot", "warm"}]
        store.may_load.set()
        assert name_of(await anext(results)) == "cold"
        with pytest.raises(StopAsyncIteration):
            await anext(results)


async def test_a_reference_that_must_be_looked_up_holds_back_no_other(held: Held) -> None:
    bench, store, _ = await held("hot")
    store.add("new")
    store.may_resolve.clear()

    async with aclosing(bench.service.stream(ask_for("new", "nope", "hot"))) as results:
        assert name_of(await anext(results)) == "hot"
        store.may_resolve.set()
        assert {name_of(it) async for it in results} == {"new", "task_not_found"}


async def test_tasks_of_one_batch_come_as_each_is_answered(held: Held) -> None:
    bench, _, engine = await held("one", "two")
    engine.answers_at_once = False

    async with aclosing(bench.service.stream(ask_for("one", "two"))) as results:
        first = asyncio.ensure_future(anext(results))
        await until(lambda: bool(engine.rows))
        engine.answer("two")
        streamed = await first
        assert name_of(streamed) == "two"
        assert (streamed.timings.compute_s, streamed.timings.batch_rows) == (0.5, 2)
        engine.answer("one")
        assert [name_of(it) async for it in results] == ["one"]


async def test_a_stream_that_is_closed_gives_up_what_is_open(held: Held) -> None:
    bench, _, engine = await held("one", "two")
    engine.answers_at_once = False
    results = bench.service.stream(ask_for("one", "two"))
    first = asyncio.ensure_future(anext(results))
    await until(lambda: bool(engine.rows))
    engine.answer("one")
    await first

    await results.aclose()

    assert {row.is_cancelled for row in engine.rows if row.task == "two"} == {True}
    assert (bench.admission.requests.total, bench.admission.tokens.total) == (0, 0)
    assert bench.residency.evict("two") == (1,)


async def test_the_stages_of_tasks_that_are_asked_together_are_recorded_once(held: Held) -> None:
    bench, _, _ = await held("one", "two")

    _ = [it async for it in bench.service.stream(ask_for("one", "two", "nope", "NOT A NAME"))]

    text = rendered(bench.metrics)
    assert "nunatak_queue_seconds_count 1.0" in text
    assert "nunatak_queue_seconds_sum 0.1" in text
    assert "nunatak_tokenize_seconds_count 1.0" in text


@pytest.mark.parametrize(
    ("task", "outcome"),
    [("one", OutOfMemoryError()), ("one", None), ("nope", None)],
    ids=["failed", "late", "unknown"],
)
async def test_what_was_not_computed_has_no_stages(
    held: Held, task: str, outcome: RowOutcome | None
) -> None:
    bench, _, engine = await held("one")
    engine.outcome = outcome
    asked = ask_for(task, deadline_s=0.05)

    with contextlib.suppress(DeadlineExceededError):
        await bench.service.predict(asked)
    with contextlib.suppress(DeadlineExceededError):
        _ = [it async for it in bench.service.stream(asked)]

    assert "nunatak_queue_seconds_count 0.0" in rendered(bench.metrics)


@pytest.mark.parametrize("tasks", [("one",), ("NOT A NAME", "one", "two")], ids=["one", "several"])
async def test_what_refuses_a_whole_answer_refuses_a_stream_before_its_first_line(
    held: Held, tasks: tuple[str, ...]
) -> None:
    bench, _, engine = await held("one", "two", admission=make_admission(max_tokens=8))
    asked = ask_for(*tasks)
    uncut = Parameters(on_long=OnLong.REFUSE)
    long = replace(asked, inputs=("word " * 20,), options=uncut)

    (too_large,) = await refusals_of(bench, asked)
    (too_long,) = await refusals_of(bench, long)

    assert "tokens of the queue" in too_large
    assert "at most 16 are read at once" in too_long
    assert engine.rows == []
    assert (bench.admission.requests.total, bench.admission.tokens.total) == (0, 0)


async def test_a_part_without_room_is_refused_or_is_a_line_next_to_the_answers_of_others(
    held: Held,
) -> None:
    small = make_admission(max_tokens=NUM_TOKENS)
    bench, store, _ = await held("one", "two", admission=small)
    store.add("new")

    with bench.admission.admit("another") as permit:
        permit.take_tokens(MOST)
        with pytest.raises(OverloadedError) as refusal:
            await anext(bench.service.stream(ask_for("one", "two")))
        found = [name_of(it) async for it in bench.service.stream(ask_for("one", "two", "new"))]

    assert refusal.value.retry_after_s >= 1
    assert found == ["overloaded", "overloaded", "new"]


async def test_an_engine_that_stops_refuses_a_stream(held: Held) -> None:
    bench, _, engine = await held("one", "two")
    engine.is_stopped = True

    with raises("not_ready"):
        await anext(bench.service.stream(ask_for("one", "two")))

    # A task that was looked up labels its later failures.
    assert 'outcome="not_ready",task="one"} 1.0' in rendered(bench.metrics)


@pytest.mark.parametrize("tasks", [("hot", "warm"), ("hot", "cold")], ids=["hot", "cold"])
async def test_a_request_is_late_if_none_of_its_tasks_is_in_time(
    held: Held, tasks: tuple[str, ...]
) -> None:
    bench, store, engine = await held("hot", "warm")
    store.add("cold")
    store.may_load.clear()
    engine.answers_at_once = False

    late = await refusals_of(bench, ask_for(*tasks, deadline_s=0.05))

    store.may_load.set()
    assert late == {str(DeadlineExceededError())}
    text = rendered(bench.metrics)
    assert all(f'outcome="deadline_exceeded",task="{task}"}} 2.0' in text for task in tasks)
    assert 'task="unknown"' not in text


async def test_a_stream_is_too_late_at_once_only_if_all_of_its_tasks_are(held: Held) -> None:
    paced = make_admission(time_model=BatchTimeModel(tokens_per_s=10.0))
    bench, _, _ = await held("busy", "free", admission=paced)
    with bench.admission.admit() as queued:
        queued.take_tokens({"busy": 300})
        hurried = ask_for("busy", deadline_s=20)

        with pytest.raises(DeadlineTooShortError):
            await anext(bench.service.stream(hurried))
        both = replace(hurried, references=("busy", "free"))
        found = [name_of(it) async for it in bench.service.stream(both)]

    assert found == ["deadline_too_short", "free"]


async def test_a_task_that_is_late_is_a_line_after_the_answers_of_others(held: Held) -> None:
    bench, store, _ = await held("hot")
    await bench.facts.traffic([store.add("cold")], "a test")
    store.may_load.clear()

    asked = ask_for("cold", "hot", deadline_s=0.2)
    found = [name_of(it) async for it in bench.service.stream(asked)]

    store.may_load.set()
    assert found == ["hot", "deadline_exceeded"]
    assert bench.residency.evict("hot") == (1,)


async def test_names_that_were_not_looked_up_in_time_become_no_labels(held: Held) -> None:
    bench, store, _ = await held()
    store.may_resolve.clear()
    asked = ask_for("made-up-1", "made-up-2", deadline_s=0.05)

    with pytest.raises(DeadlineExceededError):
        await anext(bench.service.stream(asked))

    text = rendered(bench.metrics)
    assert "made-up" not in text
    assert 'outcome="deadline_exceeded",task="unknown"} 2.0' in text


async def test_a_name_that_is_none_breaks_no_stream_that_is_late(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    bench, _, _ = await held("hot")
    monkeypatch.setattr(Tokenization, "encode", never)
    asked = ask_for("hot", "NOT A NAME", deadline_s=0.05)

    with pytest.raises(DeadlineExceededError):
        await anext(bench.service.stream(asked))

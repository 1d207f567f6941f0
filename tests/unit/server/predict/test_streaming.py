"""Results arrive as soon as they are ready, each once, and none waits for another."""

import asyncio
import contextlib
from contextlib import aclosing

import pytest

from doubles.held_engine import make_held_bench, name_of
from doubles.leases import until
from doubles.rendering import rendered
from doubles.services import ask_for
from nunatak_model import Backbone, Branch
from nunatak_server.errors import DeadlineExceededError, OutOfMemoryError


async def test_a_cold_task_holds_back_no_line_of_a_hot_one(
    backbone: Backbone, branch: Branch
) -> None:
    bench, store, engine = await make_held_bench(backbone, branch, "hot", "warm")
    store.add("cold")
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


async def test_a_reference_that_must_be_looked_up_holds_back_no_other(
    backbone: Backbone, branch: Branch
) -> None:
    bench, store, _ = await make_held_bench(backbone, branch, "hot")
    store.add("new")
    store.may_resolve.clear()

    async with aclosing(bench.service.stream(ask_for("new", "nope", "hot"))) as results:
        assert name_of(await anext(results)) == "hot"
        store.may_resolve.set()
        assert {name_of(it) async for it in results} == {"new", "task_not_found"}


async def test_tasks_of_one_batch_come_as_each_is_answered(
    backbone: Backbone, branch: Branch
) -> None:
    bench, _, engine = await make_held_bench(backbone, branch, "one", "two")
    engine.answers_at_once = False

    async with aclosing(bench.service.stream(ask_for("one", "two"))) as results:
        first = asyncio.ensure_future(anext(results))
        await until(lambda: bool(engine.rows))
        engine.answer("two")
        streamed = await first
        assert name_of(streamed) == "two"
        assert (streamed.timings.compute_s, streamed.timings.batch_rows) == (0.2, 3)
        engine.answer("one")
        assert [name_of(it) async for it in results] == ["one"]


async def test_a_stream_that_is_closed_gives_up_what_is_open(
    backbone: Backbone, branch: Branch
) -> None:
    bench, _, engine = await make_held_bench(backbone, branch, "one", "two")
    engine.answers_at_once = False
    results = bench.service.stream(ask_for("one", "two"))
    first = asyncio.ensure_future(anext(results))
    await until(lambda: bool(engine.rows))
    engine.answer("one")
    await first

    await results.aclose()

    assert {row.is_cancelled for row in engine.rows if row.task == "two"} == {True}
    assert (bench.admission.num_requests, bench.admission.num_tokens) == (0, 0)
    assert bench.residency.evict("two") == (1,)


async def test_the_stages_of_tasks_that_are_asked_together_are_recorded_once(
    backbone: Backbone, branch: Branch
) -> None:
    bench, _, _ = await make_held_bench(backbone, branch, "one", "two")

    _ = [it async for it in bench.service.stream(ask_for("one", "two", "nope", "NOT A NAME"))]

    text = rendered(bench.metrics)
    assert "nunatak_queue_seconds_count 1.0" in text
    assert "nunatak_queue_seconds_sum 0.1" in text
    assert "nunatak_tokenize_seconds_count 1.0" in text


async def test_what_fails_in_its_batch_has_no_stages(backbone: Backbone, branch: Branch) -> None:
    bench, _, engine = await make_held_bench(backbone, branch, "one")
    engine.outcome = OutOfMemoryError()

    await bench.service.predict(ask_for("one"))
    with contextlib.suppress(OutOfMemoryError):
        _ = [it async for it in bench.service.stream(ask_for("one"))]

    assert "nunatak_queue_seconds_count 0.0" in rendered(bench.metrics)


@pytest.mark.parametrize("tasks", [("one",), ("nope",)], ids=["late", "unknown"])
async def test_what_was_not_computed_has_no_stages(
    backbone: Backbone, branch: Branch, tasks: tuple[str, ...]
) -> None:
    bench, _, engine = await make_held_bench(backbone, branch, "one")
    engine.answers_at_once = False
    asked = ask_for(*tasks, deadline_s=0.05)

    with contextlib.suppress(DeadlineExceededError):
        await bench.service.predict(asked)
    with contextlib.suppress(DeadlineExceededError):
        _ = [it async for it in bench.service.stream(asked)]

    assert "nunatak_queue_seconds_count 0.0" in rendered(bench.metrics)

"""Results come as they are there, each once, and none waits for another."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace

import pytest

from doubles.backbones import tiny_backbone
from doubles.leases import until
from doubles.rendering import rendered
from doubles.serving import FakeStore
from doubles.tasks import random_parameters, spec_of
from doubles.traffic import TrafficBench, ask_for, make_traffic_bench
from nunatak_model import Backbone, Branch, TopK, build_branch
from nunatak_registry import CorruptBlobError
from nunatak_server.batching.rows import PendingRow, RowAnswer
from nunatak_server.errors import NotReadyError, OverloadedError
from nunatak_server.service.prediction import TaskPrediction
from nunatak_server.service.streaming import StreamedResult
from nunatak_server.service.tokenization import Tokenization

ANSWER = RowAnswer(logits=[0.0, 1.0], queue_s=0.1, compute_s=0.2, batch_rows=3)


class HeldEngine:
    """Answers when told to, task by task."""

    def __init__(self) -> None:
        self.rows: list[PendingRow] = []
        self.is_stopped = False
        self.submissions: list[set[str]] = []
        self.answers_at_once = True

    def submit(self, rows: Sequence[PendingRow]) -> None:
        if self.is_stopped:
            raise NotReadyError("the engine has stopped")
        self.submissions.append({row.task for row in rows})
        self.rows.extend(rows)
        if self.answers_at_once:
            self.answer(*{row.task for row in rows})

    def answer(self, *tasks: str) -> None:
        for row in self.rows:
            if row.task in tasks and not row.future.done():
                row.future.set_result(ANSWER)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(scope="module")
def branch(backbone: Backbone) -> Branch:
    spec = spec_of(backbone, TopK(num_layers=1), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


async def make_bench(
    backbone: Backbone, branch: Branch, *hot: str
) -> tuple[TrafficBench, FakeStore, HeldEngine]:
    store, engine = FakeStore(branch), HeldEngine()
    bench = make_traffic_bench(backbone, store, engine)
    for task in hot:
        traffic = await bench.residency.resolve(store.add(task))
        await bench.residency.preload(traffic.manifest)
    return bench, store, engine


def name(streamed: StreamedResult) -> str:
    result = streamed.result
    return result.task if isinstance(result, TaskPrediction) else f"{result.error.code}"


def test_a_cold_task_holds_back_no_line_of_a_hot_one(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, store, engine = await make_bench(backbone, branch, "hot", "warm")
        store.add("cold")
        store.may_load.clear()

        async with aclosing(bench.service.stream(ask_for("cold", "hot", "warm"))) as results:
            first = {name(await anext(results)), name(await anext(results))}
            assert first == {"hot", "warm"}
            # What is in memory was asked together, so that it shares its trunk.
            assert engine.submissions == [{"hot", "warm"}]
            store.may_load.set()
            assert name(await anext(results)) == "cold"
            with pytest.raises(StopAsyncIteration):
                await anext(results)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_reference_that_must_be_looked_up_holds_back_no_other(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, store, _ = await make_bench(backbone, branch, "hot")
        store.add("new")
        store.may_resolve.clear()

        async with aclosing(bench.service.stream(ask_for("new", "nope", "hot"))) as results:
            assert name(await anext(results)) == "hot"
            store.may_resolve.set()
            assert {name(it) async for it in results} == {"new", "task_not_found"}

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_tasks_of_one_batch_come_as_each_is_answered(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one", "two")
        engine.answers_at_once = False

        async with aclosing(bench.service.stream(ask_for("one", "two"))) as results:
            first = asyncio.ensure_future(anext(results))
            await until(lambda: bool(engine.rows))
            engine.answer("two")
            streamed = await first
            assert name(streamed) == "two"
            assert (streamed.timings.compute_s, streamed.timings.batch_rows) == (0.2, 3)
            engine.answer("one")
            assert [name(it) async for it in results] == ["one"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_every_task_comes_once_whatever_becomes_of_it(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, store, _ = await make_bench(backbone, branch, "hot")
        store.add("sick")
        store.broken["sick/1"] = CorruptBlobError("ab" * 32, "is gone")

        asked = ask_for("hot", "sick", "nope", "NOT A NAME")
        found = [name(it) async for it in bench.service.stream(asked)]

        expected = ["corrupt_blob", "hot", "invalid_name", "task_not_found"]
        assert sorted(found) == expected
        assert (bench.admission.num_requests, bench.admission.num_tokens) == (0, 0)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_an_engine_that_stops_is_an_error_of_each_task(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one", "two")
        engine.is_stopped = True

        found = [name(it) async for it in bench.service.stream(ask_for("one", "two"))]

        assert found == ["not_ready", "not_ready"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_stream_that_is_closed_gives_up_what_is_open(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one", "two")
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

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_request_that_is_refused_whole_raises_before_its_first_line(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, _, _ = await make_bench(backbone, branch, "one")
        with ExitStack() as others:
            for number in range(10):
                others.enter_context(bench.admission.admit(f"caller {number}"))
            with pytest.raises(OverloadedError):
                await anext(bench.service.stream(ask_for("one")))

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_names_that_were_not_looked_up_in_time_become_no_labels(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, store, _ = await make_bench(backbone, branch)
        store.may_resolve.clear()
        asked = replace(ask_for("made-up-1", "made-up-2"), deadline_s=0.05)

        found = [name(it) async for it in bench.service.stream(asked)]

        assert found == ["deadline_exceeded", "deadline_exceeded"]
        text = rendered(bench.metrics)
        assert "made-up" not in text
        assert 'outcome="deadline_exceeded",task="unknown"} 2.0' in text

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_name_that_is_none_breaks_no_stream_that_is_late(
    backbone: Backbone, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        bench, _, _ = await make_bench(backbone, branch, "hot")
        monkeypatch.setattr(Tokenization, "encode", never)
        asked = replace(ask_for("hot", "NOT A NAME"), deadline_s=0.05)

        found = [name(it) async for it in bench.service.stream(asked)]

        assert found == ["deadline_exceeded", "deadline_exceeded"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_task_that_was_looked_up_is_the_label_of_whatever_fails_it_later(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one")
        engine.is_stopped = True

        _ = [it async for it in bench.service.stream(ask_for("one"))]

        assert 'outcome="not_ready",task="one"} 1.0' in rendered(bench.metrics)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))

"""Results come as they are there, each once, and none waits for another."""

import asyncio
import contextlib
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
from nunatak_server.admission.admission import Admission
from nunatak_server.batching.pace import Pace
from nunatak_server.batching.rows import PendingRow, RowAnswer, RowOutcome
from nunatak_server.errors import (
    DeadlineExceededError,
    DeadlineTooShortError,
    NotReadyError,
    OutOfMemoryError,
    OverloadedError,
    ServerError,
)
from nunatak_server.postprocess.outputs import PredictionOptions
from nunatak_server.service.prediction import PredictionRequest, TaskPrediction
from nunatak_server.service.streaming import StreamedResult
from nunatak_server.tokenization.tokenization import Tokenization

ANSWER = RowAnswer(logits=[0.0, 1.0], queue_s=0.1, compute_s=0.2, batch_rows=3)
NUM_TOKENS = 30
"""Of a queue, where a text has three; two tasks read it for the price of one and a half."""
MOST = {"other": 11.0, "another": 11.0}
"""Tokens that leave room for one task about two texts, but not for two tasks."""


class HeldEngine:
    """Answers when told to, task by task."""

    def __init__(self) -> None:
        self.rows: list[PendingRow] = []
        self.is_stopped = False
        self.submissions: list[set[str]] = []
        self.answers_at_once = True
        self.outcome: RowOutcome = ANSWER

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
                row.future.set_result(self.outcome)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(scope="module")
def branch(backbone: Backbone) -> Branch:
    spec = spec_of(backbone, TopK(num_layers=1), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


async def make_bench(
    backbone: Backbone, branch: Branch, *hot: str, admission: Admission | None = None
) -> tuple[TrafficBench, FakeStore, HeldEngine]:
    store, engine = FakeStore(branch), HeldEngine()
    bench = make_traffic_bench(backbone, store, engine, admission=admission)
    for task in hot:
        traffic = await bench.residency.resolve(store.add(task))
        await bench.residency.preload(traffic.manifest)
    return bench, store, engine


def admission_of(*, num_tokens: int, pace: Pace | None = None) -> Admission:
    return Admission(
        max_requests=10, max_tokens=num_tokens, max_bytes=1000, pace=lambda: pace or Pace()
    )


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


async def refusals_of(bench: TrafficBench, asked: PredictionRequest) -> set[str]:
    """What refuses a request that is answered whole, and one that is answered line by line."""
    found = set[str]()
    for answering in (bench.service.predict(asked), anext(bench.service.stream(asked))):
        with pytest.raises(ServerError) as refusal:
            await answering
        found.add(str(refusal.value))
    return found


@pytest.mark.parametrize("tasks", [("one",), ("NOT A NAME", "one", "two")], ids=["one", "several"])
def test_what_refuses_a_whole_answer_refuses_a_stream_before_its_first_line(
    backbone: Backbone, branch: Branch, tasks: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(
            backbone, branch, "one", "two", admission=admission_of(num_tokens=8)
        )
        asked = ask_for(*tasks)
        uncut = PredictionOptions(truncates=False)
        long = replace(asked, inputs=("word " * 20,), options=uncut)

        (too_large,) = await refusals_of(bench, asked)
        (too_long,) = await refusals_of(bench, long)

        assert "tokens of the queue" in too_large
        assert "has more than 16 tokens" in too_long
        assert engine.rows == []
        assert (bench.admission.num_requests, bench.admission.num_tokens) == (0, 0)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_stream_without_room_for_its_rows_is_told_when_to_retry(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        small = admission_of(num_tokens=NUM_TOKENS)
        bench, _, _ = await make_bench(backbone, branch, "one", "two", admission=small)
        with bench.admission.admit("another") as permit:
            permit.take_tokens(MOST)

            with pytest.raises(OverloadedError) as refusal:
                await anext(bench.service.stream(ask_for("one", "two")))

        assert refusal.value.retry_after_s >= 1

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_what_refuses_some_tasks_is_a_line_beside_the_answers_of_others(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        small = admission_of(num_tokens=NUM_TOKENS)
        bench, store, _ = await make_bench(backbone, branch, "one", "two", admission=small)
        store.add("new")

        with bench.admission.admit("another") as permit:
            permit.take_tokens(MOST)
            found = [name(it) async for it in bench.service.stream(ask_for("one", "two", "new"))]

        assert found == ["overloaded", "overloaded", "new"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_an_engine_that_stops_refuses_a_stream(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one", "two")
        engine.is_stopped = True

        with pytest.raises(NotReadyError):
            await anext(bench.service.stream(ask_for("one", "two")))

        # A task that was looked up is the label of whatever fails it later.
        assert 'outcome="not_ready",task="one"} 1.0' in rendered(bench.metrics)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


@pytest.mark.parametrize("tasks", [("hot", "warm"), ("hot", "cold")], ids=["hot", "cold"])
def test_a_stream_is_late_if_none_of_its_tasks_is_in_time(
    backbone: Backbone, branch: Branch, tasks: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        bench, store, engine = await make_bench(backbone, branch, "hot", "warm")
        store.add("cold")
        store.may_load.clear()
        engine.answers_at_once = False

        with pytest.raises(DeadlineExceededError):
            await anext(bench.service.stream(replace(ask_for(*tasks), deadline_s=0.05)))

        store.may_load.set()
        text = rendered(bench.metrics)
        assert all(f'outcome="deadline_exceeded",task="{task}"}} 1.0' in text for task in tasks)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_stream_is_too_late_at_once_only_if_all_of_its_tasks_are(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        paced = admission_of(num_tokens=1000, pace=Pace(tokens_per_s=10.0))
        bench, _, _ = await make_bench(backbone, branch, "busy", "free", admission=paced)
        with bench.admission.admit() as queued:
            queued.take_tokens({"busy": 300})
            hurried = replace(ask_for("busy"), deadline_s=20)

            with pytest.raises(DeadlineTooShortError):
                await anext(bench.service.stream(hurried))
            both = replace(hurried, references=("busy", "free"))
            found = [name(it) async for it in bench.service.stream(both)]

        assert found == ["deadline_too_short", "free"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_a_task_that_is_late_is_a_line_after_the_answers_of_others(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, store, _ = await make_bench(backbone, branch, "hot")
        store.add("cold")
        store.may_load.clear()

        asked = replace(ask_for("cold", "hot"), deadline_s=0.2)
        found = [name(it) async for it in bench.service.stream(asked)]

        store.may_load.set()
        assert found == ["hot", "deadline_exceeded"]

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_names_that_were_not_looked_up_in_time_become_no_labels(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, store, _ = await make_bench(backbone, branch)
        store.may_resolve.clear()
        asked = replace(ask_for("made-up-1", "made-up-2"), deadline_s=0.05)

        with pytest.raises(DeadlineExceededError):
            await anext(bench.service.stream(asked))

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

        with pytest.raises(DeadlineExceededError):
            await anext(bench.service.stream(asked))

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_the_stages_of_tasks_that_are_asked_together_are_recorded_once(
    backbone: Backbone, branch: Branch
) -> None:
    async def scenario() -> None:
        bench, _, _ = await make_bench(backbone, branch, "one", "two")

        _ = [it async for it in bench.service.stream(ask_for("one", "two", "nope", "NOT A NAME"))]

        text = rendered(bench.metrics)
        assert "nunatak_queue_seconds_count 1.0" in text
        assert "nunatak_queue_seconds_sum 0.1" in text
        assert "nunatak_tokenize_seconds_count 1.0" in text

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


def test_what_fails_in_its_batch_has_no_stages(backbone: Backbone, branch: Branch) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one")
        engine.outcome = OutOfMemoryError()

        await bench.service.predict(ask_for("one"))
        with contextlib.suppress(OutOfMemoryError):
            _ = [it async for it in bench.service.stream(ask_for("one"))]

        assert "nunatak_queue_seconds_count 0.0" in rendered(bench.metrics)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))


@pytest.mark.parametrize("tasks", [("one",), ("nope",)], ids=["late", "unknown"])
def test_what_was_not_computed_has_no_stages(
    backbone: Backbone, branch: Branch, tasks: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        bench, _, engine = await make_bench(backbone, branch, "one")
        engine.answers_at_once = False
        asked = replace(ask_for(*tasks), deadline_s=0.05)

        with contextlib.suppress(DeadlineExceededError):
            await bench.service.predict(asked)
        with contextlib.suppress(DeadlineExceededError):
            _ = [it async for it in bench.service.stream(asked)]

        assert "nunatak_queue_seconds_count 0.0" in rendered(bench.metrics)

    asyncio.run(asyncio.wait_for(scenario(), timeout=30))

"""Laws of turns, of which none is longer than a slice, and of time limits."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import pytest

from doubles.backbones import tiny_backbone
from doubles.engines import FakeEngine, tiny_branch
from doubles.leases import settle
from doubles.services import Bench, make_admission, make_bench
from doubles.serving import make_settings
from nunatak_contract.names import TaskReference
from nunatak_registry import Traffic
from nunatak_server.engine.engine import Inbox
from nunatak_server.predict.types import Handling, PredictionRequest
from nunatak_server.scheduler.rows import LOGITS_PER_TOKEN
from nunatak_server.scheduler.turns import SLICE, Check, FairSemaphore, Turns, within

TASKS = tuple(f"task-{number}" for number in range(64))
MANY = make_settings(max_inputs=64, max_documents=1, max_tasks_per_request=64, max_text_chars=100)


class Ticks:
    """Counts what happens between two looks of the event loop at other work."""

    def __init__(self) -> None:
        self.counts = [0]

    def count(self, _: object) -> None:
        self.counts[-1] += 1

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.counts.append(0)


class Track:
    """Takes slots, and remembers the callers that had one."""

    def __init__(self, *, num_slots: int = 1) -> None:
        self.semaphore = FairSemaphore(num_slots=num_slots)
        self.began: list[str] = []
        self.may_end = asyncio.Event()

    async def pass_through(self, caller: str, *, num_turns: int = 1) -> None:
        for _ in range(num_turns):
            async with self.semaphore.slot(caller):
                self.began.append(caller)
                await self.may_end.wait()
                await asyncio.sleep(0)


async def test_all_requests_together_handle_one_slice_between_two_looks_at_the_loop() -> None:
    turns, ticks = Turns(), Ticks()
    ticking = asyncio.create_task(ticks.run())
    # Each begins with a slice for which it needs no turn.
    await asyncio.gather(*(turns.pace(name).map(ticks.count, range(SLICE)) for name in "abc"))
    ticks.counts = [0]

    await asyncio.gather(*(busy(turns, name, ticks) for name in "aaaab"))

    ticking.cancel()
    turns.close()
    assert max(ticks.counts) == SLICE
    assert sum(ticks.counts) == 5 * 5 * SLICE


async def busy(turns: Turns, caller: str, ticks: Ticks) -> None:
    pace = turns.pace(caller)
    await pace.count(SLICE)
    await pace.map(ticks.count, range(5 * SLICE))


async def test_callers_have_their_slices_in_turn() -> None:
    turns, done = Turns(), list[str]()

    async def work(caller: str) -> None:
        pace = turns.pace(caller)
        await pace.count(SLICE)
        await pace.map(lambda _: done.append(caller), range(2 * SLICE))

    await asyncio.gather(*map(work, "aaaab"))

    turns.close()
    order = "".join(name for name, _ in groupby(done))
    assert order.index("b") == 1
    assert order.count("b") == 2


async def test_work_on_the_thread_ends_at_the_first_check_after_nobody_waits() -> None:
    turns, has_begun, may_check = Turns(), threading.Event(), threading.Event()
    reached = list[str]()

    def work(check: Check) -> None:
        check()
        has_begun.set()
        may_check.wait(60)
        reached.append("check")
        check()
        reached.append("end")

    working = asyncio.create_task(turns.pace("a").on_thread(work))
    await asyncio.to_thread(has_begun.wait, 60)
    working.cancel()
    await asyncio.wait([working])
    may_check.set()
    await asyncio.to_thread(turns.close)

    assert reached == ["check"]


async def ask_64_by_64(bench: Bench[FakeEngine]) -> None:
    request = PredictionRequest(
        references=TASKS,
        inputs=tuple(f"text {number}" for number in range(64)),
        handling=Handling(default_deadline_s=60),
    )
    await bench.service.predict(request)


async def large_bench() -> Bench[FakeEngine]:
    branch = tiny_branch()
    admission = make_admission(max_tokens=10_000)
    bench = make_bench(tiny_backbone(num_layers=1), branch, settings=MANY, admission=admission)
    for task in TASKS:
        traffic = await bench.store.resolve(bench.store.add(task))
        await bench.residency.preload(traffic.manifest)
    return bench


async def test_a_large_request_is_submitted_in_slices_with_all_tasks_of_a_text_in_one() -> None:
    bench = await large_bench()

    await ask_64_by_64(bench)

    assert bench.engine.sizes == [SLICE] * (64 * 64 // SLICE)
    assert all(submission == set(TASKS) for submission in bench.engine.submissions)


async def test_the_work_to_make_outputs_counts_until_the_answer() -> None:
    admission = make_admission(max_tokens=10_000)
    bench = make_bench(tiny_backbone(num_layers=1), tiny_branch(), admission=admission)
    bench.engine.answers_at_once = False
    counted = list[float]()
    for task, num_labels in (("few", 2), ("many", 3202)):
        manifest = bench.store.manifests[bench.store.add(task)]
        labels = tuple(f"label {number}" for number in range(num_labels))
        head = manifest.head.model_copy(update={"labels": labels})
        traffic = Traffic(manifest=manifest.model_copy(update={"head": head}))
        bench.store.traffic[TaskReference(task=task)] = traffic
        bench.engine.has_rows.clear()
        asking = asyncio.create_task(bench.ask(task))
        await bench.engine.has_rows.wait()
        counted.append(bench.admission.tokens.total)
        asking.cancel()
        await asyncio.wait([asking])
        assert bench.admission.tokens.total == 0

    few, many = counted
    assert many - few == 2 * 3200 / LOGITS_PER_TOKEN


async def test_each_row_counts_in_admission_before_it_waits() -> None:
    bench = await large_bench()
    bench.engine.answers_at_once = False

    asking = asyncio.create_task(ask_64_by_64(bench))
    await bench.engine.has_rows.wait()

    assert bench.admission.tokens.total >= 64 * 64
    asking.cancel()
    await asyncio.wait([asking])
    assert bench.admission.tokens.total == 0
    assert all(row.is_cancelled for row in bench.engine.rows)


@pytest.mark.parametrize("num_slots", [1, 2])
async def test_callers_that_stay_take_turns(num_slots: int) -> None:
    track = Track(num_slots=num_slots)
    track.may_end.set()
    many = [track.pass_through("many", num_turns=4) for _ in range(10)]

    await asyncio.gather(*many, track.pass_through("few", num_turns=10))

    positions = [index for index, caller in enumerate(track.began) if caller == "few"]
    gaps = [after - before for before, after in itertools.pairwise(positions)]
    assert max(gaps) <= 1 + num_slots


async def test_requests_of_one_caller_take_turns_as_well() -> None:
    track, ended = Track(), list[str]()

    async def ask(name: str, num_turns: int) -> None:
        await track.pass_through("one", num_turns=num_turns)
        ended.append(name)

    asking = [asyncio.create_task(ask(name, n)) for name, n in (("long", 9), ("short", 1))]
    await settle()
    track.may_end.set()
    await asyncio.gather(*asking)

    assert ended == ["short", "long"]


async def test_as_many_go_on_at_once_as_there_are_places() -> None:
    track = Track(num_slots=2)
    asking = [asyncio.create_task(track.pass_through("a")) for _ in range(3)]
    await settle()
    assert len(track.began) == 2

    track.may_end.set()
    await asyncio.gather(*asking)
    assert len(track.began) == 3


async def test_who_gives_up_leaves_its_turn_to_the_next() -> None:
    track = Track()
    inside, granted, waiting, last = (
        asyncio.create_task(track.pass_through(caller)) for caller in "abcd"
    )
    await settle()
    waiting.cancel()
    # `granted` gets its slot in the same turn of the loop in which it is cancelled.
    inside.cancel()
    await asyncio.sleep(0)
    granted.cancel()
    await settle()

    assert track.began == ["a", "d"]
    track.may_end.set()
    await last
    async with asyncio.timeout(1), track.semaphore.slot("anybody"):
        pass


def test_closing_wakes_a_waiting_taker() -> None:
    inbox = Inbox[int]()
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(inbox.take, block=True)
        time.sleep(0.05)  # The taker waits by now.

        inbox.close()

        assert taken.result(timeout=20) is None


Work = Coroutine[Any, Any, str]
SOON_S = 0.02
LONG_S = 30.0


class LateError(Exception):
    """The error when the time is over."""


class WorkError(Exception):
    """The error of the work itself."""


async def at_once() -> str:
    return "done"


async def after_a_while() -> str:
    for _ in range(3):
        await asyncio.sleep(SOON_S / 10)
        await asyncio.sleep(0)
    return "done"


async def after_its_own_timeout() -> str:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SOON_S / 4):
            await asyncio.sleep(LONG_S)
    return "done"


WORK = [at_once, after_a_while, after_its_own_timeout]


@pytest.mark.parametrize("work", WORK)
async def test_work_in_time_gives_its_result_or_its_own_error(work: Callable[[], Work]) -> None:
    async def fail(error: type[Exception]) -> None:
        await work()
        raise error

    assert await within(LONG_S, work(), late=LateError) == "done"
    for error in (WorkError, TimeoutError):
        with pytest.raises(error):
            await within(LONG_S, fail(error), late=LateError)


async def test_work_that_is_late_is_cancelled_and_cleans_up() -> None:
    cleaned = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(LateError):
        await within(SOON_S, work(), late=LateError)
    assert cleaned == ["up"]


@pytest.mark.parametrize("num_turns", [1, 2])
async def test_a_cancelled_caller_cancels_the_work_and_is_not_late(num_turns: int) -> None:
    ends = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    task = asyncio.create_task(within(LONG_S, work(), late=LateError))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]

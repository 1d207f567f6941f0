"""Laws of turns: what one request does delays no other by more than a slice."""

import asyncio
import threading
from itertools import groupby

from doubles.backbones import tiny_backbone
from doubles.engines import tiny_branch
from doubles.services import Bench, FakeEngine, make_bench
from doubles.serving import make_settings
from nunatak_contract.names import TaskReference
from nunatak_registry import Traffic
from nunatak_server.predict.types import Handling, PredictionRequest
from nunatak_server.scheduler.rows import LOGITS_PER_TOKEN
from nunatak_server.scheduler.turns import SLICE, Check, Turns

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
    bench = make_bench(tiny_backbone(num_layers=1), branch, settings=MANY, max_tokens=10_000)
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
    bench = make_bench(tiny_backbone(num_layers=1), tiny_branch(), max_tokens=10_000)
    bench.engine.is_silent = True
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
        counted.append(bench.admission.num_tokens)
        asking.cancel()
        await asyncio.wait([asking])
        assert bench.admission.num_tokens == 0

    few, many = counted
    assert many - few == 2 * 3200 / LOGITS_PER_TOKEN


async def test_each_row_counts_in_admission_before_it_waits() -> None:
    bench = await large_bench()
    bench.engine.is_silent = True

    asking = asyncio.create_task(ask_64_by_64(bench))
    await bench.engine.has_rows.wait()

    assert bench.admission.num_tokens >= 64 * 64
    asking.cancel()
    await asyncio.wait([asking])
    assert bench.admission.num_tokens == 0
    assert all(row.is_cancelled for row in bench.engine.rows)

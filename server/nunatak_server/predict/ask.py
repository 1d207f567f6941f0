"""Dispatch: the rows of one request go to versions in memory, or to versions that are loading.

A version is leased from the submission of its rows to their answers. No lease is held during the
wait for another version, because a request may name more tasks than memory can hold. Versions in
memory are asked at once. All other versions are loaded in parallel. If they all fit, they are asked
together, so that they share a batch and its trunk; if not, each is asked alone.

The rows of a large request are made and submitted in slices, all tasks of a text together. Other
requests use the event loop in between.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any, Protocol

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Branch
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.types import (
    BACKBONE,
    Arrival,
    Asked,
    AskedTask,
    PredictionRequest,
    StreamedResult,
    TaskFailure,
)
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.rollouts.rollouts import ShadowRun
from nunatak_server.scheduler.rows import PendingRow, RowOutcome, RowSpec
from nunatak_server.scheduler.turns import SLICE, Pace


class RowSink(Protocol):
    def submit(self, rows: Sequence[PendingRow]) -> None: ...

    def withdraw(self, rows: Sequence[PendingRow]) -> None: ...


Report = Callable[[AskedTask], None]
"""Receives a task as soon as the last of its rows is answered."""
Reporting = Callable[[], Coroutine[Any, Any, None]]


class Dispatcher:
    """Leases versions and submits their rows; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        residency: Residency,
        engine: RowSink,
        shadow: Callable[[ShadowRun, Sequence[PendingRow]], Sequence[PendingRow]],
        clock: Callable[[], float],
    ) -> None:
        """`shadow` returns the rows of a shadow, given the rows of the answering version."""
        self._residency = residency
        self._engine = engine
        self._shadow = shadow
        self._clock = clock

    async def ask(
        self, asked: Sequence[AskedTask], *, pace: Pace, report: Report | None = None
    ) -> None:
        """Give each task the outcomes of its rows. A late version is a separate failure.

        Versions in memory are asked at once and together, so that they meet in one batch. The other
        versions are asked together once they are loaded, or once half of the time is over. `report`
        is called for each version as soon as all of its rows are answered.
        """
        hot, rest = self._leased(asked)
        # A version whose answers are all known is not loaded, so a failed load changes nothing.
        cold = [it for it in rest if it.rows or not it.known]
        try:
            for it in rest:
                if report and it not in cold:
                    report(it)
            asking = self._ask_leased(hot, pace, report)
            if cold:
                await _all([asking, self._ask_cold(cold, pace, report)])
            else:
                await asking
        finally:
            for _, lease in hot:
                lease.release()

    async def ask_backbone(
        self, specs: Sequence[RowSpec], branch: Branch, *, pace: Pace
    ) -> list[RowOutcome]:
        """Return the answers of the backbone. Its branch is always in memory and needs no lease."""
        row_of = partial(
            PendingRow,
            task=BACKBONE,
            version=0,
            branch=branch,
            deadline=pace.deadline,
            submitted_at=self._clock(),
        )
        rows = list(map(row_of, specs))
        await self._compute(rows, pace=pace)
        return await pace.map(_outcome_now, rows)

    def _leased(
        self, asked: Sequence[AskedTask]
    ) -> tuple[list[tuple[AskedTask, Lease]], list[AskedTask]]:
        there, rest = list[tuple[AskedTask, Lease]](), list[AskedTask]()
        for each in asked:
            lease = self._residency.lease_resident(each.manifest)
            if lease is None:
                rest.append(each)
            else:
                there.append((each, lease))
        return there, rest

    async def _ask_cold(self, cold: Sequence[AskedTask], pace: Pace, report: Report | None) -> None:
        """Ask versions that are not in memory.

        The versions are asked together if memory has free room for all of them. Without that room,
        a version that waits without a lease for the others might be evicted before it is asked.
        """
        if len(cold) == 1 or not self._residency.has_free_room([it.manifest for it in cold]):
            await _all([self._ask_alone(it, pace, report) for it in cold])
            return
        started = self._clock()
        loads = [asyncio.ensure_future(self._bring(it.manifest)) for it in cold]
        there = list[tuple[AskedTask, Lease]]()
        try:
            await asyncio.wait(loads, timeout=(pace.deadline - self._clock()) / 2)
            # A late or failed version must not delay the others.
            there, rest = self._leased(cold)
            load_s = self._clock() - started
            asking = self._ask_leased(there, pace, report, load_s=load_s)
            await _all([asking, *(self._ask_alone(it, pace, report) for it in rest)])
        finally:
            for load in loads:
                load.cancel()
            # If the caller goes before the submission, no other code would release the leases.
            for _, lease in there:
                lease.release()

    async def _bring(self, manifest: TaskManifest) -> None:
        # `Loads` remembers the failure for a while, and gives it to the request for the version.
        with contextlib.suppress(NunatakError):
            await self._residency.bring(manifest)

    async def _ask_alone(self, asked: AskedTask, pace: Pace, report: Report | None) -> None:
        started = self._clock()
        try:
            async with asyncio.timeout(pace.deadline - started):
                lease = await self._residency.lease(asked.manifest)
        except TimeoutError:
            asked.outcomes = [DeadlineExceededError()]
        except NunatakError as error:
            asked.outcomes = [error]
        else:
            load_s = self._clock() - started
            await self._ask_leased([(asked, lease)], pace, report, load_s=load_s)

    async def _ask_leased(
        self,
        asked: Sequence[tuple[AskedTask, Lease]],
        pace: Pace,
        report: Report | None,
        *,
        load_s: float = 0.0,
    ) -> None:
        if not asked:
            return
        try:
            now, groups = self._clock(), list[list[PendingRow]]()
            for each, lease in asked:
                row_of = partial(
                    PendingRow,
                    task=each.manifest.task,
                    version=each.manifest.version,
                    branch=lease.task.branch,
                    deadline=pace.deadline,
                    submitted_at=now,
                    load_s=load_s,
                )
                groups.append(await pace.map(row_of, each.rows))
            reports, shadows = list[Reporting](), list[PendingRow]()
            for (each, _), group in zip(asked, groups, strict=True):
                if each.shadow_run:
                    shadows += self._shadow(each.shadow_run, group)
                if report:
                    reports.append(partial(_report_when_answered, each, group, report))
            rows = list(chain.from_iterable(groups))
            await self._compute(rows, shadows, reports=reports, pace=pace)
            for (each, _), group in zip(asked, groups, strict=True):
                each.outcomes = await pace.map(_outcome_now, group)
        finally:
            for _, lease in asked:
                lease.release()

    async def _compute(
        self,
        rows: Sequence[PendingRow],
        shadows: Sequence[PendingRow] = (),
        *,
        reports: Sequence[Reporting] = (),
        pace: Pace,
    ) -> None:
        """Wait until each row is answered or late, without waiting for shadows.

        Rows whose caller goes, or which are late, are withdrawn.
        """
        are_answered = False
        try:
            async with asyncio.timeout(pace.deadline - self._clock()):
                await self._submit(rows, shadows, pace)
                if reports:
                    await asyncio.gather(*(it() for it in reports))
                for row in rows:
                    if not row.future.done():
                        await row.future
            are_answered = True
        except TimeoutError:
            pass
        finally:
            if not are_answered:
                # A cancelled request has cancelled the future of the one row that it awaits.
                left = [row for row in rows if row.is_cancelled or not row.future.done()]
                self._engine.withdraw(left)

    async def _submit(
        self, rows: Sequence[PendingRow], shadows: Sequence[PendingRow], pace: Pace
    ) -> None:
        """Submit rows in slices, with all rows of a text in one slice if they fit."""
        if not rows:
            return
        if len(rows) <= SLICE:
            self._engine.submit([*rows, *shadows])
            return
        texts = defaultdict[int, list[PendingRow]](list)
        await pace.map(lambda row: texts[row.spec.group].append(row), rows)
        part = list(shadows)
        for text in texts.values():
            for begin in range(0, len(text), SLICE):
                piece = text[begin : begin + SLICE]
                if len(part) + len(piece) > SLICE:
                    self._engine.submit(part)
                    await pace.count(SLICE)
                    part = []
                part += piece
        self._engine.submit(part)


async def _report_when_answered(
    asked: AskedTask, rows: Sequence[PendingRow], report: Report
) -> None:
    for row in rows:
        if not row.future.done():
            await row.future
    asked.outcomes = [row.future.result() for row in rows]
    report(asked)


def _outcome_now(row: PendingRow) -> RowOutcome:
    is_answered = row.future.done() and not row.future.cancelled()
    return row.future.result() if is_answered else DeadlineExceededError()


async def _all(asking: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all to their end, also if one fails, because each releases its leases."""
    for failure in await asyncio.gather(*asking, return_exceptions=True):
        if failure is not None:
            raise failure


class RequestPart:
    """References of a stream that are answered together. Each reference arrives once."""

    def __init__(self, request: PredictionRequest, *, arrive: Callable[[Arrival], None]) -> None:
        self.request = request
        self._arrive = arrive
        self._open: dict[str, str | None] = dict.fromkeys(request.references)
        """References that have not arrived, with the names of the tasks that exist."""
        self._tokenize_s = 0.0

    def name(self, reference: str, task: str) -> None:
        self._open[reference] = task

    def begin(self, read: Sequence[Asked], *, tokenize_s: float) -> None:
        self._tokenize_s = tokenize_s
        for item in read:
            if isinstance(item, TaskFailure):
                self.put(item)

    def put(self, asked: Asked) -> None:
        if asked.reference in self._open:
            del self._open[asked.reference]
            self._arrive((asked, self._tokenize_s))

    def fail(self, error: NunatakError) -> None:
        for reference, task in list(self._open.items()):
            self.put(TaskFailure(reference=reference, error=error, task=task, refuses_request=True))


async def arrivals(
    queue: asyncio.Queue[Arrival | BaseException], count: int, sources: Iterable[Awaitable[None]]
) -> AsyncGenerator[Arrival]:
    """Yield `count` arrivals while the sources run; closing the generator cancels the sources.

    The sources put the arrivals into the queue. An exception of a source is raised here.
    """

    def take_failure(task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            queue.put_nowait(error)

    running = [asyncio.ensure_future(source) for source in sources]
    for task in running:
        task.add_done_callback(take_failure)
    try:
        for _ in range(count):
            arrival = await queue.get()
            if isinstance(arrival, BaseException):
                raise arrival
            yield arrival
        # The sources are awaited to their end, because their last steps record the request.
        await asyncio.gather(*running, return_exceptions=True)
    finally:
        for task in running:
            task.cancel()
        # Awaited to their end, because the sources release their leases.
        await asyncio.gather(*running, return_exceptions=True)


async def hold_refusals(results: AsyncGenerator[StreamedResult]) -> AsyncGenerator[StreamedResult]:
    """Hold refusals back until a result is none; if all results are refusals, raise the first."""
    held = list[StreamedResult]()
    refusal: NunatakError | None = None
    has_begun = False
    async with aclosing(results):
        async for streamed in results:
            held.append(streamed)
            refusal = refusal or streamed.refusal
            has_begun = has_begun or streamed.refusal is None
            while has_begun and held:
                yield held.pop(0)
    if refusal is not None and not has_begun:
        raise refusal

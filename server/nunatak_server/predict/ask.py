"""Asking: rows of one request put to versions in memory or on their way there.

A version is leased from the moment its rows are computed until they are answered, and no lease is
held while another is waited for: a request may name more tasks than memory has room for. Versions
in memory are asked at once. Those that are not are loaded side by side and then asked together, so
that they share a batch and its trunk, if they all fit; else each by itself.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from nunatak_registry import TaskManifest
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.failures import KNOWN_ERRORS, KnownError
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.scheduler.rows import PendingRow, Report, RowOutcome, VersionRows, pending_row


class RowSink(Protocol):
    """Where rows are computed."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; each one's future is resolved later."""
        ...


Answers = list[RowOutcome] | KnownError
"""What one version made of its rows, in order, or why it could not be asked."""


class Asking:
    """Asks versions; belongs to the event loop thread."""

    def __init__(
        self, *, residency: Residency, engine: RowSink, clock: Callable[[], float]
    ) -> None:
        self._residency = residency
        self._engine = engine
        self._clock = clock

    async def ask(self, asked: Sequence[VersionRows], *, deadline: float) -> list[Answers]:
        """Return what each version answers, in order; what is late is a failure of its own.

        Versions in memory are asked at once and together, so that they meet in one batch; the
        others together once they are loaded, or once half of the time is over.

        Raises:
            NotReadyError: the engine has stopped.
        """
        leases = [self._residency.lease_resident(each.manifest) for each in asked]
        hot = [(each, lease) for each, lease in zip(asked, leases, strict=True) if lease]
        cold = [each for each, lease in zip(asked, leases, strict=True) if not lease]
        try:
            if not cold:
                return list(await self._ask_leased(hot, deadline))
            from_memory, from_store = map(
                iter,
                await _all([self._ask_leased(hot, deadline), self._ask_cold(cold, deadline)]),
            )
        finally:
            for _, lease in hot:
                lease.release()
        return [next(from_memory if lease else from_store) for lease in leases]

    async def _ask_cold(self, cold: Sequence[VersionRows], deadline: float) -> list[Answers]:
        """Ask versions that are not in memory.

        Together where there is room for all of them beside what is there. Where there is not, one
        that waits for the others without a lease might go again before it is asked.
        """
        if len(cold) == 1 or not self._residency.has_free_room([it.manifest for it in cold]):
            return _flat(await _all([self._ask_alone(it, deadline) for it in cold]))
        started = self._clock()
        loads = [asyncio.ensure_future(self._bring(it.manifest)) for it in cold]
        there = list[tuple[VersionRows, Lease]]()
        try:
            await asyncio.wait(loads, timeout=(deadline - self._clock()) / 2)
            leases = [self._residency.lease_resident(it.manifest) for it in cold]
            there = [(each, lease) for each, lease in zip(cold, leases, strict=True) if lease]
            # One that is late, or failed, is told so; it need not make the others late.
            rest = [each for each, lease in zip(cold, leases, strict=True) if not lease]
            alone = (self._ask_alone(it, deadline) for it in rest)
            asking = self._ask_leased(there, deadline, load_s=self._clock() - started)
            together, *others = await _all([asking, *alone])
        finally:
            for load in loads:
                load.cancel()
            # A caller that goes before they are asked leaves nobody else to give them back.
            for _, lease in there:
                lease.release()
        first, second = iter(together), iter(_flat(others))
        return [next(first if lease else second) for lease in leases]

    async def _bring(self, manifest: TaskManifest) -> None:
        # Who asks for the version is told of its failure, which is remembered for a while.
        with contextlib.suppress(*KNOWN_ERRORS):
            await self._residency.bring(manifest)

    async def _ask_alone(self, asked: VersionRows, deadline: float) -> list[Answers]:
        started = self._clock()
        try:
            async with asyncio.timeout(deadline - started):
                lease = await self._residency.lease(asked.manifest)
        except TimeoutError:
            return [DeadlineExceededError()]
        except KNOWN_ERRORS as error:
            return [error]
        return await self._ask_leased([(asked, lease)], deadline, load_s=self._clock() - started)

    async def _ask_leased(
        self, asked: Sequence[tuple[VersionRows, Lease]], deadline: float, *, load_s: float = 0.0
    ) -> list[Answers]:
        if not asked:
            return []
        now = self._clock()
        rows = [
            [
                pending_row(
                    row,
                    lease.task,
                    deadline=deadline,
                    now=now,
                    load_s=load_s,
                    caller=each.caller,
                    priority=each.priority,
                )
                for row in each.rows
            ]
            for each, lease in asked
        ]
        for (each, _), group in zip(asked, rows, strict=True):
            if each.report:
                _report_when_answered(group, each.report)
        try:
            beside = [
                each.shadow_rows(group)
                for (each, _), group in zip(asked, rows, strict=True)
                if each.shadow_rows
            ]
            self._engine.submit([row for group in (*rows, *beside) for row in group])
            async with asyncio.timeout(deadline - self._clock()):
                return [[await row.future for row in group] for group in rows]
        except TimeoutError:
            return [[_outcome_now(row) for row in group] for group in rows]
        finally:
            # Only what nobody waits for is still open; the engine then drops it.
            for group in rows:
                for row in group:
                    row.future.cancel()
            for _, lease in asked:
                lease.release()


def _report_when_answered(rows: Sequence[PendingRow], report: Report) -> None:
    """Report once every row is answered; never if one of them is given up."""
    remaining = len(rows)

    def count(_: asyncio.Future[RowOutcome]) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining and not any(row.is_cancelled for row in rows):
            report([row.future.result() for row in rows])

    for row in rows:
        row.future.add_done_callback(count)


def _outcome_now(row: PendingRow) -> RowOutcome:
    is_answered = row.future.done() and not row.future.cancelled()
    return row.future.result() if is_answered else DeadlineExceededError()


async def _all(asking: Sequence[Coroutine[Any, Any, list[Answers]]]) -> list[list[Answers]]:
    """Await all of them to their end, also when one fails: they give back what they hold."""
    groups = list[list[Answers]]()
    for group in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(group, BaseException):
            raise group
        groups.append(group)
    return groups


def _flat(groups: Sequence[list[Answers]]) -> list[Answers]:
    return [answer for group in groups for answer in group]

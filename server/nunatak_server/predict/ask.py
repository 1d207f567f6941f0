"""Dispatch: the rows of one request, put to versions in memory or on their way there.

A version is leased from the moment its rows are computed until they are answered, and no lease is
held while another is waited for: a request may name more tasks than memory has room for. Versions
in memory are asked at once. Those that are not are loaded side by side and then asked together, so
that they share a batch and its trunk, if they all fit; else each by itself.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Branch
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.types import BACKBONE, AskedBackbone, AskedTask, RowOutcomes
from nunatak_server.residency.residency import Lease, Residency
from nunatak_server.rollouts.shadows import ShadowRun
from nunatak_server.scheduler.rows import PendingRow, RowOutcome, pending_row


class RowSink(Protocol):
    """Where rows are computed."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; each one's future is resolved later."""
        ...


Report = Callable[[AskedTask, RowOutcomes], None]
"""Is given what became of the rows of a version, as soon as the last of them is answered."""


class Dispatcher:
    """Leases versions and submits their rows; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        residency: Residency,
        engine: RowSink,
        shadow: Callable[[ShadowRun, Sequence[PendingRow]], Sequence[PendingRow]],
        clock: Callable[[], float],
    ) -> None:
        """`shadow` returns the rows of a shadow, given those of the version that answers."""
        self._residency = residency
        self._engine = engine
        self._shadow = shadow
        self._clock = clock

    async def ask(
        self, asked: Sequence[AskedTask], *, deadline: float, report: Report | None = None
    ) -> Sequence[RowOutcomes]:
        """Return what each version answers, in order; what is late is a failure of its own.

        Versions in memory are asked at once and together, so that they meet in one batch; the
        others together once they are loaded, or once half of the time is over. `report` is called
        for each version that answers all of its rows, as soon as it has.

        Raises:
            NunatakError: `not_ready`, the engine has stopped.
        """
        leases = [self._residency.lease_resident(each.manifest) for each in asked]
        hot = [(each, lease) for each, lease in zip(asked, leases, strict=True) if lease]
        cold = [each for each, lease in zip(asked, leases, strict=True) if not lease]
        try:
            if not cold:
                return await self._ask_leased(hot, deadline, report)
            from_memory, from_store = map(
                iter,
                await _all(
                    [
                        self._ask_leased(hot, deadline, report),
                        self._ask_cold(cold, deadline, report),
                    ]
                ),
            )
        finally:
            for _, lease in hot:
                lease.release()
        return [next(from_memory if lease else from_store) for lease in leases]

    async def ask_backbone(
        self, asked: AskedBackbone, branch: Branch, *, deadline: float
    ) -> list[RowOutcome]:
        """Return what the backbone answers: a branch that is always in memory needs no lease.

        Raises:
            NunatakError: `not_ready`, the engine has stopped.
        """
        now, loop = self._clock(), asyncio.get_running_loop()
        rows = [
            PendingRow(
                spec=spec,
                task=BACKBONE,
                version=0,
                branch=branch,
                deadline=deadline,
                submitted_at=now,
                future=loop.create_future(),
            )
            for spec in asked.rows
        ]
        (outcomes,) = await self._compute([rows], deadline=deadline)
        return outcomes

    async def _ask_cold(
        self, cold: Sequence[AskedTask], deadline: float, report: Report | None
    ) -> Sequence[RowOutcomes]:
        """Ask versions that are not in memory.

        They are asked together where memory has room for all of them next to what it holds. Where
        it has not, a version that waited for the others without a lease might be evicted before it
        is asked.
        """
        if len(cold) == 1 or not self._residency.has_free_room([it.manifest for it in cold]):
            return _flat(await _all([self._ask_alone(it, deadline, report) for it in cold]))
        started = self._clock()
        loads = [asyncio.ensure_future(self._bring(it.manifest)) for it in cold]
        there = list[tuple[AskedTask, Lease]]()
        try:
            await asyncio.wait(loads, timeout=(deadline - self._clock()) / 2)
            leases = [self._residency.lease_resident(it.manifest) for it in cold]
            there = [(each, lease) for each, lease in zip(cold, leases, strict=True) if lease]
            # One that is late, or failed, is told so; it need not make the others late.
            rest = [each for each, lease in zip(cold, leases, strict=True) if not lease]
            alone = (self._ask_alone(it, deadline, report) for it in rest)
            load_s = self._clock() - started
            asking = self._ask_leased(there, deadline, report, load_s=load_s)
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
        # The failure is remembered for a while, and given to the request that asks for the version.
        with contextlib.suppress(NunatakError):
            await self._residency.bring(manifest)

    async def _ask_alone(
        self, asked: AskedTask, deadline: float, report: Report | None
    ) -> Sequence[RowOutcomes]:
        started = self._clock()
        try:
            async with asyncio.timeout(deadline - started):
                lease = await self._residency.lease(asked.manifest)
        except TimeoutError:
            return [[DeadlineExceededError()]]
        except NunatakError as error:
            return [[error]]
        load_s = self._clock() - started
        return await self._ask_leased([(asked, lease)], deadline, report, load_s=load_s)

    async def _ask_leased(
        self,
        asked: Sequence[tuple[AskedTask, Lease]],
        deadline: float,
        report: Report | None,
        *,
        load_s: float = 0.0,
    ) -> Sequence[RowOutcomes]:
        if not asked:
            return []
        try:
            now = self._clock()
            groups = [
                [
                    pending_row(spec, lease.task, deadline=deadline, now=now, load_s=load_s)
                    for spec in each.rows
                ]
                for each, lease in asked
            ]
            shadows = list[PendingRow]()
            for (each, _), group in zip(asked, groups, strict=True):
                if report:
                    _report_when_answered(group, partial(report, each))
                if each.shadow:
                    shadows += self._shadow(each.shadow, group)
            return await self._compute(groups, shadows, deadline=deadline)
        finally:
            for _, lease in asked:
                lease.release()

    async def _compute(
        self,
        groups: Sequence[Sequence[PendingRow]],
        shadows: Sequence[PendingRow] = (),
        *,
        deadline: float,
    ) -> list[list[RowOutcome]]:
        """Return what becomes of each row; nobody here waits for shadows."""
        try:
            self._engine.submit([*(row for group in groups for row in group), *shadows])
            async with asyncio.timeout(deadline - self._clock()):
                return [[await row.future for row in group] for group in groups]
        except TimeoutError:
            return [[_outcome_now(row) for row in group] for group in groups]
        finally:
            # Only what nobody waits for is still open; the engine then drops it.
            for group in groups:
                for row in group:
                    row.future.cancel()


def _report_when_answered(
    rows: Sequence[PendingRow], report: Callable[[RowOutcomes], None]
) -> None:
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


async def _all(
    asking: Sequence[Coroutine[Any, Any, Sequence[RowOutcomes]]],
) -> list[Sequence[RowOutcomes]]:
    """Await all of them to their end, also when one fails: they give back what they hold."""
    groups = list[Sequence[RowOutcomes]]()
    for group in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(group, BaseException):
            raise group
        groups.append(group)
    return groups


def _flat(groups: Sequence[Sequence[RowOutcomes]]) -> Sequence[RowOutcomes]:
    return [outcomes for group in groups for outcomes in group]

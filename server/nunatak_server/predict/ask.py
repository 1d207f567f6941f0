"""Dispatch: the rows of one request go to versions in memory, or to versions that are loading.

A version is leased from the submission of its rows to their answers. No lease is held during the
wait for another version, because a request may name more tasks than memory can hold. Versions in
memory are asked at once. All other versions are loaded in parallel. If they all fit, they are asked
together, so that they share a batch and its trunk; if not, each is asked alone.
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
    """Computes rows."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; the future of each row is resolved later."""
        ...


Report = Callable[[AskedTask, RowOutcomes], None]
"""Receives the answers of a version's rows, as soon as the last row is answered."""


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
        self, asked: Sequence[AskedTask], *, deadline: float, report: Report | None = None
    ) -> Sequence[RowOutcomes]:
        """Return the answers of each version, in order. A late version is a separate failure.

        Versions in memory are asked at once and together, so that they meet in one batch. The other
        versions are asked together once they are loaded, or once half of the time is over. `report`
        is called for each version as soon as all of its rows are answered.

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
        """Return the answers of the backbone. Its branch is always in memory and needs no lease.

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

        The versions are asked together if memory has free room for all of them. Without that room,
        a version that waits without a lease for the others might be evicted before it is asked.
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
            # A late or failed version must not delay the others.
            rest = [each for each, lease in zip(cold, leases, strict=True) if not lease]
            alone = (self._ask_alone(it, deadline, report) for it in rest)
            load_s = self._clock() - started
            asking = self._ask_leased(there, deadline, report, load_s=load_s)
            together, *others = await _all([asking, *alone])
        finally:
            for load in loads:
                load.cancel()
            # If the caller goes before the submission, no other code would release the leases.
            for _, lease in there:
                lease.release()
        first, second = iter(together), iter(_flat(others))
        return [next(first if lease else second) for lease in leases]

    async def _bring(self, manifest: TaskManifest) -> None:
        # `Loads` remembers the failure for a while, and gives it to the request for the version.
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
        """Return the outcome of each row, without waiting for shadows."""
        try:
            self._engine.submit([*(row for group in groups for row in group), *shadows])
            async with asyncio.timeout(deadline - self._clock()):
                return [[await row.future for row in group] for group in groups]
        except TimeoutError:
            return [[_outcome_now(row) for row in group] for group in groups]
        finally:
            # Only rows of requests that have gone are still open. The engine drops cancelled rows.
            for group in groups:
                for row in group:
                    row.future.cancel()


def _report_when_answered(
    rows: Sequence[PendingRow], report: Callable[[RowOutcomes], None]
) -> None:
    """Report once every row is answered; never if a row is cancelled."""
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
    """Await all to their end, also if one fails, because each releases its leases."""
    groups = list[Sequence[RowOutcomes]]()
    for group in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(group, BaseException):
            raise group
        groups.append(group)
    return groups


def _flat(groups: Sequence[Sequence[RowOutcomes]]) -> Sequence[RowOutcomes]:
    return [outcomes for group in groups for outcomes in group]

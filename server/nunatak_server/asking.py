"""Asking: rows of one request put to versions in memory or on their way there.

A version is leased from the moment its rows are computed until they are answered, and no lease is
held while another is waited for: a request may name more tasks than memory has room for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nunatak_artifact import ArtifactError
from nunatak_model import Encoding, ModelError
from nunatak_registry import RegistryError, TaskManifest
from nunatak_server.batching.rows import PendingRow, RowOutcome
from nunatak_server.errors import DeadlineExceededError, ServerError
from nunatak_server.prediction import KnownError
from nunatak_server.residency.residency import Lease, Residency

KNOWN_ERRORS = (RegistryError, ModelError, ArtifactError, ServerError)


class RowSink(Protocol):
    """Where rows are computed."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Queue rows; each one's future is resolved later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row before its version is in memory."""

    encoding: Encoding
    group: int
    trunk_tokens: int
    branch_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRows:
    """The rows of one request for one version."""

    manifest: TaskManifest
    rows: tuple[PlannedRow, ...]


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

        Versions in memory are asked at once and together, so that they meet in one batch; every
        other one as soon as it is loaded.

        Raises:
            NotReadyError: the engine has stopped.
        """
        leases = [self._residency.lease_resident(each.manifest) for each in asked]
        hot = [(each, lease) for each, lease in zip(asked, leases, strict=True) if lease]
        cold = [each for each, lease in zip(asked, leases, strict=True) if not lease]
        try:
            if not cold:
                return list(await self._ask_leased(hot, deadline))
            asking = (
                self._ask_leased(hot, deadline),
                *(self._ask_cold(it, deadline) for it in cold),
            )
            # All of them to their end, also when one fails: they give back what they hold.
            found = await asyncio.gather(*asking, return_exceptions=True)
        finally:
            for _, lease in hot:
                lease.release()
        groups = iter(_checked(found))
        from_memory = iter(next(groups))
        return [next(from_memory) if lease else next(groups)[0] for lease in leases]

    async def _ask_cold(self, asked: VersionRows, deadline: float) -> list[Answers]:
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
        rows = [
            [self._pending(row, lease, deadline, load_s) for row in each.rows]
            for each, lease in asked
        ]
        try:
            self._engine.submit([row for group in rows for row in group])
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

    def _pending(self, row: PlannedRow, lease: Lease, deadline: float, load_s: float) -> PendingRow:
        manifest = lease.task.manifest
        return PendingRow(
            task=manifest.task,
            version=manifest.version,
            branch=lease.task.branch,
            encoding=row.encoding,
            group=row.group,
            trunk_tokens=row.trunk_tokens,
            branch_tokens=row.branch_tokens,
            deadline=deadline,
            submitted_at=self._clock(),
            load_s=load_s,
            future=asyncio.get_running_loop().create_future(),
        )


def _outcome_now(row: PendingRow) -> RowOutcome:
    is_answered = row.future.done() and not row.future.cancelled()
    return row.future.result() if is_answered else DeadlineExceededError()


def _checked(found: Sequence[list[Answers] | BaseException]) -> list[list[Answers]]:
    groups = list[list[Answers]]()
    for group in found:
        if isinstance(group, BaseException):
            raise group
        groups.append(group)
    return groups

"""Replicas: the server processes of one registry, and the wait until all of them follow a change.

Each process writes a row of its own, a beat, every few seconds and after each change that it has
applied. A row counts until its lifetime ends. On PostgreSQL the clock of the database measures the
lifetime, because the clocks of machines differ.

A process with a lease answers nothing once its lease has ended, and its row lives longer than its
lease. `behind` is therefore exact for such processes: a process without a live row answers
nothing. A process without a lease goes on while the registry is out of reach, and its row ends
nevertheless.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from nunatak_contract.errors import NunatakError
from nunatak_contract.wire import ReplicaListing, ReplicaLoad, ReplicaReport
from nunatak_registry.index.index import Store
from nunatak_registry.index.snapshot import Generation

LIFETIME_S: Final = 120.0
"""Lifetime of the row of a process without a lease."""
LIFETIME_PER_LEASE: Final = 1.25
"""Lifetime of a row, as a multiple of the lease. The rest allows for clocks of different speed."""
LOOK_S: Final = 0.05
"""Time between two looks at the rows during a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a process says about itself."""

    key: str
    """The name of the row; no two processes have the same."""
    id: str
    """The name of the replica, as operators see it."""
    address: str
    release: str
    started: datetime
    lease_s: float | None
    seen: Generation
    """The generation that the process has applied: requests from now on see it, or a later one."""
    load: ReplicaLoad


class ReplicaStore(Store):
    """The replicas of one registry. On SQLite, its clock measures lifetimes."""

    def beat(self, beat: Beat) -> int:
        """Write the row of a process, remove rows that have ended, and count the others.

        The row confirms only the present generation: a restored index repeats earlier numbers.
        """
        lifetime_s = LIFETIME_S if beat.lease_s is None else beat.lease_s * LIFETIME_PER_LEASE
        with self._index.noting() as change:
            now = change.now(self._clock).timestamp()
            row = {
                **asdict(beat),
                "started": beat.started.isoformat(),
                "revision": beat.seen.number if change.generation() == beat.seen else 0,
                "beat": now,
                "until": now + lifetime_s,
                "load": beat.load.model_dump_json(),
            }
            del row["seen"]
            return change.note_replica(row, now=now)

    def leave(self, key: str) -> None:
        """Remove the row of a process, which answers no more requests."""
        with self._index.noting() as change:
            change.remove_replica(key)

    def listing(self) -> ReplicaListing:
        """Return the live replicas by id, and the present revision."""
        with self._index.reading() as snapshot:
            now, revision = snapshot.now(self._clock).timestamp(), snapshot.generation().number
            rows = snapshot.replicas(now)
        replicas = [
            ReplicaReport(
                id=row.id,
                address=row.address,
                release=row.release,
                started_at=datetime.fromisoformat(row.started),
                seen_s=max(0.0, round(now - row.beat, 3)),
                lease_s=row.lease_s,
                revision=row.revision,
                is_current=row.revision >= revision,
                load=ReplicaLoad.model_validate_json(row.load),
            )
            for row in rows
        ]
        return ReplicaListing(revision=revision, replicas=tuple(replicas))

    def behind(self, revision: int) -> list[str]:
        """Return the ids of the live replicas that have not confirmed a revision or a later one."""
        with self._index.reading() as snapshot:
            rows = snapshot.replicas(snapshot.now(self._clock).timestamp())
        return [row.id for row in rows if row.revision < revision]

    def wait(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> ReplicaListing:
        """Wait until every live replica has confirmed it, else raise `replicas_behind`."""
        revision, ends_at = self._index.generation().number, clock() + seconds
        while behind := self.behind(revision):
            if clock() >= ends_at:
                raise replicas_behind(behind, seconds)
            pause(LOOK_S)
        return self.listing()


def replicas_behind(ids: list[str], seconds: float) -> NunatakError:
    """Return the error of a wait that has ended too early."""
    return NunatakError("replicas_behind", seconds=seconds, replicas=", ".join(sorted(ids)))

"""Changes of the index: a `Change` reads and writes in one transaction.

All writes of a change become visible together, or none does.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from nunatak_contract.manifest import TaskManifest
from nunatak_registry.aliases import (
    AliasEvent,
    AliasState,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
)
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.index.records import DocumentRecord
from nunatak_registry.index.schema import (
    AliasEventRow,
    AliasRow,
    BlobRow,
    CandidateEventRow,
    CandidateRow,
    DocumentRow,
    HoldRow,
    ReplicaRow,
    RetiredBlobRow,
    StateRow,
    TaskRow,
    VersionRow,
)
from nunatak_registry.index.snapshot import Snapshot


class Change(Snapshot):
    """Changes of the index. All changes except holds and replicas increase the generation."""

    def take_version(self, task: str) -> int:
        version = self.next_versions(task).get(task, 1)
        self.reserve_numbers(task, version + 1)
        return version

    def reserve_numbers(self, task: str, next_version: int) -> None:
        """Give out no number of a task below `next_version`; add the task if it is new."""
        known = self.next_versions(task).get(task)
        if known is None:
            self._connection.execute(insert(TaskRow).values(name=task, next_version=next_version))
        elif known < next_version:
            self._connection.execute(
                update(TaskRow).where(TaskRow.name == task).values(next_version=next_version)
            )

    def add_version(
        self, manifest: TaskManifest, at: datetime, *, document: str | None = None
    ) -> None:
        """Record a version under a number that `take_version` gave or `reserve_numbers` took.

        `document` is the text of a manifest that was published before; absent: a new one.
        """
        document = document or manifest.model_dump_json()
        key = {"task": manifest.task, "version": manifest.version}
        self._connection.execute(
            insert(VersionRow).values(
                **key,
                content_digest=manifest.content,
                manifest=document,
                manifest_digest=digest_of(document.encode()),
                published_at=at.isoformat(),
            )
        )
        digests = sorted({blob.sha256 for blob in manifest.blobs})
        self._connection.execute(insert(BlobRow), [{**key, "digest": digest} for digest in digests])
        self.forget_retired(digests)
        raise_generation(self._connection)

    def move_alias(self, event: AliasEvent) -> None:
        """Move the alias to the version of the event, append the event, and end all candidates."""
        self._point(event)
        self._connection.execute(insert(AliasEventRow).values(_values(event)))
        raise_generation(self._connection)
        for it in self.candidates(event.task):
            if it.alias == event.alias:
                kind = CandidateEventKind.END
                end = CandidateEvent(kind=kind, candidate=it, at=event.at, by=event.by)
                self.change_candidate(end)

    def bring_forward(self, task: str, alias: str, state: AliasState) -> None:
        """Append what happened to an alias in another registry, in its order.

        The alias then points where the last move led, and has these candidates only.
        """
        self._connection.execute(
            delete(CandidateRow).where(CandidateRow.task == task, CandidateRow.alias == alias)
        )
        for move in state.moves[-1:]:
            self._point(move)
        for row, records in (
            (AliasEventRow, state.moves),
            (CandidateRow, state.candidates),
            (CandidateEventRow, state.changes),
        ):
            for record in records:
                self._connection.execute(insert(row).values(_values(record)))
        raise_generation(self._connection)

    def change_candidate(self, event: CandidateEvent) -> None:
        """Put the candidate in place of the earlier one of its role; an end removes it only."""
        row, candidate = CandidateRow, event.candidate
        own = row.task == candidate.task, row.alias == candidate.alias
        role = row.role == candidate.role.value
        self._connection.execute(delete(row).where(*own, role))
        if event.kind is CandidateEventKind.SET:
            self._connection.execute(insert(row).values(_values(candidate)))
        self._connection.execute(insert(CandidateEventRow).values(_values(event)))
        raise_generation(self._connection)

    def lock_version(self, task: str, version: int) -> None:
        """Let nobody hold a version before the end of this change."""
        key = (VersionRow.task == task, VersionRow.version == version)
        self._connection.execute(select(VersionRow.version).where(*key).with_for_update())

    def remove_version(self, task: str, version: int, at: datetime) -> None:
        """Delete a version that no alias points to, and retire blobs that no other version uses."""
        digests = sorted(self.blob_digests(task, version))
        for row in (BlobRow, HoldRow, VersionRow):
            self._connection.execute(delete(row).where(row.task == task, row.version == version))
        retired = [digest for digest in digests if not self.has_blob(digest)]
        self.forget_retired(retired)
        if retired:
            self._connection.execute(
                insert(RetiredBlobRow),
                [{"digest": digest, "at": at.isoformat()} for digest in retired],
            )
        raise_generation(self._connection)

    def add_documents(self, row: type[DocumentRow], records: Sequence[DocumentRecord]) -> None:
        if records:
            self._connection.execute(insert(row), list(map(asdict, records)))
            raise_generation(self._connection)

    def replace_holds(
        self, reader: str, versions: Collection[tuple[str, int]], *, now: datetime, until: datetime
    ) -> frozenset[tuple[str, int]]:
        """Let a reader hold the versions that exist, and return them; writes only changes."""
        held = self.existing(versions)
        # All times have one zone and one format, so their texts compare like times.
        self._connection.execute(delete(HoldRow).where(HoldRow.until <= now.isoformat()))
        former = self.held(reader, now)
        own, end = HoldRow.reader == reader, {"until": until.isoformat()}
        if ended := sorted(former - held):
            is_ended = (HoldRow.task == bindparam("key"), HoldRow.version == bindparam("number"))
            self._connection.execute(
                delete(HoldRow).where(own, *is_ended),
                [{"key": task, "number": version} for task, version in ended],
            )
        self._connection.execute(update(HoldRow).where(own).values(end))
        if begun := sorted(held - former):
            self._connection.execute(
                insert(HoldRow),
                [{"reader": reader, "task": it[0], "version": it[1], **end} for it in begun],
            )
        return frozenset(held)

    def note_replica(self, values: Mapping[str, object], *, now: float) -> int:
        """Write the row of a process, remove rows that have ended, and count the other rows."""
        key = ReplicaRow.key == values["key"]
        self._connection.execute(delete(ReplicaRow).where(or_(key, ReplicaRow.until < now)))
        # Read before the insert: a result that is open when a write fails, as on a full disk, keeps
        # a lock of SQLite while the error lives.
        others = self._connection.scalar(select(func.count()).select_from(ReplicaRow))
        self._connection.execute(insert(ReplicaRow).values(**values))
        return others or 0

    def remove_replica(self, key: str) -> None:
        self._connection.execute(delete(ReplicaRow).where(ReplicaRow.key == key))

    def forget_retired(self, digests: Collection[str]) -> None:
        """Drop the records of retired blobs that are in use again, or removed."""
        self._connection.execute(
            delete(RetiredBlobRow).where(RetiredBlobRow.digest.in_(sorted(digests)))
        )

    def _point(self, event: AliasEvent) -> None:
        key = {"task": event.task, "alias": event.alias}
        moved = update(AliasRow).filter_by(**key).values(version=event.to_version)
        if not self._connection.execute(moved).rowcount:
            self._connection.execute(insert(AliasRow).values(**key, version=event.to_version))


def _values(record: AliasEvent | Candidate | CandidateEvent) -> dict[str, str | int | float | None]:
    fields = asdict(record)
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in {**fields.pop("candidate", {}), **fields}.items()
    }


def raise_generation(connection: Connection) -> None:
    """Increase the generation, by which readers in every process notice changes.

    The token changes too, because a restored index repeats earlier numbers.
    """
    connection.execute(
        update(StateRow).values(generation=StateRow.generation + 1, token=secrets.token_hex(16))
    )

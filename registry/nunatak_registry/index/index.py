"""The index: the task versions, and the targets of the aliases.

A `Snapshot` reads in one transaction. A `Change` reads and writes in one transaction, and is the
only writer. All writes of a change become visible together, or none does. The functions before
`Change` look up a fact in a snapshot, and raise if it is missing.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Self

from sqlalchemy import URL, ColumnElement, bindparam, delete, func, insert, or_, select, update

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import DEFAULT_ALIAS, TaskReference, check_alias_name, check_task_name
from nunatak_registry.aliases import (
    AliasEvent,
    Candidate,
    CandidateEvent,
    SharedTraffic,
    Traffic,
    rollback_target,
)
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import InvalidManifestError, TaskNotFoundError, VersionNotFoundError
from nunatak_registry.index.database import Database, FileIdentity, raise_generation
from nunatak_registry.index.records import VersionRecord
from nunatak_registry.index.schema import (
    AliasEventRow,
    AliasRow,
    BlobRow,
    CandidateEventRow,
    CandidateRow,
    HoldRow,
    PolicyRow,
    ReplicaRow,
    RetiredBlobRow,
    TaskRow,
    VersionRow,
)
from nunatak_registry.index.snapshot import Generation, Snapshot
from nunatak_registry.policies import PolicyRecord


def find_version(snapshot: Snapshot, wanted: TaskReference) -> VersionRecord:
    """Return the version that a reference means.

    Raises:
        TaskNotFoundError: no such task.
        NunatakError: `alias_not_found`, the task has no such alias.
        VersionNotFoundError: the task has no such version.
    """
    task = wanted.task
    if wanted.alias is not None:
        record = snapshot.version_of_alias(task, wanted.alias)
    elif wanted.version is not None:
        record = snapshot.version(task, wanted.version)
    else:
        record = next(iter(snapshot.default_versions(task)), None)
    if record is not None:
        return record
    available = require_versions(snapshot, task)
    if wanted.alias is not None:
        require_alias(snapshot, task, wanted.alias)
    raise VersionNotFoundError(task, wanted.version or 0, available)


def find_traffic(snapshot: Snapshot, wanted: TaskReference) -> Traffic:
    """Return the versions that run for a reference; a reference with a version has no candidates.

    A candidate whose manifest is damaged is left out: the alias's own version answers alone.

    Raises:
        InvalidManifestError: the manifest of the version is damaged.
        NunatakError: as in `find_version`.
    """
    manifest = find_version(snapshot, wanted).parse()
    if wanted.version is not None:
        return Traffic(manifest=manifest)
    alias = wanted.alias or DEFAULT_ALIAS
    by_role = {it.role: it for it in snapshot.candidates(wanted.task) if it.alias == alias}
    return Traffic(
        manifest=manifest,
        canary=_shared(snapshot, by_role.get(CandidateRole.CANARY)),
        shadow=_shared(snapshot, by_role.get(CandidateRole.SHADOW)),
    )


def _shared(snapshot: Snapshot, candidate: Candidate | None) -> SharedTraffic | None:
    if candidate is None:
        return None
    record = snapshot.version(candidate.task, candidate.version)
    try:
        return record and SharedTraffic(manifest=record.parse(), share=candidate.share)
    except InvalidManifestError:
        return None


def require_versions(snapshot: Snapshot, task: str) -> tuple[int, ...]:
    """Return the numbers of a task's versions, or raise `TaskNotFoundError`."""
    versions = snapshot.version_numbers(task).get(task)
    if versions is None:
        raise TaskNotFoundError(task)
    return versions


def require_task(snapshot: Snapshot, task: str) -> None:
    """Raise `TaskNotFoundError` unless the task has a version."""
    if not snapshot.has_version(task):
        raise TaskNotFoundError(task)


def require_version(snapshot: Snapshot, task: str, version: int) -> None:
    """Raise `VersionNotFoundError` or `TaskNotFoundError` unless the version exists."""
    if not snapshot.has_version(task, version):
        raise VersionNotFoundError(task, version, require_versions(snapshot, task))


def require_alias(snapshot: Snapshot, task: str, alias: str) -> int:
    """Return the version of an alias, or raise `alias_not_found`."""
    aliases = snapshot.aliases(task).get(task, {})
    if alias not in aliases:
        known = ", ".join(aliases) or "none"
        raise NunatakError("alias_not_found", task=task, alias=alias, known=known)
    return aliases[alias]


def check_expected(task: str, alias: str, expected: int | None, current: int | None) -> None:
    """Raise `alias_conflict` unless an alias points to `expected` (0: there is no alias)."""
    if expected is not None and expected != (current or 0):
        raise NunatakError(
            "alias_conflict",
            task=task,
            alias=alias,
            expected=f"version {expected}" if expected else "no version",
            actual=f"version {current}" if current else "no version",
        )


def find_rollback(
    snapshot: Snapshot, task: str, alias: str, expected_version: int | None
) -> tuple[int, int]:
    """Return the version of an alias, and the target of its rollback.

    Raises:
        TaskNotFoundError: no such task.
        NunatakError: `alias_not_found`, the task has no such alias.
        NunatakError: `alias_conflict`, the alias points to another version than expected.
        NunatakError: `no_previous_version`, there is no earlier version.
    """
    check_alias_name(alias)
    available = require_versions(snapshot, check_task_name(task))
    current = require_alias(snapshot, task, alias)
    check_expected(task, alias, expected_version, current)
    target = rollback_target(snapshot.history(task, alias), available)
    if target is None:
        raise NunatakError("no_previous_version", task=task, alias=alias)
    return current, target


class Change(Snapshot):
    """Changes of the index. All changes except holds and replicas increase the generation."""

    def take_version(self, task: str) -> int:
        """Return the task's next number, which is never given out again."""
        query = select(TaskRow.next_version).where(TaskRow.name == task)
        version = self._connection.execute(query).scalar_one_or_none()
        if version is None:
            self._connection.execute(insert(TaskRow).values(name=task, next_version=2))
            return 1
        self._connection.execute(
            update(TaskRow).where(TaskRow.name == task).values(next_version=version + 1)
        )
        return version

    def reserve_numbers(self, task: str, next_version: int) -> None:
        """Give out no number of a task below `next_version`; add the task if it is new."""
        known = self.next_versions().get(task)
        if known is None:
            self._connection.execute(insert(TaskRow).values(name=task, next_version=next_version))
        elif known < next_version:
            self._connection.execute(
                update(TaskRow).where(TaskRow.name == task).values(next_version=next_version)
            )

    def add_version(
        self,
        manifest: TaskManifest,
        content_digest: str,
        at: datetime,
        *,
        document: str | None = None,
    ) -> None:
        """Record a version under a number that `take_version` gave or `reserve_numbers` took.

        `document` is the text of a manifest that was published before; absent: a new one.
        """
        document = document or manifest.model_dump_json()
        key = {"task": manifest.task, "version": manifest.version}
        self._connection.execute(
            insert(VersionRow).values(
                **key,
                content_digest=content_digest,
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
        """Move the alias to the version of the event, and append the event to its history."""
        self._point(event, is_new=event.from_version is None)
        self._connection.execute(insert(AliasEventRow).values(_values(event)))
        raise_generation(self._connection)

    def bring_forward(
        self,
        task: str,
        alias: str,
        *,
        moves: Sequence[AliasEvent],
        changes: Sequence[CandidateEvent],
        candidates: Collection[Candidate],
    ) -> None:
        """Append what happened to an alias in another registry, in its order.

        The alias then points where the last move led, and has these candidates only.
        """
        self._connection.execute(
            delete(CandidateRow).where(CandidateRow.task == task, CandidateRow.alias == alias)
        )
        for move in moves[-1:]:
            self._point(move, is_new=alias not in self.aliases(task).get(task, {}))
        for move in moves:
            self._connection.execute(insert(AliasEventRow).values(_values(move)))
        for candidate in candidates:
            self._connection.execute(insert(CandidateRow).values(_values(candidate)))
        for change in changes:
            self._add_candidate_event(change)
        raise_generation(self._connection)

    def set_candidate(self, event: CandidateEvent) -> None:
        """Put a candidate next to its alias, in place of the earlier candidate of its role."""
        candidate = event.candidate
        self._connection.execute(delete(CandidateRow).where(*_place_of(candidate)))
        self._connection.execute(insert(CandidateRow).values(_values(candidate)))
        self._add_candidate_event(event)

    def end_candidate(self, event: CandidateEvent) -> None:
        """Remove a candidate."""
        self._connection.execute(delete(CandidateRow).where(*_place_of(event.candidate)))
        self._add_candidate_event(event)

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

    def add_policies(self, records: Sequence[PolicyRecord]) -> None:
        """Record versions of policies; without any, nothing changes."""
        if records:
            self._connection.execute(insert(PolicyRow), list(map(asdict, records)))
            raise_generation(self._connection)

    def replace_holds(
        self,
        reader: str,
        versions: Collection[tuple[str, int]],
        *,
        now: datetime,
        until: datetime,
    ) -> frozenset[tuple[str, int]]:
        """Let a reader hold the versions that exist; return them.

        Only the difference to the reader's last hold is written, and the new end of the hold.
        """
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
        others = self._connection.execute(select(func.count()).select_from(ReplicaRow))
        self._connection.execute(insert(ReplicaRow).values(**values))
        return others.scalar_one()

    def remove_replica(self, key: str) -> None:
        """Remove the row of a process."""
        self._connection.execute(delete(ReplicaRow).where(ReplicaRow.key == key))

    def forget_retired(self, digests: Collection[str]) -> None:
        """Drop the records of retired blobs that are in use again, or removed."""
        self._connection.execute(
            delete(RetiredBlobRow).where(RetiredBlobRow.digest.in_(sorted(digests)))
        )

    def _point(self, event: AliasEvent, *, is_new: bool) -> None:
        if is_new:
            self._connection.execute(
                insert(AliasRow).values(
                    task=event.task, alias=event.alias, version=event.to_version
                )
            )
            return
        key = (AliasRow.task == event.task, AliasRow.alias == event.alias)
        self._connection.execute(update(AliasRow).where(*key).values(version=event.to_version))

    def _add_candidate_event(self, event: CandidateEvent) -> None:
        self._connection.execute(insert(CandidateEventRow).values(_values(event)))
        raise_generation(self._connection)


def _values(record: AliasEvent | Candidate | CandidateEvent) -> dict[str, str | int | float | None]:
    """Return the columns of a record, which have the names of its fields."""
    fields = asdict(record)
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in {**fields.pop("candidate", {}), **fields}.items()
    }


def _place_of(candidate: Candidate) -> tuple[ColumnElement[bool], ...]:
    return (
        CandidateRow.task == candidate.task,
        CandidateRow.alias == candidate.alias,
        CandidateRow.role == candidate.role.value,
    )


class Index:
    """Snapshots and changes of one database. Threads may share the index."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: tuple[tuple[FileIdentity, int], Generation] | None = None

    @classmethod
    def open(cls, url: URL, *, missing: NunatakError | None = None) -> Self:
        """Connect to the database, and create missing tables; raise `missing`, if given, instead.

        Raises:
            NunatakError: `missing`, there is no index.
            StoreUnavailableError: the database is unreachable, of another kind, or of another
                release.
        """
        return cls(Database.open(url, missing=missing))

    def close(self) -> None:
        """Close all idle connections."""
        self._database.close()

    def generation(self) -> Generation:
        """Return the generation, which changes with every change, also of another process.

        A repeated call is cheap while nothing has been written.
        """
        # The mark is read first, so that the next call notices a change in between.
        mark, seen = self._database.change_mark(), self._seen
        if seen is not None and seen[0] == mark:
            return seen[1]
        with self.reading() as snapshot:
            generation = snapshot.generation()
        self._seen = None if mark is None else (mark, generation)
        return generation

    @contextmanager
    def reading(self) -> Generator[Snapshot]:
        """Yield the index at this moment."""
        with self._database.reading() as connection:
            yield Snapshot(connection)

    @contextmanager
    def noting(self) -> Generator[Change]:
        """Yield a change of rows of this process; on PostgreSQL it waits for no other writer."""
        with self._database.noting() as connection:
            yield Change(connection)

    @contextmanager
    def writing(self) -> Generator[Change]:
        """Yield a change of the index. The change is stored whole unless the body raises."""
        with self._database.writing() as connection:
            yield Change(connection)

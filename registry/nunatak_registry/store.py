"""The registry: publish, resolve, promote, roll back and delete task versions, and try candidates.

The order of writes makes the store safe. Blobs are durable before the row that refers to them, and
outlive the row by a grace period. A killed process leaves at most a blob without a reference.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_contract.names import TaskReference, check_alias_name, check_reader_name
from nunatak_contract.record import problems_text
from nunatak_registry.aliases import (
    AliasEvent,
    AliasEventKind,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    Traffic,
    actor,
    check_candidate,
    check_expected,
)
from nunatak_registry.blobs.blobs import MAX_BLOB_BYTES, BlobStore, digest_of
from nunatak_registry.blobs.files import create_durable_folder
from nunatak_registry.blobs.tensors import read_header
from nunatak_registry.copying import Copies
from nunatak_registry.documents import PolicyStore, QuestionStore
from nunatak_registry.errors import (
    InvalidArtifactError,
    InvalidManifestError,
    StoreUnavailableError,
    blob_of,
)
from nunatak_registry.index.change import Change
from nunatak_registry.index.index import Clock, Index, Store
from nunatak_registry.index.snapshot import DamagedTask, Generation, ListedTask, ListedVersion
from nunatak_registry.locations import parse_location
from nunatak_registry.replicas import ReplicaStore
from nunatak_registry.upkeep import Upkeep


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def check_publication(draft: TaskDraft, blobs: Mapping[str, bytes]) -> None:
    """Refuse bytes that are not exactly the draft's blobs, or no safetensors within limits."""
    roles = sorted(blob.role for blob in draft.blobs)
    if roles != sorted(blobs):
        raise InvalidManifestError(
            f"the draft of {draft.task!r} describes blobs {roles}, got bytes for {sorted(blobs)}"
        )
    for blob in draft.blobs:
        if blob.size_bytes > MAX_BLOB_BYTES:
            raise InvalidArtifactError(
                f"blob {blob.role!r} may have {MAX_BLOB_BYTES} bytes at most, got {blob.size_bytes}"
            )
        data = blobs[blob.role]
        if len(data) != blob.size_bytes:
            raise InvalidManifestError(
                f"blob {blob.role!r} must have {blob.size_bytes} bytes, got {len(data)}"
            )
        if digest_of(data) != blob.sha256:
            raise InvalidManifestError(
                f"blob {blob.role!r} must have SHA-256 {blob.sha256}, got {digest_of(data)}"
            )
        read_header(data)


def number_draft(draft: TaskDraft, version: int) -> TaskManifest:
    """Return the manifest of a draft with its number. All fields are checked again."""
    fields = draft.model_dump(include=set(TaskDraft.model_fields), warnings=False)
    try:
        return TaskManifest.model_validate({**fields, "version": version})
    except ValidationError as error:
        raise InvalidManifestError(
            f"the draft of {draft.task!r} is invalid: {problems_text(error)}"
        ) from error


class RolloutStore(Store):
    """The candidates of one registry."""

    def set(
        self, candidate: Candidate, *, expected_version: int | None = None, by: str | None = None
    ) -> CandidateEvent:
        """Let a version run next to an alias, in place of the earlier candidate of its role.

        Compare-and-swap: `candidate_conflict` unless `expected_version` is the candidate of that
        role now (0: none; None: any or none). An equal candidate stays as it is. Raises
        `invalid_candidate` if the version cannot run there. `by` is the author of the change;
        None: the user of the operating system.
        """
        task, alias, role = candidate.task, candidate.alias, candidate.role
        with self._writing() as change:
            base = TaskReference(task=task, version=change.require_alias(task, alias))
            wanted = TaskReference(task=task, version=candidate.version)
            check_candidate(
                candidate, base=change.find(base).parse(), manifest=change.find(wanted).parse()
            )
            current = _expected(change, task, alias, role, expected_version)
            if candidate == current:
                return change.candidate_history(task, alias, role)[-1]
            return self._change(change, CandidateEventKind.SET, candidate, by)

    def end(
        self,
        task: str,
        alias: str,
        role: CandidateRole,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> CandidateEvent:
        """End a candidate; the alias's own version gets all requests. Arguments as for `set`."""
        with self._writing() as change:
            change.require_alias(task, alias)
            current = _expected(change, task, alias, role, expected_version)
            if current is None:
                raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
            return self._change(change, CandidateEventKind.END, current, by)

    def get(self, task: str, alias: str, role: CandidateRole) -> Candidate:
        """Return the candidate of a role of an alias; raise `candidate_not_found` if none is."""
        with self._index.reading() as snapshot:
            snapshot.require_alias(task, alias)
            found = snapshot.candidate(task, alias, role)
        if found is None:
            raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
        return found

    def history(self, task: str, alias: str) -> list[CandidateEvent]:
        """Return every change of the candidates of an alias, oldest first."""
        with self._index.reading() as snapshot:
            snapshot.require_alias(task, alias)
            return snapshot.candidate_history(task, alias)

    def _change(
        self, change: Change, kind: CandidateEventKind, candidate: Candidate, by: str | None
    ) -> CandidateEvent:
        event = CandidateEvent(kind=kind, candidate=candidate, at=self._clock(), by=actor(by))
        change.change_candidate(event)
        return event


def _expected(
    change: Change, task: str, alias: str, role: CandidateRole, version: int | None
) -> Candidate | None:
    """Return the candidate of a role, if it has the expected version."""
    current = change.candidate(task, alias, role)
    now = current.version if current else None
    check_expected(version, now, task=task, alias=alias, role=role)
    return current


class Registry(Upkeep):
    """A versioned store of tasks. Threads and processes may share the registry.

    Every method may raise `StoreUnavailableError`, and `InvalidNameError` for a malformed name. A
    method that looks something up may raise `TaskNotFoundError` or `VersionNotFoundError`,
    `alias_not_found` if the task has no such alias, and `InvalidManifestError` if the stored
    manifest is damaged.
    """

    def __init__(self, *, index: Index, blobs: BlobStore, clock: Clock) -> None:
        super().__init__(index=index, blobs=blobs, clock=clock)
        self.rollouts = RolloutStore(index=index, blobs=blobs, clock=clock)
        self.policies = PolicyStore(index=index, blobs=blobs, clock=clock)
        self.questions = QuestionStore(index=index, blobs=blobs, clock=clock)
        self.copies = Copies(index=index, blobs=blobs, clock=clock)
        self.replicas = ReplicaStore(index=index, blobs=blobs, clock=clock)

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True, clock: Clock = utc_now) -> Self:
        """Open the registry at a folder or a database URL; if there is none, create one or refuse.

        A URL also names the root of the blobs: `postgresql+psycopg://user@host/db?blobs=s3://b/p`.
        """
        place = parse_location(location)
        missing = None if create else NunatakError("registry_missing", location=place.shown)
        if place.folder is not None and create:
            try:
                create_durable_folder(place.folder)
            except OSError as error:
                raise StoreUnavailableError(
                    f"cannot create the registry folder: {error.strerror}; choose another location"
                ) from error
        blobs = BlobStore.open(place.blob_root)
        return cls(index=Index.open(place.index_url, missing=missing), blobs=blobs, clock=clock)

    def close(self) -> None:
        """Close the connections to the index."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_writable(self, num_bytes: int) -> None:
        """Refuse, before long work, if a version of this size cannot be stored now."""
        self._blobs.check_writable(num_bytes)
        with self._writing():
            pass

    def publish(self, draft: TaskDraft, blobs: Mapping[str, bytes]) -> TaskManifest:
        """Store a task version under the task's next number and return its manifest.

        Atomic: visible whole on return, or not at all. Content that exists already is not stored
        twice: the existing version is returned, and the bytes of its blobs are written again.
        Raises `InvalidManifestError` or `InvalidArtifactError` if the bytes do not fit the draft.
        """
        # Numbered once for the checks alone, because a draft that fails must leave no blob behind.
        content_digest = number_draft(draft, version=1).content_digest()
        check_publication(draft, blobs)
        with self._index.reading() as snapshot:
            self._check_place(snapshot, [blob.sha256 for blob in draft.blobs])
        for data in blobs.values():
            self._blobs.put(data)
        with self._writing() as change:
            # `gc` may have removed a shared blob meanwhile. `gc` removes blobs under this lock
            # only.
            for blob in draft.blobs:
                if not self._blobs.exists(blob.sha256):
                    self._blobs.put(blobs[blob.role])
            existing = change.version_of_content(draft.task, content_digest)
            if existing is not None:
                return existing.parse()
            manifest = number_draft(draft, change.take_version(draft.task))
            change.add_version(manifest, self._clock())
            return manifest

    def resolve(self, reference: TaskReference | str) -> TaskManifest:
        """Return the version that a reference means now.

        A bare name means `name@prod`, or the newest version while there is no alias `prod`.
        """
        wanted = (
            reference if isinstance(reference, TaskReference) else TaskReference.parse(reference)
        )
        wanted.check()
        with self._index.reading() as snapshot:
            return snapshot.find(wanted).parse()

    def traffic(self, reference: TaskReference) -> Traffic:
        """Return the result of `resolve` and the candidates, at one moment."""
        reference.check()
        with self._index.reading() as snapshot:
            return snapshot.traffic(reference)

    def read_blob(
        self,
        manifest: TaskManifest,
        role: str = "parameters",
        *,
        pause: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Return the bytes of one blob of a version, or raise `CorruptBlobError`.

        `pause` is called after each megabyte that is checked, for a caller that must not keep a
        core busy for long.
        """
        blob = manifest.blob(role)
        if blob is None:
            roles = [blob.role for blob in manifest.blobs]
            raise InvalidManifestError(
                f"{manifest.reference} has no blob {role!r}; its blobs: {roles}"
            )
        with blob_of(manifest.reference):
            return self._blobs.get(blob.sha256, blob.size_bytes, pause=pause)

    def tasks(self) -> list[ListedTask]:
        """Return every task, ordered by name, without the tasks of `damaged_tasks`."""
        with self._index.reading() as snapshot:
            return [found for found in snapshot.listed_tasks() if isinstance(found, ListedTask)]

    def names(self) -> tuple[str, ...]:
        """Return the name of every task, in order, also of a damaged one."""
        with self._index.reading() as snapshot:
            return snapshot.names()

    def damaged_tasks(self) -> list[DamagedTask]:
        """Return the tasks whose bare names mean a version with a damaged manifest."""
        with self._index.reading() as snapshot:
            return [found for found in snapshot.listed_tasks() if isinstance(found, DamagedTask)]

    def task(self, name: str) -> ListedTask:
        """Return one task, unless the manifest of its bare name is damaged."""
        with self._index.reading() as snapshot:
            snapshot.require_versions(name)
            (found,) = snapshot.listed_tasks(name)
        if isinstance(found, DamagedTask):
            raise found.error
        return found

    def aliases(self, name: str) -> dict[str, int]:
        """Return the version of each alias of a task, also of a damaged one."""
        with self._index.reading() as snapshot:
            snapshot.require_versions(name)
            return snapshot.aliases(name).get(name, {})

    def versions(self, name: str) -> list[TaskManifest]:
        """Return every version of a task, ascending, unless one has a damaged manifest."""
        with self._index.reading() as snapshot:
            snapshot.require_versions(name)
            return [record.parse() for record in snapshot.all_versions(name)]

    def listed_versions(self, name: str) -> list[ListedVersion]:
        """Return every version of a task for a list, ascending, also with a damaged manifest."""
        with self._index.reading() as snapshot:
            snapshot.require_versions(name)
            return snapshot.listed_versions(name)

    def version_of(self, draft: TaskDraft) -> int | None:
        """Return the version of the draft's task that has the draft's content, if there is one."""
        content_digest = number_draft(draft, version=1).content_digest()
        with self._index.reading() as snapshot:
            found = snapshot.version_of_content(draft.task, content_digest)
        return None if found is None else found.version

    def promote(
        self,
        task: str,
        alias: str,
        version: int,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> AliasEvent:
        """Let an alias point to a version, and return the move; canary and shadow end.

        Compare-and-swap: `alias_conflict` unless the alias points to `expected_version` (0: the
        alias must not exist yet; None: any version). An alias that already points to `version` does
        not move: no event is added, the generation stays, and the last event is returned. `by` is
        the author of the move; None: the user of the operating system.
        """
        check_alias_name(alias)
        with self._writing() as change:
            change.require_versions(task)
            current = change.aliases(task).get(task, {}).get(alias)
            check_expected(expected_version, current, task=task, alias=alias)
            change.require_version(task, version)
            if version == current:
                return change.history(task, alias)[-1]
            event = AliasEvent(
                task=task,
                alias=alias,
                kind=AliasEventKind.PROMOTE,
                from_version=current,
                to_version=version,
                at=self._clock(),
                by=actor(by),
            )
            change.move_alias(event)
            return event

    def rollback(
        self, task: str, alias: str, *, expected_version: int | None = None, by: str | None = None
    ) -> AliasEvent:
        """Move an alias back to the version before its last promotion, and return the move.

        Repeated rollbacks go further back. Versions deleted since are skipped. Canary and shadow
        end; the parameters are those of `promote`. Raises `no_previous_version` if there is none.
        """
        with self._writing() as change:
            current, target = change.rollback(task, alias, expected_version)
            event = AliasEvent(
                task=task,
                alias=alias,
                kind=AliasEventKind.ROLLBACK,
                from_version=current,
                to_version=target,
                at=self._clock(),
                by=actor(by),
            )
            change.move_alias(event)
            return event

    def next_rollback(
        self, task: str, alias: str, *, expected_version: int | None = None
    ) -> tuple[int, int]:
        """Return the version of an alias, and the target of a rollback; raise as `rollback`."""
        with self._index.reading() as snapshot:
            return snapshot.rollback(task, alias, expected_version)

    def history(self, task: str, alias: str) -> list[AliasEvent]:
        """Return every move of an alias, oldest first."""
        with self._index.reading() as snapshot:
            snapshot.require_alias(task, alias)
            return snapshot.history(task, alias)

    def delete(self, task: str, version: int) -> None:
        """Delete a version, unless in use (`version_in_use`); its number is not given out again.

        The blobs stay until `gc` finds them unused for a grace period. A reader in any process that
        resolved the version before can therefore still read the blobs.
        """
        with self._writing() as change:
            change.require_version(task, version)
            # Holds do not wait for the lock of the writers, so a hold could begin after the look.
            change.lock_version(task, version)
            now = change.now(self._clock)
            targets = change.aliases(task).get(task, {})
            holders = [
                f"alias {alias} (promote another version first)"
                for alias, target in targets.items()
                if target == version
            ]
            holders += [
                f"the {it.role} of alias {it.alias} (end it first)"
                for it in change.candidates(task)
                if it.version == version
            ]
            replicas = change.replicas(now.timestamp())
            servers = {it.key: f"replica {it.id} at {it.address}" for it in replicas}
            holders += [
                f"{servers.get(it, f'reader {it}')} (evict it there, or wait for it to end)"
                for it in change.readers(task, version, now)
            ]
            for documents in (self.policies, self.questions):
                holders += documents.asking(change, task, version)
            if holders:
                raise NunatakError(
                    "version_in_use", task=task, version=version, holders=", ".join(holders)
                )
            change.remove_version(task, version, self._clock())

    def readers(self, task: str, version: int) -> tuple[str, ...]:
        """Return the names of the readers that hold a version now."""
        with self._index.reading() as snapshot:
            snapshot.require_version(task, version)
            return snapshot.readers(task, version, snapshot.now(self._clock))

    def hold(
        self, reader: str, versions: Collection[tuple[str, int]], *, seconds: float
    ) -> frozenset[tuple[str, int]]:
        """Protect versions (task and number) from deletion for a while; return the held versions.

        A call replaces the earlier holds of this reader, so an empty collection ends all holds.
        Versions that do not exist are skipped. The holds of a killed reader expire by the clock of
        PostgreSQL, or on SQLite of the deleting process. The generation does not change.
        """
        check_reader_name(reader)
        with self._index.noting() as change:
            now = change.now(self._clock)
            until = now + timedelta(seconds=seconds)
            return change.replace_holds(reader, versions, now=now, until=until)

    def held(self, reader: str) -> set[tuple[str, int]]:
        """Return the versions that a reader holds now. A restore of the index loses holds."""
        check_reader_name(reader)
        with self._index.reading() as snapshot:
            return snapshot.held(reader, snapshot.now(self._clock))

    def generation(self) -> Generation:
        """Return the generation, by one small query that also sees changes of other processes."""
        return self._index.generation()

"""Upkeep of a registry: verification, quarantine and garbage collection.

The functions at the top are pure: they check records and blobs, and report findings. `Upkeep` reads
records and blobs from the store, and acts on the findings. Files are moved or removed only under
the writers' lock, after a second check. If a publisher repaired a file or referred to it meanwhile,
the file stays in place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import BlobRecord
from nunatak_registry.blobs.blobs import BlobStore, FileKind, StoredFile, blob_key
from nunatak_registry.blobs.tensors import read_header
from nunatak_registry.documents import Cards
from nunatak_registry.errors import (
    CorruptBlobError,
    InvalidArtifactError,
    InvalidManifestError,
    StoreUnavailableError,
)
from nunatak_registry.index.change import Change
from nunatak_registry.index.index import Store
from nunatak_registry.index.records import (
    POLICIES,
    QUESTIONS,
    Document,
    DocumentKind,
    VersionRecord,
)
from nunatak_registry.index.snapshot import Snapshot

DEFAULT_GRACE_S = 3600.0
"""Longer than any load or publish, also with a slow bucket."""
_FILES_PER_LOCK = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FindingKind(StrEnum):
    """The kind of fault.

    Only three kinds harm no version and no document: `ORPHAN` (a blob that no version refers to),
    `TEMPORARY` (the rest of a write that was cut short) and `STRANGER` (a file that the registry
    did not write).
    """

    MANIFEST = "manifest"
    POLICY = "policy"
    QUESTION = "question"
    INDEX = "index"
    BLOB = "blob"
    HEADER = "header"
    ORPHAN = "orphan"
    TEMPORARY = "temporary"
    STRANGER = "stranger"

    @property
    def is_error(self) -> bool:
        """Whether a version or document cannot be served, or the index cannot be trusted."""
        return self not in {FindingKind.ORPHAN, FindingKind.TEMPORARY, FindingKind.STRANGER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding; `subject` is a task reference, or the digest or key of a file."""

    subject: str
    kind: FindingKind
    message: str
    key: str | None = None
    """Key of the bad file, relative to the root of the blobs; None if the finding is not about a
    file."""
    moved_to: str | None = None
    """Key of the bad file in quarantine."""


def verify_version(record: VersionRecord, counted: set[str], blobs: BlobStore) -> Iterator[Finding]:
    """Yield the faults of one version; reads all its blobs, one at a time.

    `counted` holds the digests of the version's blobs in the index.
    """
    try:
        manifest = record.parse()
    except InvalidManifestError as error:
        yield Finding(subject=record.reference, kind=FindingKind.MANIFEST, message=str(error))
        return
    if counted != {blob.sha256 for blob in manifest.blobs}:
        yield index_finding(record.reference, "has other blobs in the index than in its manifest")
    for blob in manifest.blobs:
        yield from _check_blob(record, blob, blobs)


def index_finding(subject: str, message: str) -> Finding:
    """Return the finding for rows that contradict each other."""
    return Finding(
        subject=subject,
        kind=FindingKind.INDEX,
        message=f"{message}; restore the index from a backup",
    )


def leftover(file: StoredFile, blobs: BlobStore) -> Finding:
    """Return the finding for a file that no version refers to.

    A file in the place of a blob is read.
    """
    key = file.key if file.is_among_blobs else None
    match file.kind:
        case FileKind.BLOB if blobs.is_sound(file.digest):
            kind, key = FindingKind.ORPHAN, None
            message = (
                "belongs to no version: the version was deleted, or its publish was interrupted "
                "or is running; `nunatak task gc` removes it"
            )
        case FileKind.BLOB:
            kind = FindingKind.STRANGER
            message = "is in the place of a blob, but its bytes do not match its name"
        case FileKind.TEMPORARY:
            kind, key = FindingKind.TEMPORARY, None
            message = "is left from an interrupted or running write; `nunatak task gc` removes it"
        case FileKind.STRANGER:
            kind = FindingKind.STRANGER
            message = "is a foreign file, which the registry did not write"
    subject = file.digest if kind is FindingKind.ORPHAN else file.key
    return Finding(subject=subject, kind=kind, message=message, key=key)


def check_counters(
    next_versions: Mapping[str, int], versions: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    """Yield the tasks whose counter would give out a used number."""
    for task, numbers in versions.items():
        following = next_versions.get(task, 0)
        if following <= numbers[-1]:
            yield index_finding(
                task, f"has the counter {following - 1}, but has version {numbers[-1]}"
            )


def _check_blob(record: VersionRecord, blob: BlobRecord, blobs: BlobStore) -> Iterator[Finding]:
    try:
        read_header(blobs.get(blob.sha256, blob.size_bytes))
    except CorruptBlobError as error:
        yield Finding(
            subject=record.reference,
            kind=FindingKind.BLOB,
            message=str(error),
            key=blob_key(blob.sha256),
        )
    except InvalidArtifactError as error:
        yield Finding(subject=record.reference, kind=FindingKind.HEADER, message=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The results of a garbage collection."""

    removed_blobs: tuple[str, ...]
    removed_temporary: int
    kept_young: int
    """Files that no version needs, within the grace period."""


class Upkeep(Store):
    """Checks and cleans one registry. Readers and writers in other processes may run meanwhile."""

    def verify(self, task: str | None = None, *, quarantine: bool = False) -> list[Finding]:
        """Check every version of one task or of all, and report the faults.

        Reads every byte. Leftover files, foreign files and the whole index are checked only with
        all tasks. With `quarantine`, bad files are moved to the folder `quarantine` next to the
        blobs, and never deleted. A version that is deleted and collected during the check may be
        reported as damaged.

        Raises:
            TaskNotFoundError: no such task.
        """
        # Files are listed before references are read. Otherwise a publish that ends in between
        # would look like an orphan.
        stored = [] if task is not None else list(self._blobs.files())
        with self._index.reading() as snapshot:
            if task is not None:
                snapshot.require_versions(task)
            records = snapshot.all_versions(task)
            counted = snapshot.blob_references()
            findings = list(_check_index(snapshot, task))
            referenced = snapshot.blob_digests()
        for record in records:
            key = (record.task, record.version)
            findings += verify_version(record, counted.get(key, set()), self._blobs)
        findings += [
            leftover(file, self._blobs)
            for file in sorted(stored, key=lambda it: it.key)
            if file.kind is not FileKind.BLOB or file.digest not in referenced
        ]
        return self._quarantined(findings) if quarantine and findings else findings

    def gc(self, grace_s: float = DEFAULT_GRACE_S) -> Collected:
        """Remove files that no version needs: blobs of deleted versions and temporary files.

        A file is removed only if it was written, and lost its last version, at least `grace_s`
        seconds ago. The grace period protects readers: the period must be longer than a reader's
        time from the resolution of a version to the end of its reading, plus the difference of the
        hosts' clocks.
        """
        self._blobs.check_writable()
        before = self._clock() - timedelta(seconds=grace_s)
        with self._index.reading() as snapshot:
            # A blob stays if any manifest mentions its digest, even if the index does not list it,
            # and even if the manifest is damaged.
            spared = snapshot.blob_digests()
            for record in snapshot.all_versions():
                spared.update(_DIGEST.findall(record.manifest))
        candidates = (
            file
            for file in self._blobs.files()
            if file.kind is FileKind.TEMPORARY
            or (file.kind is FileKind.BLOB and file.digest not in spared)
        )
        removed, kept = list[StoredFile](), 0
        while batch := list(islice(candidates, _FILES_PER_LOCK)):
            with self._index.writing() as change:
                gone = [file for file in batch if self._remove(change, file, before)]
                change.forget_retired([file.digest for file in gone])
            removed += gone
            kept += len(batch) - len(gone)
        blobs = sorted(file.digest for file in removed if file.kind is FileKind.BLOB)
        return Collected(
            removed_blobs=tuple(blobs), removed_temporary=len(removed) - len(blobs), kept_young=kept
        )

    def _quarantined(self, findings: Sequence[Finding]) -> list[Finding]:
        """Move the bad files to the quarantine; return the findings with their new keys."""
        places = dict[str, str | None]()
        with self._writing():
            for key in {it.key for it in findings if it.key is not None}:
                file = StoredFile.at(key)
                is_repaired = file.kind is FileKind.BLOB and self._blobs.is_sound(file.digest)
                places[key] = None if is_repaired else self._blobs.quarantine(key)
        return [
            finding if finding.key is None else replace(finding, moved_to=places[finding.key])
            for finding in findings
        ]

    def _remove(self, change: Change, file: StoredFile, before: datetime) -> bool:
        written = self._blobs.modified(file)
        if written is None or written > before:
            return False
        if file.kind is FileKind.BLOB:
            retired = change.retired_since(file.digest)
            if change.has_blob(file.digest) or (retired is not None and retired > before):
                return False
        self._blobs.remove(file)
        return True


def _check_index(snapshot: Snapshot, task: str | None) -> Iterator[Finding]:
    versions = snapshot.version_numbers(task)
    if task is None:
        yield from (index_finding("index", problem) for problem in snapshot.integrity_problems())
    yield from check_counters(snapshot.next_versions(), versions)
    for name, aliases in snapshot.aliases(task).items():
        for alias, version in aliases.items():
            yield from _check_alias(snapshot, f"{name}@{alias}", version, versions.get(name, ()))
    try:
        snapshot.candidates(task)
    except StoreUnavailableError as error:
        yield index_finding("index" if task is None else task, f"has damage: {error}")
    if task is None:
        yield from _check_documents(snapshot, POLICIES, FindingKind.POLICY)
        yield from _check_documents(snapshot, QUESTIONS, FindingKind.QUESTION)
        for name, problem in Cards.of(snapshot).doubles:
            yield Finding(subject=name, kind=FindingKind.QUESTION, message=problem)


def _check_documents(
    snapshot: Snapshot, kind: DocumentKind[Document], fault: FindingKind
) -> Iterator[Finding]:
    for record in snapshot.documents(kind.row):
        try:
            record.parse(kind)
        except NunatakError as error:
            subject = f"{record.name}/{record.version}"
            yield Finding(subject=subject, kind=fault, message=str(error))


def _check_alias(
    snapshot: Snapshot, reference: str, version: int, versions: tuple[int, ...]
) -> Iterator[Finding]:
    if version not in versions:
        yield index_finding(reference, f"points to version {version}, which is missing")
    try:
        history = snapshot.history(*reference.split("@"))
    except StoreUnavailableError as error:
        yield index_finding(reference, f"has a history that cannot be read ({error})")
        return
    if not history or history[-1].to_version != version:
        yield index_finding(reference, f"points to version {version}, but its history does not")

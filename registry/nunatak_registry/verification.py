"""Checks of a whole registry: does every version still hold what was published?

Pure functions over records and blobs; `upkeep` reads them from the store and acts on what is found.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nunatak_registry.blobs.blobs import BlobStore, FileKind, StoredFile, blob_key
from nunatak_registry.blobs.tensors import read_header
from nunatak_registry.errors import CorruptBlobError, InvalidArtifactError, InvalidManifestError
from nunatak_registry.index.snapshot import VersionRecord
from nunatak_registry.manifest import BlobRecord


class FindingKind(StrEnum):
    """What is wrong.

    Harmless to every version are only `ORPHAN` (a blob that no version refers to), `TEMPORARY`
    (what a write that was cut short left) and `STRANGER` (nothing of the registry's).
    """

    MANIFEST = "manifest"
    INDEX = "index"
    BLOB = "blob"
    HEADER = "header"
    ORPHAN = "orphan"
    TEMPORARY = "temporary"
    STRANGER = "stranger"

    @property
    def is_error(self) -> bool:
        """Whether a version cannot be served, or the index not be trusted, because of it."""
        return self not in {FindingKind.ORPHAN, FindingKind.TEMPORARY, FindingKind.STRANGER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found; `subject` is a task reference, or the digest or key of a file."""

    subject: str
    kind: FindingKind
    message: str
    key: str | None = None
    """Where the bad file lies, relative to the root of the blobs, if a file is to blame."""
    moved_to: str | None = None
    """Where in quarantine it lies now."""


def verify_version(record: VersionRecord, counted: set[str], blobs: BlobStore) -> Iterator[Finding]:
    """Yield what is wrong with one version; reads all its blobs, one at a time.

    `counted` are the digests that the index counts as the version's.
    """
    try:
        manifest = record.parse()
    except InvalidManifestError as error:
        yield Finding(subject=record.reference, kind=FindingKind.MANIFEST, message=str(error))
        return
    if counted != {blob.sha256 for blob in manifest.blobs}:
        yield index_finding(
            record.reference, "is counted as the holder of other blobs than its manifest names"
        )
    for blob in manifest.blobs:
        finding = _check_blob(record, blob, blobs)
        if finding is not None:
            yield finding


def index_finding(subject: str, message: str) -> Finding:
    """Return the finding for rows that contradict each other."""
    return Finding(
        subject=subject,
        kind=FindingKind.INDEX,
        message=f"{message}; restore the index from a backup",
    )


def leftover(file: StoredFile, blobs: BlobStore) -> Finding:
    """Return the finding for a file that no version refers to; reads it if it says it is a blob."""
    match file.kind:
        case FileKind.BLOB if blobs.is_sound(file.digest):
            return Finding(
                subject=file.digest,
                kind=FindingKind.ORPHAN,
                message="belongs to no version: of a version deleted, of a publish cut short or "
                "under way; `nunatak task gc` removes it",
            )
        case FileKind.BLOB:
            message = "is in the place of a blob, but holds other bytes than its name says"
        case FileKind.TEMPORARY:
            return Finding(
                subject=file.key,
                kind=FindingKind.TEMPORARY,
                message="is of a write cut short or under way; `nunatak task gc` removes it",
            )
        case FileKind.STRANGER:
            message = "is nothing the registry has put here"
    return Finding(
        subject=file.key,
        kind=FindingKind.STRANGER,
        message=message,
        key=file.key if file.is_among_blobs else None,
    )


def check_counters(
    next_versions: Mapping[str, int], versions: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    """Yield the tasks whose counter would give out a number that is taken."""
    for task, numbers in versions.items():
        following = next_versions.get(task, 0)
        if following <= numbers[-1]:
            yield index_finding(
                task, f"counts versions to {following - 1}, but has version {numbers[-1]}"
            )


def _check_blob(record: VersionRecord, blob: BlobRecord, blobs: BlobStore) -> Finding | None:
    try:
        read_header(blobs.get(blob.sha256, blob.size_bytes))
    except CorruptBlobError as error:
        return Finding(
            subject=record.reference,
            kind=FindingKind.BLOB,
            message=str(error),
            key=blob_key(blob.sha256),
        )
    except InvalidArtifactError as error:
        return Finding(subject=record.reference, kind=FindingKind.HEADER, message=str(error))
    return None

"""Checks of a whole registry: does every version still hold what was published?"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nunatak_registry.blobs import BlobStore
from nunatak_registry.errors import CorruptBlobError, InvalidArtifactError, InvalidManifestError
from nunatak_registry.index import VersionRecord
from nunatak_registry.tensors import read_header


class FindingKind(StrEnum):
    """What is wrong. Only `ORPHAN` is harmless: a blob that no version refers to."""

    MANIFEST = "manifest"
    BLOB = "blob"
    HEADER = "header"
    ORPHAN = "orphan"

    @property
    def is_error(self) -> bool:
        """Whether a version cannot be served because of it."""
        return self is not FindingKind.ORPHAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found; `subject` is a task reference, or the digest of an orphan."""

    subject: str
    kind: FindingKind
    message: str


def verify_version(record: VersionRecord, blobs: BlobStore) -> Iterator[Finding]:
    """Yield what is wrong with one version; reads all its blobs, one at a time."""
    try:
        manifest = record.parse()
    except InvalidManifestError as error:
        yield Finding(subject=record.reference, kind=FindingKind.MANIFEST, message=str(error))
        return
    for blob in manifest.blobs:
        try:
            read_header(blobs.get(blob.sha256, blob.size_bytes))
        except CorruptBlobError as error:
            yield Finding(subject=record.reference, kind=FindingKind.BLOB, message=str(error))
        except InvalidArtifactError as error:
            yield Finding(subject=record.reference, kind=FindingKind.HEADER, message=str(error))


def orphan(digest: str) -> Finding:
    """Return the finding for a blob that no version refers to."""
    return Finding(
        subject=digest,
        kind=FindingKind.ORPHAN,
        message=f"blob {digest[:12]}... belongs to no version: left by a publish or deletion "
        "that was cut short, or of a publish that is under way",
    )

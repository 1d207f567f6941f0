"""Rows of versions, and the manifests in them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from nunatak_contract.manifest import TaskManifest
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import InvalidManifestError

NUM_PARSED: Final = 1024
"""Most parsed manifests that are kept."""
MAX_KEPT_CHARS: Final = 65_536
"""Longest text of a manifest that is kept parsed; most have some thousand characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One row of the index: a manifest as text, with the digest of the published text."""

    task: str
    version: int
    manifest: str
    manifest_digest: str

    @property
    def reference(self) -> str:
        """The reference that names exactly this version."""
        return f"{self.task}/{self.version}"

    def parse(self) -> TaskManifest:
        """Return the manifest.

        Raises:
            InvalidManifestError: the text changed since it was published, or this release cannot
                read it.
        """
        return (_parse if len(self.manifest) <= MAX_KEPT_CHARS else _parse_anew)(self)


def _parse_anew(record: VersionRecord) -> TaskManifest:
    if digest_of(record.manifest.encode()) != record.manifest_digest:
        raise InvalidManifestError(
            f"the stored manifest of {record.reference} differs from the published manifest; "
            "restore the index from a backup"
        )
    try:
        manifest = TaskManifest.model_validate_json(record.manifest)
    except ValidationError as error:
        raise InvalidManifestError(
            f"the manifest of {record.reference} does not follow schema version 1: {error}"
        ) from error
    if (manifest.task, manifest.version) != (record.task, record.version):
        raise InvalidManifestError(
            f"the manifest stored as {record.reference} says it is {manifest.reference}"
        )
    return manifest


# A text that was checked and parsed once gives the same manifest again.
_parse = lru_cache(NUM_PARSED)(_parse_anew)

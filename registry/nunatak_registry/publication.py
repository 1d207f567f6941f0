"""Checks of a publication, before anything is stored."""

from collections.abc import Collection, Mapping

from pydantic import ValidationError

from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_contract.record import problems_text
from nunatak_registry.blobs.blobs import MAX_BLOB_BYTES, BlobStore, digest_of
from nunatak_registry.blobs.tensors import read_header
from nunatak_registry.errors import (
    InvalidArtifactError,
    InvalidManifestError,
    StoreUnavailableError,
)
from nunatak_registry.index.snapshot import Snapshot


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


def check_place(snapshot: Snapshot, blobs: BlobStore, digests: Collection[str]) -> None:
    """Refuse to write blobs to a place without the blobs that this registry has already.

    The volume of the blobs is perhaps not mounted, and the written blobs would disappear below it.
    A registry without versions may write anywhere, and known blobs may be written again.
    """
    known = snapshot.some_blobs()
    if not known or (
        blobs.has_folder()
        and (any(map(snapshot.has_blob, digests)) or any(map(blobs.exists, known)))
    ):
        return
    raise StoreUnavailableError(
        "the root of the blobs holds none of the blobs of this registry, so nothing was written: "
        "mount its volume, correct its address, or restore the blobs; if all are lost, make an "
        "empty folder 'sha256' in the root and publish the same content again"
    )


def number_draft(draft: TaskDraft, version: int) -> TaskManifest:
    """Return the manifest of a draft with its number. All fields are checked again."""
    fields = draft.model_dump(include=set(TaskDraft.model_fields), warnings=False)
    try:
        return TaskManifest.model_validate({**fields, "version": version})
    except ValidationError as error:
        raise InvalidManifestError(
            f"the draft of {draft.task!r} is invalid: {problems_text(error)}"
        ) from error

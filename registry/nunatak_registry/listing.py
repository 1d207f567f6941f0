"""Lists of tasks and versions, and the checks of a publication before anything is stored."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from nunatak_contract.manifest import TaskDraft, TaskManifest
from nunatak_registry.aliases import AliasEvent, Candidate
from nunatak_registry.blobs.blobs import MAX_BLOB_BYTES, BlobStore, digest_of
from nunatak_registry.blobs.tensors import read_header
from nunatak_registry.errors import (
    InvalidArtifactError,
    InvalidManifestError,
    StoreUnavailableError,
)
from nunatak_registry.index.records import VersionRecord
from nunatak_registry.index.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
    """One task: its versions, ascending, its aliases, and the version of its bare name."""

    name: str
    versions: tuple[int, ...]
    aliases: dict[str, int]
    manifest: TaskManifest
    candidates: tuple[Candidate, ...] = ()

    @property
    def latest(self) -> int:
        """The newest version."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTask:
    """A task whose bare name means an unreadable version. Other versions may be readable."""

    name: str
    version: int
    error: InvalidManifestError


def summarize(snapshot: Snapshot, task: str | None = None) -> Iterator[ListedTask | DamagedTask]:
    """Yield one task or all, ordered by name."""
    versions = snapshot.version_numbers(task)
    aliases = snapshot.aliases(task)
    candidates = defaultdict[str, list[Candidate]](list)
    for candidate in snapshot.candidates(task):
        candidates[candidate.task].append(candidate)
    for record in snapshot.default_versions(task):
        try:
            yield ListedTask(
                name=record.task,
                versions=versions[record.task],
                aliases=aliases.get(record.task, {}),
                manifest=record.parse(),
                candidates=tuple(candidates[record.task]),
            )
        except InvalidManifestError as error:
            yield DamagedTask(name=record.task, version=record.version, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVersion:
    """One version of a task, for a list of all its versions."""

    version: int
    published_at: datetime
    manifest: TaskManifest | None
    """None if the stored manifest is damaged."""
    moves: tuple[AliasEvent, ...]
    """The last move of each alias that points to the version."""
    candidates: tuple[Candidate, ...]
    """Where the version is a canary or a shadow."""


def list_versions(snapshot: Snapshot, task: str) -> list[ListedVersion]:
    """Return every version of a task, ascending."""
    times = snapshot.publication_times(task)
    aliases = snapshot.aliases(task).get(task, {})
    moves = [move for alias in aliases for move in snapshot.history(task, alias)[-1:]]
    candidates = snapshot.candidates(task)
    return [
        ListedVersion(
            version=record.version,
            published_at=times[record.version],
            manifest=_readable(record),
            moves=tuple(it for it in moves if it.to_version == record.version),
            candidates=tuple(it for it in candidates if it.version == record.version),
        )
        for record in snapshot.all_versions(task)
    ]


def _readable(record: VersionRecord) -> TaskManifest | None:
    try:
        return record.parse()
    except InvalidManifestError:
        return None


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
        raise InvalidManifestError(f"the draft of {draft.task!r} is invalid: {error}") from error

"""Errors of the registry that code catches; all others are a `NunatakError` with another code."""

from collections.abc import Generator
from contextlib import contextmanager

from nunatak_contract.errors import NunatakError


class InvalidManifestError(NunatakError):
    """A manifest that does not follow its schema."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_manifest", problem=problem)


class InvalidArtifactError(NunatakError):
    """Bytes that are no safetensors file, or exceed the limits of `tensors`."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_artifact", problem=problem)


class TaskNotFoundError(NunatakError):
    """No task of that name."""

    def __init__(self, task: str) -> None:
        super().__init__("task_not_found", task=task)


class VersionNotFoundError(NunatakError):
    """The task exists, but not at the wanted version."""

    def __init__(self, task: str, version: int, available: tuple[int, ...]) -> None:
        known = ", ".join(map(str, available[-10:])) or "none"
        super().__init__("version_not_found", task=task, version=version, known=known)


class CorruptBlobError(NunatakError):
    """Bytes on disk are missing, truncated or do not match their recorded digest."""

    def __init__(self, digest: str, reason: str, *, owner: str = "") -> None:
        self.digest, self.reason = digest, reason
        of = f" of {owner}" if owner else ""
        super().__init__("corrupt_blob", digest=digest, of=of, reason=reason)


@contextmanager
def blob_of(owner: str) -> Generator[None]:
    """Name a version that needs the blob in the errors of the body."""
    try:
        yield
    except CorruptBlobError as error:
        raise CorruptBlobError(error.digest, error.reason, owner=owner) from None


class StoreUnavailableError(NunatakError):
    """The index or the blob store cannot be reached, read or written."""

    def __init__(self, problem: str) -> None:
        super().__init__("store_unavailable", problem=problem)


AFTER_SYNC = (
    "check the disk, open the registry anew (restart the process) and run `nunatak task verify`"
)


class StoreReadOnlyError(StoreUnavailableError):
    """A write after a failed fsync, or to an index that takes none. Reads still work."""

    def __init__(self, reason: str, remedy: str = AFTER_SYNC) -> None:
        NunatakError.__init__(self, "store_read_only", reason=reason, remedy=remedy)

"""Errors of the registry.

RegistryError
+-- InvalidManifestError      a manifest does not follow its schema
+-- InvalidArtifactError      a safetensors blob breaks its format or our limits
+-- TaskNotFoundError         no task of that name
+-- VersionNotFoundError      the task exists, the version does not
+-- AliasNotFoundError        the task exists, the alias does not
+-- AliasConflictError        the alias moved since the caller looked (compare-and-swap failed)
+-- NoPreviousVersionError    a rollback has nothing to go back to
+-- VersionInUseError         a deletion of a version that an alias, candidate or reader holds
+-- InvalidCandidateError     a version that cannot run next to the alias's version
+-- CandidateNotFoundError    the alias has no candidate of that role
+-- CandidateConflictError    the candidate changed since the caller looked
+-- CorruptBlobError          bytes on disk are missing or do not match their recorded digest
+-- StoreUnavailableError     the index or the blob store cannot be reached or written
    +-- StoreReadOnlyError    an fsync failed: no writes until the registry is opened anew
"""

from typing import ClassVar


class RegistryError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "registry_error"


class InvalidManifestError(RegistryError):
    """A manifest that does not follow its schema."""

    code = "invalid_manifest"


class InvalidArtifactError(RegistryError):
    """Bytes that are no safetensors file, or one beyond the limits of `tensors`."""

    code = "invalid_artifact"


class TaskNotFoundError(RegistryError):
    """No task of that name."""

    code = "task_not_found"

    def __init__(self, task: str) -> None:
        self.task = task
        super().__init__(
            f"no task {task!r} in this registry; `nunatak task list` shows the tasks there are"
        )


class VersionNotFoundError(RegistryError):
    """The task exists, but not at the wanted version."""

    code = "version_not_found"

    def __init__(self, task: str, version: int, available: tuple[int, ...]) -> None:
        self.task = task
        self.version = version
        self.available = available
        known = ", ".join(map(str, available[-10:])) or "none"
        super().__init__(f"task {task!r} has no version {version}; versions: {known}")


class AliasNotFoundError(RegistryError):
    """The task exists, but has no such alias."""

    code = "alias_not_found"

    def __init__(self, task: str, alias: str, available: tuple[str, ...]) -> None:
        self.task = task
        self.alias = alias
        self.available = available
        known = ", ".join(available) or "none"
        super().__init__(f"task {task!r} has no alias {alias!r}; aliases: {known}")


class AliasConflictError(RegistryError):
    """Compare-and-swap failed: the alias does not point where the caller expected."""

    code = "alias_conflict"

    def __init__(self, task: str, alias: str, expected: int, actual: int) -> None:
        self.task = task
        self.alias = alias
        self.expected = expected
        self.actual = actual
        now = f"version {actual}" if actual else "no version"
        then = f"version {expected}" if expected else "no version"
        super().__init__(
            f"alias {alias!r} of task {task!r} points to {now}, expected {then}; "
            "look again and retry"
        )


class NoPreviousVersionError(RegistryError):
    """A rollback of an alias that has never pointed anywhere else."""

    code = "no_previous_version"

    def __init__(self, task: str, alias: str) -> None:
        self.task = task
        self.alias = alias
        super().__init__(f"alias {alias!r} of task {task!r} has no earlier version to go back to")


class VersionInUseError(RegistryError):
    """The version to delete is in use by an alias, a canary, a shadow or a reader."""

    code = "version_in_use"

    def __init__(
        self,
        task: str,
        version: int,
        *,
        aliases: tuple[str, ...],
        readers: tuple[str, ...],
        candidates: tuple[str, ...] = (),
    ) -> None:
        self.task = task
        self.version = version
        self.aliases = aliases
        self.readers = readers
        self.candidates = candidates
        holders = [
            *(f"alias {alias} (promote another version first)" for alias in aliases),
            *(f"the {candidate} (end it first)" for candidate in candidates),
            *(f"reader {reader} (evict it there, or wait for it to end)" for reader in readers),
        ]
        super().__init__(f"version {version} of task {task!r} is held by {', '.join(holders)}")


class InvalidCandidateError(RegistryError):
    """A version that cannot run next to the alias's version."""

    code = "invalid_candidate"

    def __init__(self, task: str, version: int, role: str, reason: str) -> None:
        self.task = task
        self.version = version
        self.role = role
        self.reason = reason
        super().__init__(f"version {version} of task {task!r} cannot be its {role}: {reason}")


class CandidateNotFoundError(RegistryError):
    """The alias has no candidate of that role."""

    code = "candidate_not_found"

    def __init__(self, task: str, alias: str, role: str) -> None:
        self.task = task
        self.alias = alias
        self.role = role
        super().__init__(
            f"alias {alias!r} of task {task!r} has no {role}; "
            f"`nunatak task {role} {task} --version N` sets one"
        )


class CandidateConflictError(RegistryError):
    """Compare-and-swap failed: another candidate is there than the caller expected."""

    code = "candidate_conflict"

    def __init__(self, task: str, alias: str, role: str, *, expected: int, actual: int) -> None:
        self.task = task
        self.alias = alias
        self.role = role
        self.expected = expected
        self.actual = actual
        now = f"version {actual}" if actual else "none"
        then = f"version {expected}" if expected else "none"
        super().__init__(
            f"the {role} of alias {alias!r} of task {task!r} is {now}, expected {then}; "
            "look again and retry"
        )


class CorruptBlobError(RegistryError):
    """Bytes on disk are missing, truncated or do not match their recorded digest."""

    code = "corrupt_blob"

    def __init__(self, digest: str, reason: str) -> None:
        self.digest = digest
        self.reason = reason
        super().__init__(f"blob {digest[:12]}... {reason}; restore it or publish the version again")


class StoreUnavailableError(RegistryError):
    """The index or the blob store cannot be reached, read or written."""

    code = "store_unavailable"


class StoreReadOnlyError(StoreUnavailableError):
    """A write after a failed fsync; reads go on."""

    code = "store_read_only"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the registry takes no changes since {reason}; check the disk, open the registry "
            "anew (restart the process) and run `nunatak task verify`"
        )

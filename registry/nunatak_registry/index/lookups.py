"""Questions to a snapshot that are refused where there is no answer."""

from nunatak_registry.aliases import rollback_target
from nunatak_registry.candidates import Candidate, CandidateRole, SharedTraffic, Traffic
from nunatak_registry.errors import (
    AliasConflictError,
    AliasNotFoundError,
    InvalidManifestError,
    NoPreviousVersionError,
    TaskNotFoundError,
    VersionNotFoundError,
)
from nunatak_registry.index.snapshot import Snapshot, VersionRecord
from nunatak_registry.names import (
    DEFAULT_ALIAS,
    TaskReference,
    check_alias_name,
    check_task_name,
)


def find_version(snapshot: Snapshot, wanted: TaskReference) -> VersionRecord:
    """Return the version that a reference means.

    Raises:
        TaskNotFoundError: no such task.
        AliasNotFoundError: the task has no such alias.
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
        aliases = snapshot.aliases(task).get(task, {})
        raise AliasNotFoundError(task, wanted.alias, tuple(aliases))
    raise VersionNotFoundError(task, wanted.version or 0, available)


def find_traffic(snapshot: Snapshot, wanted: TaskReference) -> Traffic:
    """Return what runs for requests by a reference; one that names a version has no candidates.

    A candidate whose manifest is damaged is left out: the alias's own version answers alone.

    Raises:
        InvalidManifestError: the manifest of the version that is meant is damaged.
        RegistryError: as `find_version`.
    """
    manifest = find_version(snapshot, wanted).parse()
    if wanted.version is not None:
        return Traffic(manifest=manifest)
    alias = wanted.alias or DEFAULT_ALIAS
    beside = {it.role: it for it in snapshot.candidates(wanted.task) if it.alias == alias}
    return Traffic(
        manifest=manifest,
        canary=_shared(snapshot, beside.get(CandidateRole.CANARY)),
        shadow=_shared(snapshot, beside.get(CandidateRole.SHADOW)),
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
    """Raise `VersionNotFoundError`, or `TaskNotFoundError`, unless there is this version."""
    if not snapshot.has_version(task, version):
        raise VersionNotFoundError(task, version, require_versions(snapshot, task))


def require_alias(snapshot: Snapshot, task: str, alias: str) -> int:
    """Return where an alias points, or raise `AliasNotFoundError`."""
    aliases = snapshot.aliases(task).get(task, {})
    if alias not in aliases:
        raise AliasNotFoundError(task, alias, tuple(aliases))
    return aliases[alias]


def check_expected(task: str, alias: str, expected: int | None, current: int | None) -> None:
    """Raise `AliasConflictError` if an alias points elsewhere than expected (0: nowhere)."""
    if expected is not None and expected != (current or 0):
        raise AliasConflictError(task, alias, expected, current or 0)


def find_rollback(
    snapshot: Snapshot, task: str, alias: str, expected_version: int | None
) -> tuple[int, int]:
    """Return where an alias points, and where its rollback goes.

    Raises:
        TaskNotFoundError: no such task.
        AliasNotFoundError: the task has no such alias.
        AliasConflictError: the alias points elsewhere than expected.
        NoPreviousVersionError: no earlier version is left to go back to.
    """
    check_alias_name(alias)
    available = require_versions(snapshot, check_task_name(task))
    current = require_alias(snapshot, task, alias)
    check_expected(task, alias, expected_version, current)
    target = rollback_target(snapshot.history(task, alias), available)
    if target is None:
        raise NoPreviousVersionError(task, alias)
    return current, target

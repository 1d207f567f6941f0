"""Questions to a snapshot that are refused where there is no answer."""

from nunatak_registry.errors import (
    AliasConflictError,
    AliasNotFoundError,
    TaskNotFoundError,
    VersionNotFoundError,
)
from nunatak_registry.names import TaskReference
from nunatak_registry.snapshot import Snapshot, VersionRecord


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

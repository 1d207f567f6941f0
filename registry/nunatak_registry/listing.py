"""Lists of tasks and versions, with the facts that people ask for: aliases, times, candidates."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from nunatak_contract.manifest import TaskManifest
from nunatak_registry.aliases import AliasEvent, Candidate
from nunatak_registry.errors import InvalidManifestError
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
    aliases = snapshot.aliases(task).get(task, {})
    moves = [move for alias in aliases for move in snapshot.history(task, alias)[-1:]]
    candidates = snapshot.candidates(task)
    return [
        ListedVersion(
            version=record.version,
            published_at=record.moment,
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

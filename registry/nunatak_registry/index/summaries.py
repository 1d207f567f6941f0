"""What a list of tasks shows of each: its versions, its aliases, what its bare name stands for."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nunatak_registry.candidates import Candidate
from nunatak_registry.errors import InvalidManifestError
from nunatak_registry.index.snapshot import Snapshot
from nunatak_registry.manifest import TaskManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """One task: its versions, ascending, its aliases, and what its bare name stands for."""

    name: str
    versions: tuple[int, ...]
    aliases: dict[str, int]
    manifest: TaskManifest
    candidates: tuple[Candidate, ...] = ()
    """What runs beside its aliases."""

    @property
    def latest(self) -> int:
        """The newest version."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTask:
    """A task whose bare name stands for a version that cannot be read; others may be whole."""

    name: str
    version: int
    error: InvalidManifestError


def summarize(snapshot: Snapshot, task: str | None = None) -> Iterator[TaskSummary | DamagedTask]:
    """Yield one task or all, ordered by name."""
    versions = snapshot.version_numbers(task)
    aliases = snapshot.aliases(task)
    candidates = defaultdict[str, list[Candidate]](list)
    for candidate in snapshot.candidates(task):
        candidates[candidate.task].append(candidate)
    for record in snapshot.default_versions(task):
        try:
            yield TaskSummary(
                name=record.task,
                versions=versions[record.task],
                aliases=aliases.get(record.task, {}),
                manifest=record.parse(),
                candidates=tuple(candidates[record.task]),
            )
        except InvalidManifestError as error:
            yield DamagedTask(name=record.task, version=record.version, error=error)

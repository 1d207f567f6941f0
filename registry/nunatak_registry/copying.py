"""Copies of tasks from one registry to another: versions, aliases, candidates and their history.

A copy adds what is missing and changes nothing that is there. The blobs of a task are written
first. Then one transaction adds all its rows, so a killed copy leaves whole tasks, and at most some
blobs without a version. A repeated copy skips what is there already.

Two registries may both have changed since an earlier copy. The copy of a task is refused if the
target contradicts the source. An operator must then decide which registry is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import BlobRecord
from nunatak_registry.aliases import AliasState
from nunatak_registry.errors import CorruptBlobError, TaskNotFoundError, blob_of
from nunatak_registry.index.change import Change
from nunatak_registry.index.index import Store
from nunatak_registry.index.records import VersionRecord
from nunatak_registry.index.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """Everything that an index says about one task, or the part that another index lacks."""

    next_version: int
    """The number of the next version, above all numbers that were ever given out."""
    versions: Mapping[int, VersionRecord]
    aliases: Mapping[str, AliasState]

    @property
    def blobs(self) -> dict[str, tuple[BlobRecord, str]]:
        """The blobs of the versions with the reference of one of them, by digest."""
        owners = self.versions.values()
        return {it.sha256: (it, own.reference) for own in owners for it in own.parse().blobs}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCopy:
    """The outcome of the copy of one task."""

    task: str
    versions: tuple[int, ...]
    """Numbers of the versions that were copied."""
    present: tuple[int, ...]
    """Numbers of the versions that were there already."""
    num_events: int
    """Moves of aliases and changes of candidates that were copied."""
    num_bytes: int
    """Bytes of blobs that were written; blobs that were there already are not counted."""


def plan_copy(task: str, source: TaskState, target: TaskState) -> TaskState:
    """Return what `target` lacks of `source`; of an alias, new events, and all its candidates.

    Raises:
        NunatakError: `copy_conflict`, the target contradicts the source.
    """
    missing = dict[int, VersionRecord]()
    numbers = {it.parse().content: number for number, it in target.versions.items()}
    for number, version in source.versions.items():
        same = numbers.get(version.parse().content)
        if number not in target.versions:
            _check_free(task, number, target, same=same)
            missing[number] = version
        elif number != same:
            raise _conflict(task, f"version {number} has other content there")
    aliases = dict[str, AliasState]()
    for alias, ours in source.aliases.items():
        theirs = target.aliases.get(alias, AliasState())
        if theirs.begins_with(ours):
            continue
        if not ours.begins_with(theirs):
            raise _conflict(task, f"alias {alias!r} has another history there")
        aliases[alias] = AliasState(
            moves=ours.moves[len(theirs.moves) :],
            changes=ours.changes[len(theirs.changes) :],
            candidates=ours.candidates,
        )
    next_version = max(source.next_version, target.next_version)
    return TaskState(next_version=next_version, versions=missing, aliases=aliases)


def _check_free(task: str, number: int, target: TaskState, *, same: int | None) -> None:
    """Refuse a number that the target gave out before, and content that it has under another."""
    if number < target.next_version:
        raise _conflict(task, f"version {number} was deleted there, and no number is used twice")
    if same is not None:
        raise _conflict(task, f"version {number} has the content of version {same} there")


def _conflict(task: str, reason: str) -> NunatakError:
    return NunatakError("copy_conflict", what=f"task {task!r}", reason=reason)


class Copies(Store):
    """The tasks of one registry, to copy from and to."""

    def tasks(self) -> list[str]:
        """Return the names of all tasks, also of those whose versions are all deleted."""
        with self._index.reading() as snapshot:
            return sorted(snapshot.next_versions())

    def state(self, task: str) -> TaskState:
        """Return everything about one task, as of one moment; raise `TaskNotFoundError`."""
        with self._index.reading() as snapshot:
            if task not in snapshot.next_versions(task):
                raise TaskNotFoundError(task)
            return _state_in(snapshot, task)

    def read(self, blob: BlobRecord) -> bytes:
        """Return the bytes of a blob, or raise `CorruptBlobError`."""
        return self._blobs.get(blob.sha256, blob.size_bytes)

    def take(self, task: str, source: "Copies") -> TaskCopy:
        """Copy one task from another registry into this one, whole or not at all.

        Raises:
            TaskNotFoundError: the source has no such task.
            NunatakError: `copy_conflict`, this registry contradicts the source.
            InvalidManifestError: a manifest is damaged, in the source or here.
            CorruptBlobError: a blob of the source is missing or damaged.
        """
        wanted = source.state(task)
        with self._index.reading() as snapshot:
            plan = plan_copy(task, wanted, _state_in(snapshot, task))
            if plan.blobs:
                self._check_place(snapshot, plan.blobs)
            has_reserved = snapshot.next_versions(task).get(task) == plan.next_version
        num_bytes = sum(self._fetch(*it, source) for it in plan.blobs.values())
        if plan.versions or plan.aliases or not has_reserved:
            with self._writing() as change:
                # Another process may have changed the task meanwhile, and `gc` may have removed a
                # blob. Under this lock neither can.
                plan = plan_copy(task, wanted, _state_in(change, task))
                for digest, it in plan.blobs.items():
                    if not self._blobs.exists(digest):
                        num_bytes += self._fetch(*it, source)
                _add(change, task, plan)
        return TaskCopy(
            task=task,
            versions=tuple(plan.versions),
            present=tuple(it for it in wanted.versions if it not in plan.versions),
            num_events=sum(len(it.moves) + len(it.changes) for it in plan.aliases.values()),
            num_bytes=num_bytes,
        )

    def _fetch(self, blob: BlobRecord, owner: str, source: "Copies") -> int:
        """Write a blob unless it is here undamaged; return the bytes that were written."""
        try:
            self.read(blob)
        except CorruptBlobError:
            with blob_of(owner):
                data = source.read(blob)
            self._blobs.put(data)
            return blob.size_bytes
        return 0


def _state_in(snapshot: Snapshot, task: str) -> TaskState:
    candidates = snapshot.candidates(task)
    return TaskState(
        next_version=snapshot.next_versions(task).get(task, 1),
        versions={it.version: it for it in snapshot.all_versions(task)},
        aliases={
            alias: AliasState(
                moves=tuple(snapshot.history(task, alias)),
                changes=tuple(snapshot.candidate_history(task, alias)),
                candidates=tuple(it for it in candidates if it.alias == alias),
            )
            for alias in snapshot.aliases(task).get(task, {})
        },
    )


def _add(change: Change, task: str, plan: TaskState) -> None:
    change.reserve_numbers(task, plan.next_version)
    for it in plan.versions.values():
        change.add_version(it.parse(), it.moment, document=it.manifest)
    for alias, state in plan.aliases.items():
        change.bring_forward(task, alias, state)

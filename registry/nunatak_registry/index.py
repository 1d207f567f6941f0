"""The index: which task versions there are and where the aliases point.

A `Snapshot` answers questions from one read transaction. A `Change` does so from one write
transaction that no other writer runs beside; what it does becomes visible all at once or never.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeAlias

from pydantic import ValidationError
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)

from nunatak_registry.aliases import AliasEvent, AliasEventKind
from nunatak_registry.database import Database, raise_generation
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.manifest import TaskManifest
from nunatak_registry.names import DEFAULT_ALIAS, MAX_VERSION
from nunatak_registry.schema import (
    AliasEventRow,
    AliasRow,
    BlobRow,
    RetiredBlobRow,
    StateRow,
    TaskRow,
    VersionRow,
)

VersionQuery: TypeAlias = "Select[str, int, str, str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One row of the index: a manifest as text, with the digest the text had when published."""

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
        if _digest_of(self.manifest) != self.manifest_digest:
            raise InvalidManifestError(
                f"the stored manifest of {self.reference} differs from the one published; "
                "restore the index from a backup"
            )
        try:
            manifest = TaskManifest.model_validate_json(self.manifest)
        except ValidationError as error:
            raise InvalidManifestError(
                f"the manifest of {self.reference} does not follow schema version 1: {error}"
            ) from error
        if (manifest.task, manifest.version) != (self.task, self.version):
            raise InvalidManifestError(
                f"the manifest stored as {self.reference} says it is {manifest.reference}"
            )
        return manifest


class Snapshot:
    """Questions to the index, all answered as of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def generation(self) -> int:
        """Return a number that every change of the index raises."""
        return self._connection.execute(select(StateRow.generation)).scalar_one()

    def version(self, task: str, version: int) -> VersionRecord | None:
        """Return one version."""
        if not 1 <= version <= MAX_VERSION:
            return None
        return self._one(_VERSIONS.where(VersionRow.task == task, VersionRow.version == version))

    def version_of_alias(self, task: str, alias: str) -> VersionRecord | None:
        """Return the version that an alias points to."""
        return self._one(
            _VERSIONS.join(AliasRow, _alias_points_to_version()).where(
                AliasRow.task == task, AliasRow.alias == alias
            )
        )

    def version_of_content(self, task: str, content_digest: str) -> VersionRecord | None:
        """Return the version that holds this content."""
        return self._one(
            _VERSIONS.where(VersionRow.task == task, VersionRow.content_digest == content_digest)
        )

    def default_versions(self, task: str | None = None) -> list[VersionRecord]:
        """Return what bare names stand for, of one task or of all, ordered by task."""
        highest = select(VersionRow.task, func.max(VersionRow.version).label("version"))
        if task is not None:
            highest = highest.where(VersionRow.task == task)
        newest = highest.group_by(VersionRow.task).subquery()
        # The limit takes nothing away. It keeps SQLite from merging the two queries, in which case
        # it reads every version of a task to find one.
        default = and_(AliasRow.task == newest.c.task, AliasRow.alias == DEFAULT_ALIAS)
        chosen = (
            select(
                newest.c.task, func.coalesce(AliasRow.version, newest.c.version).label("version")
            )
            .outerjoin(AliasRow, default)
            .limit(MAX_VERSION)
            .subquery()
        )
        is_chosen = and_(VersionRow.task == chosen.c.task, VersionRow.version == chosen.c.version)
        return self._all(_VERSIONS.join(chosen, is_chosen).order_by(VersionRow.task))

    def all_versions(self, task: str | None = None) -> list[VersionRecord]:
        """Return every version of one task or of all, ordered by task and number."""
        query = _VERSIONS.order_by(VersionRow.task, VersionRow.version)
        return self._all(query if task is None else query.where(VersionRow.task == task))

    def version_numbers(self, task: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the numbers of the versions there are, ascending, of one task or of all."""
        # One row a task: rows cost more than the numbers in them.
        numbers = func.aggregate_strings(cast(VersionRow.version, String), ",")
        query = select(VersionRow.task, numbers).group_by(VersionRow.task)
        if task is not None:
            query = query.where(VersionRow.task == task)
        rows = self._connection.execute(query)
        with _damage_of("the numbers of the versions"):
            return {name: tuple(sorted(map(int, listed.split(",")))) for name, listed in rows}

    def has_version(self, task: str, version: int | None = None) -> bool:
        """Tell whether a task has this version, or any."""
        if version is not None and not 1 <= version <= MAX_VERSION:
            return False
        query = select(VersionRow.version).where(VersionRow.task == task).limit(1)
        if version is not None:
            query = query.where(VersionRow.version == version)
        return self._connection.execute(query).first() is not None

    def aliases(self, task: str | None = None) -> dict[str, dict[str, int]]:
        """Return where aliases point, by task and by alias, of one task or of all."""
        query = select(AliasRow.task, AliasRow.alias, AliasRow.version).order_by(AliasRow.alias)
        if task is not None:
            query = query.where(AliasRow.task == task)
        aliases: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, alias, version in self._connection.execute(query):
            aliases[name][alias] = version
        return dict(aliases)

    def history(self, task: str, alias: str) -> list[AliasEvent]:
        """Return every move of an alias, oldest first."""
        row = AliasEventRow
        query = (
            select(row.kind, row.from_version, row.to_version, row.at)
            .where(row.task == task, row.alias == alias)
            .order_by(row.id)
        )
        rows = self._connection.execute(query)
        with _damage_of(f"the history of alias {alias!r} of task {task!r}"):
            return [
                AliasEvent(
                    task=task,
                    alias=alias,
                    kind=AliasEventKind(kind),
                    from_version=from_version,
                    to_version=to_version,
                    at=datetime.fromisoformat(at),
                )
                for kind, from_version, to_version, at in rows
            ]

    def blob_digests(self, task: str | None = None, version: int | None = None) -> set[str]:
        """Return the digests of the blobs that versions refer to, narrowed as told."""
        query = select(BlobRow.digest)
        if task is not None:
            query = query.where(BlobRow.task == task)
        if version is not None:
            query = query.where(BlobRow.version == version)
        return set(self._connection.execute(query).scalars())

    def has_blob(self, digest: str) -> bool:
        """Tell whether any version refers to a blob."""
        query = select(BlobRow.digest).where(BlobRow.digest == digest).limit(1)
        return self._connection.execute(query).first() is not None

    def retired_since(self, digest: str) -> datetime | None:
        """Return when a blob lost its last reference, if a deletion took it."""
        query = select(RetiredBlobRow.at).where(RetiredBlobRow.digest == digest)
        at = self._connection.execute(query).scalar_one_or_none()
        with _damage_of(f"the time at which blob {digest[:12]}... retired"):
            return None if at is None else datetime.fromisoformat(at)

    def blob_references(self) -> dict[tuple[str, int], set[str]]:
        """Return the digests of the blobs of every version, as the index counts them."""
        references: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for task, version, digest in self._connection.execute(
            select(BlobRow.task, BlobRow.version, BlobRow.digest)
        ):
            references[task, version].add(digest)
        return dict(references)

    def integrity_problems(self) -> list[str]:
        """Return what the database itself finds wrong with its file, where it can tell."""
        if self._connection.dialect.name != "sqlite":
            return []
        rows = self._connection.exec_driver_sql("PRAGMA integrity_check").scalars()
        strays = self._connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        broken = [f"row {row[1]} of {row[0]} refers to no row of {row[2]}" for row in strays]
        return [str(row) for row in rows if row != "ok"] + broken

    def next_versions(self) -> dict[str, int]:
        """Return the number that each task gives out next."""
        rows = self._connection.execute(select(TaskRow.name, TaskRow.next_version))
        return {name: version for name, version in rows}  # noqa: C416 - rows are no tuples

    def _one(self, query: VersionQuery) -> VersionRecord | None:
        return next(iter(self._all(query)), None)

    def _all(self, query: VersionQuery) -> list[VersionRecord]:
        return [
            VersionRecord(
                task=task, version=version, manifest=manifest, manifest_digest=manifest_digest
            )
            for task, version, manifest, manifest_digest in self._connection.execute(query)
        ]


class Change(Snapshot):
    """Changes of the index, each raising its generation."""

    def take_version(self, task: str) -> int:
        """Return the task's next number, which is then never given out again."""
        query = select(TaskRow.next_version).where(TaskRow.name == task)
        version = self._connection.execute(query).scalar_one_or_none()
        if version is None:
            self._connection.execute(insert(TaskRow).values(name=task, next_version=2))
            return 1
        self._connection.execute(
            update(TaskRow).where(TaskRow.name == task).values(next_version=version + 1)
        )
        return version

    def add_version(self, manifest: TaskManifest, content_digest: str, at: datetime) -> None:
        """Record a version under a number that `take_version` gave."""
        document = manifest.model_dump_json()
        key = {"task": manifest.task, "version": manifest.version}
        self._connection.execute(
            insert(VersionRow).values(
                **key,
                content_digest=content_digest,
                manifest=document,
                manifest_digest=_digest_of(document),
                published_at=at.isoformat(),
            )
        )
        digests = sorted({blob.sha256 for blob in manifest.blobs})
        self._connection.execute(insert(BlobRow), [{**key, "digest": digest} for digest in digests])
        self.forget_retired(digests)
        raise_generation(self._connection)

    def move_alias(self, event: AliasEvent) -> None:
        """Let the alias point where the event says, and append the event to its history."""
        key = (AliasRow.task == event.task, AliasRow.alias == event.alias)
        if event.from_version is None:
            self._connection.execute(
                insert(AliasRow).values(
                    task=event.task, alias=event.alias, version=event.to_version
                )
            )
        else:
            self._connection.execute(update(AliasRow).where(*key).values(version=event.to_version))
        self._connection.execute(
            insert(AliasEventRow).values(
                task=event.task,
                alias=event.alias,
                kind=event.kind.value,
                from_version=event.from_version,
                to_version=event.to_version,
                at=event.at.isoformat(),
            )
        )
        raise_generation(self._connection)

    def remove_version(self, task: str, version: int, at: datetime) -> None:
        """Forget a version that no alias points to; blobs that were only its own retire."""
        digests = sorted(self.blob_digests(task, version))
        for row in (BlobRow, VersionRow):
            self._connection.execute(delete(row).where(row.task == task, row.version == version))
        retired = [digest for digest in digests if not self.has_blob(digest)]
        self.forget_retired(retired)
        if retired:
            self._connection.execute(
                insert(RetiredBlobRow),
                [{"digest": digest, "at": at.isoformat()} for digest in retired],
            )
        raise_generation(self._connection)

    def forget_retired(self, digests: Collection[str]) -> None:
        """Drop the notes on blobs that are referred to again, or gone."""
        self._connection.execute(
            delete(RetiredBlobRow).where(RetiredBlobRow.digest.in_(sorted(digests)))
        )


class Index:
    """Snapshots and changes of one database. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: URL) -> Self:
        """Connect to the database, creating its tables where there are none.

        Raises:
            StoreUnavailableError: unreachable, of another kind, or laid out by another release.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        """Close all idle connections."""
        self._database.close()

    @contextmanager
    def reading(self) -> Generator[Snapshot]:
        """Yield the index as of now."""
        with self._database.reading() as connection:
            yield Snapshot(connection)

    @contextmanager
    def writing(self) -> Generator[Change]:
        """Yield a change of the index; it is kept whole unless the body raises."""
        with self._database.writing() as connection:
            yield Change(connection)


_VERSIONS: VersionQuery = select(
    VersionRow.task, VersionRow.version, VersionRow.manifest, VersionRow.manifest_digest
)


def _alias_points_to_version() -> ColumnElement[bool]:
    return and_(AliasRow.task == VersionRow.task, AliasRow.version == VersionRow.version)


@contextmanager
def _damage_of(what: str) -> Generator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        # A column of SQLite holds whatever its bytes say, not what its type says.
        raise StoreUnavailableError(
            f"{what} in the index cannot be read: {error}; restore the index from a backup"
        ) from error


def _digest_of(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest()

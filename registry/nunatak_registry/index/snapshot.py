"""Reads of the index: a `Snapshot` answers every question from one read transaction."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import InstrumentedAttribute

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import (
    DEFAULT_ALIAS,
    MAX_VERSION,
    TaskReference,
    check_alias_name,
    check_task_name,
)
from nunatak_registry.aliases import (
    AliasEvent,
    Candidate,
    CandidateEvent,
    SharedTraffic,
    Traffic,
    check_expected,
    rollback_target,
)
from nunatak_registry.errors import InvalidManifestError, TaskNotFoundError, VersionNotFoundError
from nunatak_registry.index.records import DocumentRecord, VersionRecord, damage_of
from nunatak_registry.index.schema import (
    AliasEventRow,
    AliasRow,
    BlobRow,
    CandidateEventRow,
    CandidateRow,
    DocumentRow,
    HoldRow,
    ReplicaRow,
    RetiredBlobRow,
    StateRow,
    TaskRow,
    VersionRow,
    check_layout,
)

_MOST_KEYS: Final = 10_000
"""Most pairs in one query; SQLite takes 32,766 values."""

Record = TypeVar("Record", AliasEvent, Candidate, CandidateEvent)
Query: TypeAlias = "sa.Select[*tuple[Any, ...]]"


def _columns(record: type[VersionRecord | DocumentRecord], row: type[Any]) -> Query:
    return sa.select(*(getattr(row, it.name) for it in fields(record)))


_VERSIONS = _columns(VersionRecord, VersionRow)
# A pair of columns refers to itself, so one in each query would leave work to the collector.
# SQLite needs no lock of rows, because it has one writer at a time.
_EXISTING: Final = (
    sa.select(VersionRow.task, VersionRow.version)
    .where(sa.tuple_(VersionRow.task, VersionRow.version).in_(sa.bindparam("keys", expanding=True)))
    .with_for_update(read=True, key_share=True)
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A mark of the index's state, which no other state has. Holds do not change the mark."""

    number: int
    """A number that every change increases. After a restore the number is lower and repeats."""
    token: str
    """A random token, new with every change."""


class Snapshot:
    """Reads of the index, all at one moment.

    An optional `task` limits a question to one task. `find` and the methods named `require` raise
    `TaskNotFoundError`, `VersionNotFoundError` or `alias_not_found`, and `InvalidNameError`.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def generation(self) -> Generation:
        number, token, layout = self._connection.execute(
            sa.select(StateRow.generation, StateRow.token, StateRow.schema_version)
        ).one()
        check_layout(self._connection, layout)
        return Generation(number=number, token=token)

    def find(self, wanted: TaskReference) -> VersionRecord:
        task = wanted.task
        if wanted.alias is not None:
            target = sa.and_(
                AliasRow.task == VersionRow.task, AliasRow.version == VersionRow.version
            )
            own = AliasRow.task == task, AliasRow.alias == wanted.alias
            record = self._one(_VERSIONS.join(AliasRow, target).where(*own))
        elif wanted.version is not None:
            record = self.version(task, wanted.version)
        else:
            record = next(iter(self.default_versions(task)), None)
        if record is not None:
            return record
        available = self.require_versions(task)
        if wanted.alias is not None:
            self.require_alias(task, wanted.alias)
        raise VersionNotFoundError(task, wanted.version or 0, available)

    def traffic(self, wanted: TaskReference) -> Traffic:
        """Return the versions that run for a reference; with a version it has no candidates."""
        manifest = self.find(wanted).parse()
        if wanted.version is not None:
            return Traffic(manifest=manifest)
        alias = wanted.alias or DEFAULT_ALIAS
        shared = {
            it.role: self._shared(it) for it in self.candidates(wanted.task) if it.alias == alias
        }
        return Traffic(
            manifest=manifest,
            canary=shared.get(CandidateRole.CANARY),
            shadow=shared.get(CandidateRole.SHADOW),
        )

    def _shared(self, candidate: Candidate) -> SharedTraffic | None:
        record = self.version(candidate.task, candidate.version)
        manifest = record and record.readable()
        return SharedTraffic(manifest=manifest, share=candidate.share) if manifest else None

    def listed_tasks(self, task: str | None = None) -> Iterator[ListedTask | DamagedTask]:
        """Yield one task or all, ordered by name."""
        versions, aliases = self.version_numbers(task), self.aliases(task)
        candidates = defaultdict[str, list[Candidate]](list)
        for candidate in self.candidates(task):
            candidates[candidate.task].append(candidate)
        for record in self.default_versions(task):
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

    def listed_versions(self, task: str) -> list[ListedVersion]:
        """Return every version of a task, ascending."""
        aliases, candidates = self.aliases(task).get(task, {}), self.candidates(task)
        moves = [move for alias in aliases for move in self.history(task, alias)[-1:]]
        return [
            ListedVersion(
                version=record.version,
                published_at=record.moment,
                manifest=record.readable(),
                moves=tuple(it for it in moves if it.to_version == record.version),
                candidates=tuple(it for it in candidates if it.version == record.version),
            )
            for record in self.all_versions(task)
        ]

    def rollback(self, task: str, alias: str, expected_version: int | None) -> tuple[int, int]:
        available = self.require_versions(task)
        current = self.require_alias(task, alias)
        check_expected(expected_version, current, task=task, alias=alias)
        target = rollback_target(self.history(task, alias), available)
        if target is None:
            subject = f"alias {alias!r} of task {task!r}"
            raise NunatakError("no_previous_version", subject=subject)
        return current, target

    def require_versions(self, task: str) -> tuple[int, ...]:
        versions = self.version_numbers(check_task_name(task)).get(task)
        if versions is None:
            raise TaskNotFoundError(task)
        return versions

    def require_version(self, task: str, version: int) -> None:
        available = self.require_versions(task)
        if version not in available:
            raise VersionNotFoundError(task, version, available)

    def require_alias(self, task: str, alias: str) -> int:
        check_alias_name(alias)
        self.require_versions(task)
        aliases = self.aliases(task).get(task, {})
        if alias not in aliases:
            known = ", ".join(aliases) or "none"
            raise NunatakError("alias_not_found", task=task, alias=alias, known=known)
        return aliases[alias]

    def version(self, task: str, version: int) -> VersionRecord | None:
        if not 1 <= version <= MAX_VERSION:
            return None
        return self._one(_VERSIONS.where(VersionRow.task == task, VersionRow.version == version))

    def version_of_content(self, task: str, content_digest: str) -> VersionRecord | None:
        return self._one(
            _VERSIONS.where(VersionRow.task == task, VersionRow.content_digest == content_digest)
        )

    def default_versions(self, task: str | None = None) -> list[VersionRecord]:
        """Return the version that each bare name means, ordered by task."""
        if task is None:
            return self._all(_DEFAULT_VERSIONS)
        return self._all(_DEFAULT_VERSION_OF_TASK, {"task": task})

    def all_versions(self, task: str | None = None) -> list[VersionRecord]:
        query = _VERSIONS.where(*_only(VersionRow.task, task))
        return self._all(query.order_by(VersionRow.task, VersionRow.version))

    def version_numbers(self, task: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the numbers of the versions of each task, ascending."""
        # One row per task, because rows cost more than the numbers in them.
        numbers = sa.func.aggregate_strings(sa.cast(VersionRow.version, sa.String), ",")
        query = sa.select(VersionRow.task, numbers).where(*_only(VersionRow.task, task))
        rows = self._connection.execute(query.group_by(VersionRow.task))
        with damage_of("the numbers of the versions"):
            return {name: tuple(sorted(map(int, listed.split(",")))) for name, listed in rows}

    def names(self) -> tuple[str, ...]:
        query = sa.select(VersionRow.task).distinct().order_by(VersionRow.task)
        return tuple(self._connection.execute(query).scalars())

    def existing(self, versions: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return the versions that exist; in a change, nobody deletes them before its end."""
        found = set[tuple[str, int]]()
        wanted = sorted(versions)
        for begin in range(0, len(wanted), _MOST_KEYS):
            keys = {"keys": wanted[begin : begin + _MOST_KEYS]}
            rows = self._connection.execute(_EXISTING, keys)
            found.update((task, version) for task, version in rows)
        return found

    def aliases(self, task: str | None = None) -> dict[str, dict[str, int]]:
        query = sa.select(AliasRow.task, AliasRow.alias, AliasRow.version).order_by(AliasRow.alias)
        aliases: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, alias, version in self._connection.execute(
            query.where(*_only(AliasRow.task, task))
        ):
            aliases[name][alias] = version
        return dict(aliases)

    def history(self, task: str, alias: str) -> list[AliasEvent]:
        own = AliasEventRow.task == task, AliasEventRow.alias == alias
        query = sa.select(AliasEventRow.__table__).where(*own).order_by(AliasEventRow.id)
        return self._records(AliasEvent, query, f"the history of alias {alias!r} of task {task!r}")

    def candidates(self, task: str | None = None) -> list[Candidate]:
        row = CandidateRow
        query = sa.select(row.__table__).where(*_only(row.task, task))
        ordered = query.order_by(row.task, row.alias, row.role)
        return self._records(Candidate, ordered, "the candidates of the aliases")

    def candidate(self, task: str, alias: str, role: CandidateRole) -> Candidate | None:
        found = (it for it in self.candidates(task) if (it.alias, it.role) == (alias, role))
        return next(found, None)

    def candidate_history(
        self, task: str, alias: str, role: CandidateRole | None = None
    ) -> list[CandidateEvent]:
        """Return every change of the candidates of an alias, of one role or all, oldest first."""
        row = CandidateEventRow
        own = row.task == task, row.alias == alias, *_only(row.role, role and role.value)
        query = sa.select(row.__table__).where(*own).order_by(row.id)
        what = f"the candidates of alias {alias!r} of task {task!r}"
        return self._records(CandidateEvent, query, what)

    def blob_digests(self, task: str | None = None, version: int | None = None) -> set[str]:
        own = *_only(BlobRow.task, task), *_only(BlobRow.version, version)
        return set(self._connection.execute(sa.select(BlobRow.digest).where(*own)).scalars())

    def some_blobs(self) -> list[str]:
        """Return the digests of at most a hundred blobs, and of none only if there is none."""
        return list(self._connection.execute(sa.select(BlobRow.digest).limit(100)).scalars())

    def has_blob(self, digest: str) -> bool:
        query = sa.select(BlobRow.digest).where(BlobRow.digest == digest).limit(1)
        return self._connection.execute(query).first() is not None

    def retired_since(self, digest: str) -> datetime | None:
        """Return the time when a deletion took a blob's last reference; None if there was none."""
        query = sa.select(RetiredBlobRow.at).where(RetiredBlobRow.digest == digest)
        at = self._connection.execute(query).scalar_one_or_none()
        with damage_of(f"the time at which blob {digest[:12]}... retired"):
            return None if at is None else datetime.fromisoformat(at)

    def readers(self, task: str, version: int, now: datetime) -> tuple[str, ...]:
        own = HoldRow.task == task, HoldRow.version == version
        return tuple(it.reader for it in self._holds(own, now, f"who holds {task}/{version}"))

    def held(self, reader: str, now: datetime) -> set[tuple[str, int]]:
        rows = self._holds((HoldRow.reader == reader,), now, f"what {reader} holds")
        return {(it.task, it.version) for it in rows}

    def _holds(
        self, own: Sequence[sa.ColumnElement[bool]], now: datetime, what: str
    ) -> list[sa.Row[*tuple[Any, ...]]]:
        query = sa.select(*HoldRow.__table__.columns).where(*own).order_by(HoldRow.reader)
        with damage_of(what):
            rows = self._connection.execute(query)
            return [it for it in rows if datetime.fromisoformat(it.until) > now]

    def now(self, clock: Callable[[], datetime]) -> datetime:
        """Return the time: by PostgreSQL itself, or on SQLite by `clock`."""
        if self._connection.dialect.name != "postgresql":
            return clock()
        now = sa.select(sa.func.clock_timestamp())
        return self._connection.execute(now).scalar_one().astimezone(UTC)

    def replicas(self, now: float) -> Sequence[sa.Row[Any]]:
        """Return the rows of `ReplicaRow` whose lifetime has not ended, by id."""
        query = sa.select(ReplicaRow.__table__).where(ReplicaRow.until >= now)
        return self._connection.execute(query.order_by(ReplicaRow.id, ReplicaRow.key)).all()

    def blob_references(self) -> dict[tuple[str, int], set[str]]:
        references: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for task, version, digest in self._connection.execute(
            sa.select(BlobRow.task, BlobRow.version, BlobRow.digest)
        ):
            references[task, version].add(digest)
        return dict(references)

    def integrity_problems(self) -> list[str]:
        """Return the faults that SQLite finds in its file; none on PostgreSQL."""
        if self._connection.dialect.name != "sqlite":
            return []
        rows = self._connection.exec_driver_sql("PRAGMA integrity_check").scalars()
        strays = self._connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        broken = [f"row {row[1]} of {row[0]} refers to no row of {row[2]}" for row in strays]
        return [str(row) for row in rows if row != "ok"] + broken

    def next_versions(self, task: str | None = None) -> dict[str, int]:
        query = sa.select(TaskRow.name, TaskRow.next_version).where(*_only(TaskRow.name, task))
        return {name: version for name, version in self._connection.execute(query)}  # noqa: C416 - rows are no tuples

    def documents(self, row: type[DocumentRow], name: str | None = None) -> list[DocumentRecord]:
        query = _columns(DocumentRecord, row).where(*_only(row.name, name))
        ordered = query.order_by(row.name, row.version)
        # pyrefly: ignore[missing-argument, bad-unpacking] - the columns of the query
        return [DocumentRecord(**it) for it in self._connection.execute(ordered).mappings()]

    def _one(self, query: Query) -> VersionRecord | None:
        return next(iter(self._all(query)), None)

    def _all(self, query: Query, values: Mapping[str, str] | None = None) -> list[VersionRecord]:
        # pyrefly: ignore[missing-argument, bad-unpacking] - the columns of the query
        return [VersionRecord(**row) for row in self._connection.execute(query, values).mappings()]

    def _records(self, kind: type[Record], query: Query, what: str) -> list[Record]:
        rows = map(dict, self._connection.execute(query).mappings())
        with damage_of(what):
            return [_reader(kind).validate_python({"candidate": row, **row}) for row in rows]


def _only(
    column: InstrumentedAttribute[Any], value: str | int | None
) -> tuple[sa.ColumnElement[bool], ...]:
    """The condition that a column has this value; no condition for None."""
    return () if value is None else (column == value,)


@cache
def _reader(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)


def _default_versions(*is_wanted: sa.ColumnElement[bool]) -> Query:
    highest = sa.select(VersionRow.task, sa.func.max(VersionRow.version).label("version"))
    newest = highest.where(*is_wanted).group_by(VersionRow.task).subquery()
    # The limit removes no row. The limit stops SQLite from merging the two queries; the merged
    # query would read every version of a task to find one.
    default = sa.and_(AliasRow.task == newest.c.task, AliasRow.alias == DEFAULT_ALIAS)
    chosen = (
        sa.select(
            newest.c.task, sa.func.coalesce(AliasRow.version, newest.c.version).label("version")
        )
        .outerjoin(AliasRow, default)
        .limit(MAX_VERSION)
        .subquery()
    )
    is_chosen = sa.and_(VersionRow.task == chosen.c.task, VersionRow.version == chosen.c.version)
    return _VERSIONS.join(chosen, is_chosen).order_by(VersionRow.task)


# Built once, because a query with subqueries forms reference cycles, which a server collects
# rarely.
_DEFAULT_VERSIONS = _default_versions()
_DEFAULT_VERSION_OF_TASK = _default_versions(VersionRow.task == sa.bindparam("task"))

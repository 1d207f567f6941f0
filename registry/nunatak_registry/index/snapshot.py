"""Reads of the index: a `Snapshot` answers every question from one read transaction.

`summarize` gives the facts of each task for a list: versions, aliases, and the version of the bare
name.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    String,
    and_,
    bindparam,
    cast,
    extract,
    func,
    select,
    tuple_,
)

from nunatak_contract.enums import CandidateRole
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import DEFAULT_ALIAS, MAX_VERSION
from nunatak_registry.aliases import AliasEvent, Candidate, CandidateEvent
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.index.records import VersionRecord
from nunatak_registry.index.schema import (
    AliasEventRow,
    AliasRow,
    BlobRow,
    CandidateEventRow,
    CandidateRow,
    HoldRow,
    PolicyRow,
    ReplicaRow,
    RetiredBlobRow,
    StateRow,
    TaskRow,
    VersionRow,
)
from nunatak_registry.policies import PolicyRecord

_MOST_KEYS: Final = 10_000
"""Most pairs in one query; SQLite takes 32,766 values."""

Record = TypeVar("Record", AliasEvent, Candidate, CandidateEvent)
VersionQuery: TypeAlias = "Select[str, int, str, str]"
_VERSIONS: VersionQuery = select(
    VersionRow.task, VersionRow.version, VersionRow.manifest, VersionRow.manifest_digest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A mark of the index's state.

    No two states have the same mark. Holds of readers do not change the mark.
    """

    number: int
    """A number that every change increases. After a restore the number is lower and repeats."""
    token: str
    """A random token, new with every change."""


class Snapshot:
    """Reads of the index, all at one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def generation(self) -> Generation:
        """Return the generation, which changes with every change of the index."""
        number, token = self._connection.execute(select(StateRow.generation, StateRow.token)).one()
        return Generation(number=number, token=token)

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
        """Return the default versions of one task or of all, ordered by task."""
        if task is None:
            return self._all(_DEFAULT_VERSIONS)
        return self._all(_DEFAULT_VERSION_OF_TASK, {"task": task})

    def all_versions(self, task: str | None = None) -> list[VersionRecord]:
        """Return every version of one task or of all, ordered by task and number."""
        query = _VERSIONS.order_by(VersionRow.task, VersionRow.version)
        return self._all(query if task is None else query.where(VersionRow.task == task))

    def publication_times(self, task: str) -> dict[int, datetime]:
        """Return when each version of a task was published, by number."""
        query = select(VersionRow.version, VersionRow.published_at).where(VersionRow.task == task)
        rows = self._connection.execute(query)
        with _damage_of(f"the times of the versions of task {task!r}"):
            return {version: datetime.fromisoformat(at) for version, at in rows}

    def version_numbers(self, task: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the numbers of the versions, ascending, of one task or of all."""
        # One row per task, because rows cost more than the numbers in them.
        numbers = func.aggregate_strings(cast(VersionRow.version, String), ",")
        query = select(VersionRow.task, numbers).group_by(VersionRow.task)
        if task is not None:
            query = query.where(VersionRow.task == task)
        rows = self._connection.execute(query)
        with _damage_of("the numbers of the versions"):
            return {name: tuple(sorted(map(int, listed.split(",")))) for name, listed in rows}

    def has_version(self, task: str, version: int | None = None) -> bool:
        """Return whether a task has this version, or any version."""
        if version is not None and not 1 <= version <= MAX_VERSION:
            return False
        query = select(VersionRow.version).where(VersionRow.task == task).limit(1)
        if version is not None:
            query = query.where(VersionRow.version == version)
        return self._connection.execute(query).first() is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of the tasks that have a version, in order."""
        query = select(VersionRow.task).distinct().order_by(VersionRow.task)
        return tuple(self._connection.execute(query).scalars())

    def existing(self, versions: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return the versions that exist; in a change, nobody deletes them before its end."""
        key = tuple_(VersionRow.task, VersionRow.version)
        found = set[tuple[str, int]]()
        wanted = sorted(versions)
        for begin in range(0, len(wanted), _MOST_KEYS):
            query = select(VersionRow.task, VersionRow.version).where(
                key.in_(wanted[begin : begin + _MOST_KEYS])
            )
            # SQLite needs no lock of rows, because it has one writer at a time.
            rows = self._connection.execute(query.with_for_update(read=True, key_share=True))
            found.update((task, version) for task, version in rows)
        return found

    def aliases(self, task: str | None = None) -> dict[str, dict[str, int]]:
        """Return the versions of aliases, by task and by alias, of one task or of all."""
        query = select(AliasRow.task, AliasRow.alias, AliasRow.version).order_by(AliasRow.alias)
        if task is not None:
            query = query.where(AliasRow.task == task)
        aliases: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, alias, version in self._connection.execute(query):
            aliases[name][alias] = version
        return dict(aliases)

    def history(self, task: str, alias: str) -> list[AliasEvent]:
        """Return every move of an alias, oldest first."""
        own = AliasEventRow.task == task, AliasEventRow.alias == alias
        query = select(AliasEventRow.__table__).where(*own).order_by(AliasEventRow.id)
        return self._records(AliasEvent, query, f"the history of alias {alias!r} of task {task!r}")

    def candidates(self, task: str | None = None) -> list[Candidate]:
        """Return the candidates of one task or of all, by task, alias and role."""
        row = CandidateRow
        query = select(row.__table__).order_by(row.task, row.alias, row.role)
        if task is not None:
            query = query.where(row.task == task)
        return self._records(Candidate, query, "the candidates of the aliases")

    def candidate(self, task: str, alias: str, role: CandidateRole) -> Candidate | None:
        """Return the candidate of one role of an alias."""
        found = (it for it in self.candidates(task) if (it.alias, it.role) == (alias, role))
        return next(found, None)

    def candidate_history(
        self, task: str, alias: str, role: CandidateRole | None = None
    ) -> list[CandidateEvent]:
        """Return every change of the candidates of an alias, of one role or all."""
        row = CandidateEventRow
        query = select(row.__table__).where(row.task == task, row.alias == alias).order_by(row.id)
        if role is not None:
            query = query.where(row.role == role.value)
        what = f"the candidates of alias {alias!r} of task {task!r}"
        return self._records(CandidateEvent, query, what)

    def blob_digests(self, task: str | None = None, version: int | None = None) -> set[str]:
        """Return the digests of all blobs, or of the blobs of one task or version."""
        query = select(BlobRow.digest)
        if task is not None:
            query = query.where(BlobRow.task == task)
        if version is not None:
            query = query.where(BlobRow.version == version)
        return set(self._connection.execute(query).scalars())

    def some_blobs(self) -> list[str]:
        """Return the digests of at most a hundred blobs, and of none only if there is none."""
        return list(self._connection.execute(select(BlobRow.digest).limit(100)).scalars())

    def has_blob(self, digest: str) -> bool:
        """Return whether any version refers to a blob."""
        query = select(BlobRow.digest).where(BlobRow.digest == digest).limit(1)
        return self._connection.execute(query).first() is not None

    def retired_since(self, digest: str) -> datetime | None:
        """Return the time when a deletion took a blob's last reference; None if there was none."""
        query = select(RetiredBlobRow.at).where(RetiredBlobRow.digest == digest)
        at = self._connection.execute(query).scalar_one_or_none()
        with _damage_of(f"the time at which blob {digest[:12]}... retired"):
            return None if at is None else datetime.fromisoformat(at)

    def readers(self, task: str, version: int, now: datetime) -> tuple[str, ...]:
        """Return the readers that hold a version at this moment."""
        query = (
            select(HoldRow.reader, HoldRow.until)
            .where(HoldRow.task == task, HoldRow.version == version)
            .order_by(HoldRow.reader)
        )
        rows = self._connection.execute(query)
        with _damage_of(f"who holds {task}/{version}"):
            return tuple(reader for reader, until in rows if datetime.fromisoformat(until) > now)

    def held(self, reader: str, now: datetime) -> set[tuple[str, int]]:
        """Return the versions that a reader holds at this moment."""
        query = select(HoldRow.task, HoldRow.version, HoldRow.until).where(HoldRow.reader == reader)
        rows = self._connection.execute(query)
        with _damage_of(f"what {reader} holds"):
            return {
                (task, version)
                for task, version, until in rows
                if datetime.fromisoformat(until) > now
            }

    def seconds(self, clock: Callable[[], datetime]) -> float:
        """Return the seconds since the epoch: by PostgreSQL itself, or on SQLite by `clock`."""
        if self._connection.dialect.name != "postgresql":
            return clock().timestamp()
        now = select(extract("epoch", func.clock_timestamp()))
        return float(self._connection.execute(now).scalar_one())

    def replicas(self, now: float) -> Sequence[Row[Any]]:
        """Return the rows of `ReplicaRow` whose lifetime has not ended, by id."""
        query = select(*ReplicaRow.__table__.columns).where(ReplicaRow.until >= now)
        return self._connection.execute(query.order_by(ReplicaRow.id, ReplicaRow.key)).all()

    def blob_references(self) -> dict[tuple[str, int], set[str]]:
        """Return the digests of the blobs of every version, as the index counts them."""
        references: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for task, version, digest in self._connection.execute(
            select(BlobRow.task, BlobRow.version, BlobRow.digest)
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

    def next_versions(self) -> dict[str, int]:
        """Return the number that each task gives out next."""
        rows = self._connection.execute(select(TaskRow.name, TaskRow.next_version))
        return {name: version for name, version in rows}  # noqa: C416 - rows are no tuples

    def policies(self, name: str | None = None) -> list[PolicyRecord]:
        """Return every version of one policy or of all, ordered by name and number."""
        query = select(PolicyRow.__table__).order_by(PolicyRow.name, PolicyRow.version)
        if name is not None:
            query = query.where(PolicyRow.name == name)
        return [PolicyRecord(**row) for row in self._connection.execute(query).mappings()]

    def _one(self, query: VersionQuery) -> VersionRecord | None:
        return next(iter(self._all(query)), None)

    def _all(
        self, query: VersionQuery, values: Mapping[str, str] | None = None
    ) -> list[VersionRecord]:
        return [VersionRecord(**row) for row in self._connection.execute(query, values).mappings()]

    def _records(
        self, kind: type[Record], query: Select[*tuple[Any, ...]], what: str
    ) -> list[Record]:
        """Return the rows of a query as records, whose fields have the names of the columns."""
        rows = map(dict, self._connection.execute(query).mappings())
        with _damage_of(what):
            return [_reader(kind).validate_python({"candidate": row, **row}) for row in rows]


@cache
def _reader(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)


def _default_versions(*is_wanted: ColumnElement[bool]) -> VersionQuery:
    highest = select(VersionRow.task, func.max(VersionRow.version).label("version"))
    newest = highest.where(*is_wanted).group_by(VersionRow.task).subquery()
    # The limit removes no row. The limit stops SQLite from merging the two queries; the merged
    # query would read every version of a task to find one.
    default = and_(AliasRow.task == newest.c.task, AliasRow.alias == DEFAULT_ALIAS)
    chosen = (
        select(newest.c.task, func.coalesce(AliasRow.version, newest.c.version).label("version"))
        .outerjoin(AliasRow, default)
        .limit(MAX_VERSION)
        .subquery()
    )
    is_chosen = and_(VersionRow.task == chosen.c.task, VersionRow.version == chosen.c.version)
    return _VERSIONS.join(chosen, is_chosen).order_by(VersionRow.task)


# Built once, because a query with subqueries forms reference cycles, which a server collects
# rarely.
_DEFAULT_VERSIONS = _default_versions()
_DEFAULT_VERSION_OF_TASK = _default_versions(VersionRow.task == bindparam("task"))


def _alias_points_to_version() -> ColumnElement[bool]:
    return and_(AliasRow.task == VersionRow.task, AliasRow.version == VersionRow.version)


@contextmanager
def _damage_of(what: str) -> Generator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        # A column of SQLite may hold values of another type.
        raise StoreUnavailableError(
            f"{what} in the index cannot be read: {error}; restore the index from a backup"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
    """One task: its versions, ascending, its aliases, and the version of its bare name."""

    name: str
    versions: tuple[int, ...]
    aliases: dict[str, int]
    manifest: TaskManifest
    candidates: tuple[Candidate, ...] = ()
    """The candidates of its aliases."""

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

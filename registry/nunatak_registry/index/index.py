"""The index: task versions, aliases and documents in one of two database systems.

A `Snapshot` reads in one transaction, and a `Change` reads and writes in one.

Writers are serialized: on SQLite by BEGIN IMMEDIATE, on PostgreSQL by locking the state row.
Readers see one consistent snapshot and never wait for a lock of this package.

Another program may replace the file of a SQLite index while a process has it open, for example to
restore a backup. An open connection still uses the old file, even after the old file has lost its
name. So every transaction first compares the connection's file (`IndexFile`) with the file at the
path. If they differ, the transaction uses the new file.
"""

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_registry.blobs.blobs import BlobStore
from nunatak_registry.errors import StoreReadOnlyError, StoreUnavailableError
from nunatak_registry.index.change import Change
from nunatak_registry.index.schema import (
    SCHEMA_VERSION,
    Base,
    StateRow,
    check_layout,
    require_current,
)
from nunatak_registry.index.snapshot import Generation, Snapshot

Clock = Callable[[], datetime]
FileIdentity = tuple[int, int]
"""Device and inode. No other file can have the same pair while the file is open."""
BUSY_TIMEOUT_S = 10.0
# In older releases, the reset of a write-ahead log under load can corrupt the file
# (sqlite.org/wal.html, "the WAL-reset bug").
_FIRST_SAFE_WAL = (3, 51, 3)
# Without these, a connection to a machine that has gone waits for a quarter of an hour. The URL may
# choose other values (postgresql.org/docs/current/libpq-connect.html).
_LOST_PEER = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
_LAYOUT = sa.select(StateRow.schema_version)
# Far longer than any change holds the lock. Without a limit, a writer that is stopped in a change
# would let all others wait for ever.
_LONG_WAIT = sa.text("SET LOCAL lock_timeout = '60s'")
# Half of PostgreSQL's default time until it looks for deadlocks.
_SHORT_WAIT = sa.text("SET LOCAL lock_timeout = '500ms'")
# The value is arbitrary. Every opener of a new PostgreSQL index must take the same lock.
_CREATION_LOCK = 0x6E756E6174616B
# PostgreSQL's code for a change on a standby, or in a transaction that may only read.
_READ_ONLY_TRANSACTION = "25006"
# After one of these errors, the content of the disk is unknown. PostgreSQL stops by itself.
_FAILED_SYNCS = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class IndexFile:
    """One path, and the identity of the file at it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, url: sa.URL) -> Self:
        """Return the file that a URL names by its path."""
        database = url.database
        if database is None or database in {"", ":memory:"}:
            raise StoreUnavailableError("a SQLite index must be a file, got a database in memory")
        if database.startswith("file:"):
            raise StoreUnavailableError("a SQLite index must be named by its path, got a URI")
        return cls(Path(database).absolute())

    def create(self, missing: NunatakError | None) -> None:
        """Make an empty file if there is none; raise `missing`, if given, instead."""
        if self._path.exists():
            return
        if missing is not None:
            raise missing
        # SQLite itself creates the file: closing a file by other means would drop this process's
        # locks.
        with closing(sqlite3.connect(self._path)):
            pass

    def url(self, url: sa.URL) -> sa.URL:
        """Return a URL by which SQLite opens the file and never creates one."""
        named = url.set(database=self._path.as_uri())
        return named.update_query_dict({"mode": "rw", "uri": "true"})

    def identity(self) -> FileIdentity:
        """Return the identity of the file at the path now."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - takes a twentieth of the time of Path.stat
        except FileNotFoundError as error:
            raise StoreUnavailableError(
                "the file of the registry index is missing; put it back, or restore it from a "
                "backup"
            ) from error
        except OSError as error:
            raise StoreUnavailableError(
                f"the file of the registry index cannot be examined: {error.strerror}"
            ) from error
        return found.st_dev, found.st_ino


def journal_mode(sqlite_version: tuple[int, ...]) -> str:
    """Return the journal mode that is safe with this release of SQLite."""
    return "wal" if sqlite_version >= _FIRST_SAFE_WAL else "truncate"


class Index:
    """One engine, seen as a reader and as a writer. Threads may share the index.

    Every method raises `StoreUnavailableError` if the database or its file is out of reach.
    """

    def __init__(
        self, *, reader: sa.Engine, writer: sa.Engine, file: IndexFile | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._file = file
        """The file of the index; None if the index is not a file."""
        self._opened: FileIdentity | None = None if file is None else file.identity()
        self._following = threading.Lock()
        self._sync_failure: str | None = None
        self._marker: sa.PoolProxiedConnection | None = None
        self._marking = threading.Lock()
        self._seen: tuple[tuple[FileIdentity, int], Generation] | None = None

    @classmethod
    def open(cls, url: sa.URL, *, missing: NunatakError | None = None) -> Self:
        """Connect, and create missing tables; raise `missing`, if given, instead of creating them.

        Raises:
            StoreUnavailableError: the database is unreachable, of another kind, or of another
                layout.
        """
        with _refusals():
            reader, writer, file = _connect(url, missing)
            try:
                index = cls(reader=reader, writer=writer, file=file)
                _prepare(reader, writer, missing)
                _check_layout(reader)
            except BaseException:
                reader.dispose()
                raise
            return index

    def close(self) -> None:
        with self._marking:
            if self._marker is not None:
                self._marker.close()
                self._marker = None
        self._reader.dispose()

    @contextmanager
    def reading(self) -> Generator[Snapshot]:
        with _refusals():
            self._follow_file()
            with self._reader.connect() as connection, connection.begin():
                yield Snapshot(connection)

    def writing(self) -> AbstractContextManager[Change]:
        """Yield the change of the only writer, which is stored whole unless the body raises."""
        waits = () if self._is_sqlite else (_LONG_WAIT,)
        return self._changing(*waits, _LAYOUT.with_for_update())

    def noting(self) -> AbstractContextManager[Change]:
        """Yield a change of rows that only this process writes; commits like `writing`.

        On PostgreSQL the change neither waits for the writer nor delays it. It gives up before
        a restore by `pg_restore` could be found in a deadlock with it.
        """
        return self._changing(_LAYOUT if self._is_sqlite else _SHORT_WAIT)

    @property
    def _is_sqlite(self) -> bool:
        return self._writer.dialect.name == "sqlite"

    @contextmanager
    def _changing(self, *locks: sa.Executable) -> Generator[Change]:
        if self._sync_failure is not None:
            raise StoreReadOnlyError(self._sync_failure)
        with _refusals(), self._failed_sync_is_final():
            opened = self._follow_file()
            with self._writer.connect() as connection, connection.begin():
                for lock in locks:
                    state = connection.execute(lock)
                    if state.returns_rows:
                        check_layout(connection, state.scalar_one())
                self._require_file(opened)
                yield Change(connection)
            # A commit to a file without a name is lost.
            self._require_file(opened)

    def generation(self) -> Generation:
        """Return the generation; a repeated call is cheap while nothing was written."""
        # The mark is read first, so that the next call notices a change in between.
        mark, seen = self._mark(), self._seen
        if seen is not None and seen[0] == mark:
            return seen[1]
        with self.reading() as snapshot:
            generation = snapshot.generation()
        self._seen = None if mark is None else (mark, generation)
        return generation

    def _mark(self) -> tuple[FileIdentity, int] | None:
        """Return a value that changes with every commit, and with every other file at the path.

        None if the database offers nothing cheaper than a query. The value costs a twentieth of a
        transaction (sqlite.org/pragma.html#pragma_data_version).
        """
        with _refusals():
            opened = self._follow_file()
            return None if opened is None else (opened, self._data_version())

    def _data_version(self) -> int:
        with self._marking:
            # The number counts commits of other connections, so only this code may use this
            # connection.
            if self._marker is None:
                self._marker = self._reader.raw_connection()
                self._marker.detach()
            cursor = self._marker.cursor()
            try:
                cursor.execute("PRAGMA data_version")
                return int(next(iter(cursor.fetchall()))[0])
            finally:
                cursor.close()

    def _follow_file(self) -> FileIdentity | None:
        """Switch to the file at the path if it is another file; return its identity."""
        if self._file is None or self._file.identity() == self._opened:
            return self._opened
        with self._following:
            found = self._file.identity()
            if found != self._opened:
                self.close()
                _check_layout(self._reader)
                self._opened = found
            return self._opened

    def _require_file(self, opened: FileIdentity | None) -> None:
        if self._file is not None and self._file.identity() != opened:
            raise StoreUnavailableError(
                "the registry index was replaced during this change; the change is lost with the "
                "old index: repeat the change"
            )

    @contextmanager
    def _failed_sync_is_final(self) -> Generator[None]:
        try:
            yield
        except DBAPIError as error:
            if getattr(error.orig, "sqlite_errorcode", None) in _FAILED_SYNCS:
                self._sync_failure = "an fsync of the index failed"
                raise StoreReadOnlyError(self._sync_failure) from error
            raise


def _engines(url: sa.URL) -> tuple[sa.Engine, sa.Engine]:
    match url.get_backend_name():
        case "sqlite":
            engine = _sqlite_engine(url)
            return engine, engine.execution_options(begin_statement="BEGIN IMMEDIATE")
        case "postgresql":
            engine = _postgresql_engine(url)
            return (
                engine.execution_options(isolation_level="REPEATABLE READ"),
                engine.execution_options(isolation_level="READ COMMITTED"),
            )
        case backend:
            raise StoreUnavailableError(
                f"the index must be in sqlite or postgresql, got {backend!r}"
            )


@contextmanager
def writer_of(url: sa.URL, missing: NunatakError) -> Generator[sa.Engine]:
    """Yield the engine of a writer to an index of any layout; raise `missing` if there is none."""
    with _refusals():
        reader, writer, _ = _connect(url, missing)
        try:
            _prepare(reader, writer, missing)
            yield writer
        finally:
            writer.dispose()


def _connect(
    url: sa.URL, missing: NunatakError | None
) -> tuple[sa.Engine, sa.Engine, IndexFile | None]:
    file = IndexFile.of(url) if url.get_backend_name() == "sqlite" else None
    if file is not None:
        file.create(missing)
    return *_engines(url if file is None else file.url(url)), file


def _prepare(reader: sa.Engine, writer: sa.Engine, missing: NunatakError | None) -> None:
    with reader.connect() as connection, connection.begin():
        is_new = not sa.inspect(connection).has_table(StateRow.__tablename__)
    if is_new:
        if missing is not None:
            raise missing
        _create_tables(writer)


def _create_tables(writer: sa.Engine) -> None:
    with writer.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _CREATION_LOCK}
            )
        # Another process may have created the tables. Under the lock, they are complete.
        Base.metadata.create_all(connection)
        if connection.execute(sa.select(StateRow.id)).first() is None:
            connection.execute(
                sa.insert(StateRow).values(
                    id=1, schema_version=SCHEMA_VERSION, generation=0, token=secrets.token_hex(16)
                )
            )


def _check_layout(reader: sa.Engine) -> None:
    with reader.connect() as connection, connection.begin():
        require_current(connection)


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    # The driver must not begin transactions by itself. It would begin every transaction as a
    # reader, and a reader that becomes a writer can fail at once instead of waiting.
    engine = sa.create_engine(
        url, connect_args={"isolation_level": None, "timeout": BUSY_TIMEOUT_S}
    )
    mode = journal_mode(sqlite3.sqlite_version_info)

    def configure(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        # Mode "delete" with FULL does not sync the folder after the journal is removed. A power
        # loss could restore the journal, which would undo an acknowledged commit. EXTRA syncs the
        # folder, and mode "truncate" syncs the emptied journal.
        cursor.execute("PRAGMA synchronous = EXTRA")
        cursor.execute(f"PRAGMA journal_mode = {mode}")
        found = str(next(iter(cursor.fetchall()))[0])
        cursor.close()
        # Without shared memory in the file system, SQLite stays with "delete", which is safe
        # everywhere.
        if found not in {mode, "delete"}:
            raise StoreUnavailableError(
                f"the SQLite index must use journal mode {mode!r}, it stays at {found!r}; "
                "close every other process that uses it and open it again"
            )

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(
            connection.get_execution_options().get("begin_statement", "BEGIN")
        )

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    chosen = {name: it for name, it in _LOST_PEER.items() if name not in url.query}
    with needs_extra("postgres"):
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=chosen)
    event.listen(engine, "handle_error", _leave_standby)
    return engine


def _leave_standby(context: ExceptionContext) -> None:
    # During a failover, the name of the database can lead to a standby: later calls connect again.
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY_TRANSACTION:
        context.is_disconnect = True


@contextmanager
def _refusals() -> Generator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        # The driver's text names host, user and reason. SQLAlchemy's text would add statements and
        # values.
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
        if getattr(cause, "sqlstate", None) == _READ_ONLY_TRANSACTION:
            raise StoreReadOnlyError(
                "the database of the index is read-only, as a standby is",
                "name the primary database as the registry, or make this one writable",
            ) from error
        match getattr(cause, "sqlite_errorcode", 0):
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_READONLY_DIRECTORY:
                raise StoreReadOnlyError(
                    "the file of the index is on a read-only disk, or may not be written",
                    "allow writing there, or copy the registry (`nunatak registry copy`)",
                ) from error
            case sqlite3.SQLITE_READONLY_ROLLBACK | sqlite3.SQLITE_READONLY_RECOVERY:
                reason += (
                    "; a process was killed during a change, which must be taken back before a "
                    "read: run `nunatak task list` as a user who may write there"
                )
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                reason += "; it is damaged, restore it from a backup"
            case sqlite3.SQLITE_FULL:
                reason += "; make room on the disk of the index, and repeat the change"
            case _:
                pass
        raise StoreUnavailableError(f"the registry index refused: {reason}") from error
    except UnicodeDecodeError as error:
        # SQLite's message quotes the damaged bytes, which the driver cannot decode.
        raise StoreUnavailableError(
            "the registry index refused: it is damaged; restore it from a backup"
        ) from error


class Store:
    """The index, the blobs and the clock of one registry, which threads and processes share."""

    def __init__(self, *, index: Index, blobs: BlobStore, clock: Clock) -> None:
        self._index = index
        self._blobs = blobs
        self._clock = clock

    @contextmanager
    def _writing(self) -> Generator[Change]:
        with self._index.writing() as change:
            self._blobs.check_writable()
            yield change

    def _check_place(self, snapshot: Snapshot, digests: Collection[str]) -> None:
        """Refuse to write blobs to a place without the blobs that this registry has already.

        The volume of the blobs is perhaps not mounted, and the written blobs would disappear below
        it. A registry without versions may write anywhere, and known blobs may be written again.
        """
        known = snapshot.some_blobs()
        if not known or (
            self._blobs.has_folder()
            and (any(map(snapshot.has_blob, digests)) or any(map(self._blobs.exists, known)))
        ):
            return
        raise StoreUnavailableError(
            "the root of the blobs holds none of the blobs of this registry, so nothing was "
            "written: mount its volume, correct its address, or restore the blobs; if all are "
            "lost, make an empty folder 'sha256' in the root and publish the same content again"
        )

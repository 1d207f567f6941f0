"""Upgrades of an index from an older layout, one step of Alembic after another.

A step names its tables itself, because `schema` describes only the newest layout.

Each step is one transaction, which also changes the number of the layout in the state row. The
first transaction copies the index to a file and makes the number negative, so no release opens the
index before the last transaction. An upgrade after a kill begins with the step that was cut short.
"""

import hashlib
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.exc import DBAPIError

from nunatak_contract.errors import NunatakError
from nunatak_registry.blobs.files import sync_folder
from nunatak_registry.errors import StoreUnavailableError
from nunatak_registry.index.change import raise_generation
from nunatak_registry.index.index import Index, writer_of
from nunatak_registry.index.schema import SCHEMA_VERSION, STEPS, HoldRow, StateRow, layout_of
from nunatak_registry.locations import parse_location

_ROWS = 1000
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    found: str
    """The layout before."""
    layout: str
    steps: tuple[str, ...]
    """The layouts that were reached, in order; empty if there was nothing to do."""
    backup: Path | None
    """The copy of the index as it was; None if no upgrade began."""
    num_versions: int
    unreadable: tuple[str, ...]
    """References of the versions whose manifests this release cannot read."""


def upgrade(
    location: str | Path, *, folder: Path | None = None, now: datetime | None = None, tell: Told
) -> Upgraded:
    """Bring an index to the layout of this release, after a copy of it into `folder`.

    Without `folder`, the copy lies next to a SQLite index, or in the current folder. `tell` gets a
    line for each step. Holds that end before `now` do not count.

    Raises:
        NunatakError: `registry_missing`; or `registry_in_use`, a server of the older release runs.
        StoreUnavailableError: the layout is unknown, or index or copy cannot be written.
    """
    url, missing = _place(location)
    beside = Path(url.database or "").parent if url.get_backend_name() == "sqlite" else Path()
    with writer_of(url, missing) as writer:
        with _locked(writer) as (connection, found):
            backup = None
            if 0 < found < SCHEMA_VERSION:
                _require_no_readers(connection, now)
                backup = _back_up(connection, found, folder or beside)
                tell(f"the index as it was: {backup}")
                _note(connection, -found)
        steps = tuple(_steps(writer, tell))
    return _outcome(url, found, steps, backup)


def rehearse(
    location: str | Path, *, folder: Path | None = None, now: datetime | None = None, tell: Told
) -> Upgraded:
    """Upgrade a copy of an index in `folder`, and remove the copy; all else is as in `upgrade`."""
    url, missing = _place(location)
    with _copying(folder or Path(tempfile.gettempdir())):
        made = tempfile.TemporaryDirectory(dir=folder)
    with made as scratch:
        with writer_of(url, missing) as writer, _locked(writer) as (connection, found):
            if 0 < found < SCHEMA_VERSION:
                _require_no_readers(connection, now)
            copy = sa.URL.create("sqlite", database=str(_back_up(connection, found, Path(scratch))))
        with writer_of(copy, missing) as writer:
            steps = tuple(_steps(writer, tell))
        return _outcome(copy, found, steps, None)


def _place(location: str | Path) -> tuple[sa.URL, NunatakError]:
    place = parse_location(location)
    return place.index_url, NunatakError("registry_missing", location=place.shown)


@contextmanager
def _locked(writer: sa.Engine) -> Generator[tuple[sa.Connection, int]]:
    """Yield the connection of the only writer, and the number that the writer found."""
    with writer.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # A lock of the row would end in a deadlock with writers that wait for the row, as soon
            # as a step changes the table.
            connection.execute(sa.text("LOCK TABLE nunatak_state IN EXCLUSIVE MODE"))
        yield connection, layout_of(connection)


def _steps(writer: sa.Engine, tell: Told) -> Iterator[str]:
    while True:
        with _locked(writer) as (connection, found):
            number = abs(found)
            if number == SCHEMA_VERSION:
                if found < 0:
                    _note(connection, SCHEMA_VERSION)
                    raise_generation(connection)
                return
            step = STEPS[number + 1]
            with Operations.context(MigrationContext.configure(connection)):
                step()
            _note(connection, -number - 1)
        tell(f"layout {number} -> {number + 1}: {step.__doc__}")
        yield str(number + 1)


def _note(connection: sa.Connection, number: int) -> None:
    connection.execute(sa.update(StateRow).values(schema_version=number))


def _require_no_readers(connection: sa.Connection, now: datetime | None) -> None:
    now = now or datetime.now(UTC)
    holds = connection.execute(sa.select(HoldRow.reader, HoldRow.until)).all()
    readers = sorted({it.reader for it in holds if datetime.fromisoformat(it.until) > now})
    if readers:
        raise NunatakError("registry_in_use", readers=", ".join(readers))


def _back_up(connection: sa.Connection, found: int, folder: Path) -> Path:
    """Write a copy of the index, as a SQLite index of its layout, and return the file.

    The name has a digest of the bytes, so no copy takes the place of another.
    """
    name = f"index-layout-{abs(found)}"
    unfinished = folder / f"{name}-{secrets.token_hex(4)}.unfinished"
    with _copying(folder), ExitStack() as cleanup:
        cleanup.callback(unfinished.unlink, missing_ok=True)
        unfinished.write_bytes(b"")
        if connection.dialect.name == "sqlite":
            # A connection that writes cannot be the source; another one may read meanwhile.
            with (
                closing(connection.engine.raw_connection()) as reader,
                closing(sqlite3.connect(unfinished)) as copy,
            ):
                cast("sqlite3.Connection", reader.driver_connection).backup(copy)
        else:
            _copy_rows(connection, unfinished)
        with unfinished.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        made = unfinished.replace(folder / f"{name}-{digest[:12]}.sqlite3")
        sync_folder(folder)
    return made


@contextmanager
def _copying(folder: Path) -> Generator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, DBAPIError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "orig", None) or error
        raise StoreUnavailableError(
            f"the copy of the index cannot be made in {folder}: {reason}; nothing is changed. Make "
            "room, or name another folder with --backup"
        ) from error


def _copy_rows(source: sa.Connection, target: Path) -> None:
    tables = sa.MetaData()
    tables.reflect(source, only=lambda name, _: name.startswith("nunatak_"))
    for table in tables.sorted_tables:
        for column in table.columns:
            column.server_default = None
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(target)))
    try:
        with engine.begin() as copy:
            tables.create_all(copy)
            for table in tables.sorted_tables:
                for rows in source.execute(sa.select(table)).mappings().partitions(_ROWS):
                    copy.execute(sa.insert(table), [dict(row) for row in rows])  # pyrefly: ignore[no-matching-overload] - names of columns
    finally:
        engine.dispose()


def _outcome(url: sa.URL, found: int, steps: tuple[str, ...], backup: Path | None) -> Upgraded:
    with closing(Index.open(url)) as index, index.reading() as snapshot:
        records = snapshot.all_versions()
    return Upgraded(
        found=str(abs(found)),
        layout=str(SCHEMA_VERSION),
        steps=steps,
        backup=backup,
        num_versions=len(records),
        unreadable=tuple(it.reference for it in records if it.readable() is None),
    )

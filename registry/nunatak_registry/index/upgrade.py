"""Upgrades of an index from an older layout, by the revisions of Alembic in `migrations`.

Each step is one transaction, which also changes the number of the layout in the state row. The
first transaction copies the index to a file and makes the number negative, so no release opens the
index before the last transaction. An upgrade after a kill begins with the step that was cut short.
"""

import hashlib
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    create_engine,
    insert,
    inspect,
    select,
    text,
    update,
)

from nunatak_contract.errors import NunatakError
from nunatak_registry.blobs.files import sync_folder
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.index.database import raise_generation, writer_of
from nunatak_registry.index.index import Index
from nunatak_registry.index.layouts import LAYOUTS, IndexLayout, layout_of
from nunatak_registry.index.schema import HoldRow, StateRow
from nunatak_registry.locations import parse_location

_REVISIONS = Path(__file__).parent / "migrations"
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
    with writer_of(url, missing) as writer:
        with _locked(writer) as (connection, found):
            backup = None
            if not (found.is_current or found.is_upgrading):
                _require_no_readers(connection, now)
                backup = _back_up(connection, found, folder or _folder_of(url))
                tell(f"the index as it was: {backup}")
                _note(connection, IndexLayout(name=found.name, is_upgrading=True))
        steps = tuple(_steps(writer, tell))
    return _outcome(url, found, steps, backup)


def rehearse(
    location: str | Path, *, folder: Path | None = None, now: datetime | None = None, tell: Told
) -> Upgraded:
    """Upgrade a copy of an index in `folder`, and remove the copy; all else is as in `upgrade`."""
    url, missing = _place(location)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with writer_of(url, missing) as writer, _locked(writer) as (connection, found):
            if not (found.is_current or found.is_upgrading):
                _require_no_readers(connection, now)
            copy = URL.create("sqlite", database=str(_back_up(connection, found, Path(scratch))))
        with writer_of(copy, missing) as writer:
            steps = tuple(_steps(writer, tell))
        return _outcome(copy, found, steps, None)


def _place(location: str | Path) -> tuple[URL, NunatakError]:
    place = parse_location(location)
    return place.index_url, NunatakError("registry_missing", location=place.shown)


def _folder_of(url: URL) -> Path:
    return Path(url.database or "").parent if url.get_backend_name() == "sqlite" else Path()


@contextmanager
def _locked(writer: Engine) -> Generator[tuple[Connection, IndexLayout]]:
    """Yield the connection of the only writer, and the layout that the writer found."""
    with writer.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # A lock of the row would end in a deadlock with writers that wait for the row, as soon
            # as a step changes the table.
            connection.execute(text("LOCK TABLE nunatak_state IN EXCLUSIVE MODE"))
        found = layout_of(connection)
        found.require_known()
        yield connection, found


def _steps(writer: Engine, tell: Told) -> Iterator[str]:
    while True:
        with _locked(writer) as (connection, found):
            step = next(iter(_revisions(found)), None)
            if step is None:
                if found.is_upgrading:
                    _note(connection, IndexLayout(name=found.name))
                    raise_generation(connection)
                return
            with Operations.context(MigrationContext.configure(connection)):
                step.module.upgrade()
            _note(connection, IndexLayout(name=step.revision, is_upgrading=True))
        tell(f"layout {found.name} -> {step.revision}: {step.doc}")
        yield step.revision


def _revisions(found: IndexLayout) -> Sequence[Script]:
    """Return the revisions that bring a layout to the newest, oldest first."""
    scripts = ScriptDirectory(_REVISIONS, version_locations=[_REVISIONS])
    lower = "base" if found.name == LAYOUTS[0] else found.name
    return [*scripts.iterate_revisions(LAYOUTS[-1], lower)][::-1]


def _note(connection: Connection, layout: IndexLayout) -> None:
    connection.execute(update(StateRow).values(schema_version=layout.number))


def _require_no_readers(connection: Connection, now: datetime | None) -> None:
    now = now or datetime.now(UTC)
    if not inspect(connection).has_table(HoldRow.__tablename__):
        return
    holds = connection.execute(select(HoldRow.reader, HoldRow.until)).all()
    readers = sorted({it.reader for it in holds if datetime.fromisoformat(it.until) > now})
    if readers:
        raise NunatakError("registry_in_use", readers=", ".join(readers))


def _back_up(connection: Connection, found: IndexLayout, folder: Path) -> Path:
    """Write a copy of the index, as a SQLite index of its layout, and return the file.

    The name has a digest of the bytes, so no copy takes the place of another.
    """
    unfinished = folder / f"index-layout-{found.name}-{secrets.token_hex(4)}.unfinished"
    try:
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
        made = unfinished.replace(folder / f"index-layout-{found.name}-{digest[:12]}.sqlite3")
        sync_folder(folder)
    except OSError as error:
        raise StoreUnavailableError(
            f"the copy of the index cannot be written to {folder}: {error.strerror}; nothing is "
            "changed. Name another folder with --backup"
        ) from error
    return made


def _copy_rows(source: Connection, target: Path) -> None:
    tables = MetaData()
    tables.reflect(source, only=lambda name, _: name.startswith("nunatak_"))
    for table in tables.sorted_tables:
        for column in table.columns:
            column.server_default = None
    engine = create_engine(URL.create("sqlite", database=str(target)))
    try:
        with engine.begin() as copy:
            tables.create_all(copy)
            for table in tables.sorted_tables:
                for rows in source.execute(select(table)).mappings().partitions(_ROWS):
                    copy.execute(insert(table), [dict(row) for row in rows])
    finally:
        engine.dispose()


def _outcome(url: URL, found: IndexLayout, steps: tuple[str, ...], backup: Path | None) -> Upgraded:
    with closing(Index.open(url)) as index, index.reading() as snapshot:
        records = snapshot.all_versions()
    unreadable = list[str]()
    for record in records:
        try:
            record.parse()
        except InvalidManifestError:
            unreadable.append(record.reference)
    return Upgraded(
        found=found.name,
        layout=LAYOUTS[-1],
        steps=steps,
        backup=backup,
        num_versions=len(records),
        unreadable=tuple(unreadable),
    )

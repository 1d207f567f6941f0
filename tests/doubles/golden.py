"""The registry of the first layout, as its own code made it (`tests/golden_registries`).

There is no older layout, so the tests invent two of them, with a step from each.
"""

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Final

from alembic import op
from sqlalchemy import (
    URL,
    Column,
    Engine,
    String,
    create_engine,
    inspect,
    make_url,
    select,
    table,
    text,
)

from doubles.postgres import PostgresServer
from nunatak_registry.index.schema import ReplicaRow
from nunatak_registry.locations import parse_location

SET_LAYOUT: Final = "UPDATE nunatak_state SET schema_version = "
GOLDEN: Final = Path(__file__).parent.parent / "golden_registries"
FIRST: Final = "3"
UNDONE: Final = {
    "2": "DROP TABLE nunatak_replicas;",
    "1": 'DROP TABLE nunatak_replicas; ALTER TABLE nunatak_alias_events DROP COLUMN "by";',
}
"""What makes the first released layout one of the two invented ones."""
OLDER: Final = ("1", "2")
_EVENTS = ("nunatak_alias_events", "nunatak_candidate_events")

Rows = dict[str, list[dict[str, Any]]]
"""All rows, by table."""


def add_actors() -> None:
    """The history of aliases says by whom."""
    kind = String(200)
    op.add_column(_EVENTS[0], Column("by", kind, nullable=False, server_default="unknown"))
    with op.batch_alter_table(_EVENTS[0]) as changed:
        changed.alter_column("by", existing_type=kind, server_default=None)


def add_replicas() -> None:
    ReplicaRow.metadata.tables[ReplicaRow.__tablename__].create(op.get_bind())


OLDER_STEPS: Final = {2: add_actors, 3: add_replicas}
"""The steps of the invented layouts, for `nunatak_registry.index.schema.STEPS`."""


def put_in_folder(layout: str, folder: Path) -> str:
    """Make a registry with a SQLite index, and return its location."""
    _put_blobs(folder)
    with closing(sqlite3.connect(folder / "index.sqlite3")) as connection:
        connection.executescript(
            f"PRAGMA synchronous = OFF; BEGIN; {_script(layout, 'sqlite')} COMMIT"
        )
    return str(folder)


def put_in_postgres(layout: str, server: PostgresServer, folder: Path) -> str:
    """Make a registry with an index in PostgreSQL, in place of the one before it."""
    _put_blobs(folder)
    location = f"{_database_of(server)}&blobs={folder / 'blobs'}"
    engine = engine_of(location)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.exec_driver_sql(_script(layout, "postgresql").replace("%", "%%"))
        for events in _EVENTS:
            connection.exec_driver_sql(
                f"SELECT setval('{events}_id_seq', (SELECT max(id) FROM {events}))"  # noqa: S608 - a constant
            )
    engine.dispose()
    return location


def engine_of(location: str) -> Engine:
    """Return an engine of the index, without the rules of the registry."""
    url = parse_location(location).index_url
    return create_engine(make_url(url) if url.get_backend_name() == "postgresql" else _plain(url))


def rows_of(location: str) -> Rows:
    """Return every row of the index, in a stable order."""
    engine = engine_of(location)
    with engine.connect() as connection:
        found: Rows = {
            name: [
                dict(row)
                for row in connection.execute(select(text("*")).select_from(table(name))).mappings()
            ]
            for name in inspect(connection).get_table_names()
        }
    engine.dispose()
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def lost_rows(before: Rows, after: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return what of `before` is missing or different in `after`, except the state row."""
    problems = list[str]()
    for name, rows in before.items():
        if name == "nunatak_state":
            continue
        kept = [
            {column: it.get(column) for column in (rows[0] if rows else {})}
            for it in after.get(name, [])
        ]
        if sorted(map(repr, rows)) != sorted(map(repr, kept)):
            problems.append(f"{name}: {rows} became {kept}")
    return problems


@cache
def _database_of(server: PostgresServer) -> str:
    return server.create_database()


def _plain(url: URL) -> URL:
    return URL.create("sqlite", database=url.database)


def _script(layout: str, dialect: str) -> str:
    folder = GOLDEN / FIRST
    made = "".join((folder / f"{it}.sql").read_text() for it in (dialect, "rows"))
    if layout in UNDONE:
        made += f"{UNDONE[layout]} {SET_LAYOUT}{layout};"
    return made


def _put_blobs(folder: Path) -> None:
    for blob in (GOLDEN / "blobs").iterdir():
        place = folder / "blobs" / "sha256" / blob.name[:2] / blob.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(blob, place)

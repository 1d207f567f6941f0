"""Migrations: the tables of an earlier release become the tables of this release, step by step.

Each step runs with alembic's operations inside the write transaction that also records the new
schema version, so an upgrade that is cut short leaves the old layout.
"""

from collections.abc import Callable, Mapping

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    Column,
    Connection,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    String,
    update,
)

from nunatak_registry.index.schema import SCHEMA_VERSION, StateRow

Step = Callable[[Operations], None]


def upgrade(connection: Connection, found: int) -> None:
    """Bring the tables from schema version `found` to this release's, within the transaction."""
    operations = Operations(MigrationContext.configure(connection))
    for version in range(found + 1, SCHEMA_VERSION + 1):
        _STEPS[version](operations)
    connection.execute(update(StateRow).values(schema_version=SCHEMA_VERSION))


def _add_retired_blobs(operations: Operations) -> None:
    operations.create_table(
        "nunatak_retired_blobs",
        Column("digest", String(64), primary_key=True),
        Column("at", String(40), nullable=False),
    )


def _add_holds(operations: Operations) -> None:
    operations.create_table(
        "nunatak_holds",
        Column("reader", String(200), primary_key=True),
        Column("task", String(64), primary_key=True),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("until", String(40), nullable=False),
        ForeignKeyConstraint(
            ["task", "version"], ["nunatak_versions.task", "nunatak_versions.version"]
        ),
    )


def _add_candidates(operations: Operations) -> None:
    operations.create_table(
        "nunatak_candidates",
        Column("task", String(64), primary_key=True),
        Column("alias", String(64), primary_key=True),
        Column("role", String(16), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("share", Double, nullable=False),
        ForeignKeyConstraint(
            ["task", "version"], ["nunatak_versions.task", "nunatak_versions.version"]
        ),
        ForeignKeyConstraint(["task", "alias"], ["nunatak_aliases.task", "nunatak_aliases.alias"]),
    )
    operations.create_table(
        "nunatak_candidate_events",
        Column("id", Integer, primary_key=True),
        Column("task", String(64), ForeignKey("nunatak_tasks.name"), nullable=False, index=True),
        Column("alias", String(64), nullable=False),
        Column("role", String(16), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("version", Integer, nullable=False),
        Column("share", Double, nullable=False),
        Column("at", String(40), nullable=False),
    )


def _add_token(operations: Operations) -> None:
    token = Column("token", String(32), nullable=False, server_default="")
    operations.add_column("nunatak_state", token)


# The tables are spelled out, not taken from `schema`: that describes the newest release alone.
_STEPS: Mapping[int, Step] = {
    2: _add_retired_blobs,
    3: _add_holds,
    4: _add_candidates,
    5: _add_token,
}

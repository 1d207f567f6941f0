"""Migrations: from the tables of an earlier release to those of this one, step by step.

Each step runs with alembic's operations inside the write transaction that also records the new
schema version, so an upgrade that is cut short leaves the old layout.
"""

from collections.abc import Callable, Mapping

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, ForeignKeyConstraint, Integer, String, update

from nunatak_registry.schema import SCHEMA_VERSION, StateRow

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


# The tables are spelled out, not taken from `schema`: that describes the newest release alone.
_STEPS: Mapping[int, Step] = {2: _add_retired_blobs, 3: _add_holds}

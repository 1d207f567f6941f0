"""A table of the versions that readers hold."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "early_3", "early_2"


def upgrade() -> None:
    op.create_table(
        "nunatak_holds",
        sa.Column("reader", sa.String(200), primary_key=True),
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("until", sa.String(40), nullable=False),
        sa.ForeignKeyConstraint(
            ["task", "version"], ["nunatak_versions.task", "nunatak_versions.version"]
        ),
    )

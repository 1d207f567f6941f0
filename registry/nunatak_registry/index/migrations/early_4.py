"""Tables of canaries and shadows, and of their changes."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "early_4", "early_3"


def upgrade() -> None:
    op.create_table(
        "nunatak_candidates",
        sa.Column("task", sa.String(64), primary_key=True),
        sa.Column("alias", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["task", "version"], ["nunatak_versions.task", "nunatak_versions.version"]
        ),
        sa.ForeignKeyConstraint(
            ["task", "alias"], ["nunatak_aliases.task", "nunatak_aliases.alias"]
        ),
    )
    op.create_table(
        "nunatak_candidate_events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("task", sa.String(64), sa.ForeignKey("nunatak_tasks.name"), nullable=False),
        sa.Column("alias", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
    )
    op.create_index("ix_nunatak_candidate_events_task", "nunatak_candidate_events", ["task"])

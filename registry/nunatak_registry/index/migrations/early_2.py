"""A table of blobs that a deletion left unused."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "early_2", None


def upgrade() -> None:
    op.create_table(
        "nunatak_retired_blobs",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("at", sa.String(40), nullable=False),
    )

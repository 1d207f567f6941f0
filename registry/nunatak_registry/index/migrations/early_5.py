"""A token in the state row, by which a restored index is told from the one before it."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "early_5", "early_4"


def upgrade() -> None:
    op.add_column(
        "nunatak_state", sa.Column("token", sa.String(32), nullable=False, server_default="")
    )

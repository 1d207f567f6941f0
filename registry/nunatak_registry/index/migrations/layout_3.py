"""Tables of policies, of question cards, and of the server processes."""

import sqlalchemy as sa
from alembic import op


def upgrade() -> None:
    for name in ("nunatak_policies", "nunatak_questions"):
        op.create_table(
            name,
            sa.Column("name", sa.String(64), primary_key=True),
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("document", sa.Text, nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
            sa.Column("published_at", sa.String(40), nullable=False),
            sa.Column("by", sa.String(200), nullable=False),
        )
    op.create_table(
        "nunatak_replicas",
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("address", sa.String(200), nullable=False),
        sa.Column("release", sa.String(64), nullable=False),
        sa.Column("started", sa.String(40), nullable=False),
        sa.Column("lease_s", sa.Double),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("load", sa.Text, nullable=False),
    )

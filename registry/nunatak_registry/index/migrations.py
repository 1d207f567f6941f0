"""The steps from each layout of the index to the next, by Alembic's operations.

A step names its tables itself, because `schema` describes only the newest layout.
"""

import sqlalchemy as sa
from alembic import op


def to_layout_2() -> None:
    """The history of aliases and candidates says by whom; earlier rows say `unknown`."""
    kind = sa.String(200)
    for name in ("nunatak_alias_events", "nunatak_candidate_events"):
        op.add_column(name, sa.Column("by", kind, nullable=False, server_default="unknown"))
        with op.batch_alter_table(name) as table:
            table.alter_column("by", existing_type=kind, server_default=None)


def to_layout_3() -> None:
    """Tables of policies, of question cards, and of the server processes."""
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


STEPS = {2: to_layout_2, 3: to_layout_3}  # by the layout that each reaches

"""The history of aliases and candidates says by whom; earlier rows say `unknown`."""

import sqlalchemy as sa
from alembic import op


def upgrade() -> None:
    kind = sa.String(200)
    for name in ("nunatak_alias_events", "nunatak_candidate_events"):
        op.add_column(name, sa.Column("by", kind, nullable=False, server_default="unknown"))
        with op.batch_alter_table(name) as table:
            table.alter_column("by", existing_type=kind, server_default=None)

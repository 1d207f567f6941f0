"""Layout numbers begin again at 1, and the token has no default."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1", "early_5"


def upgrade() -> None:
    # SQLite tells Alembic nothing of a check without a name.
    checks = (sa.CheckConstraint("id = 1"),)
    with op.batch_alter_table("nunatak_state", table_args=checks) as table:
        table.alter_column("token", existing_type=sa.String(32), server_default=None)

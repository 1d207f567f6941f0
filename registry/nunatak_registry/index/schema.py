"""The tables of the index, and the layout of an index by the number in its state row.

A task's row outlives its versions, because the row's counter prevents the reuse of a deleted
version's number. Every manifest is stored as the exact text that was published, with its digest.

The number is negative while an upgrade is under way, or after an upgrade that was killed, so that
no release opens the index meanwhile.
"""

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nunatak_registry.errors import StoreUnavailableError

SCHEMA_VERSION = 3
STEPS: dict[int, Callable[[], None]] = {}  # of an upgrade, by the layout that each reaches

_NAME = sa.String(64)
_DIGEST = sa.String(64)
_TIME = sa.String(40)
_READER = sa.String(200)
_TOKEN = sa.String(32)


class Base(DeclarativeBase):
    """Base of the tables."""


class StateRow(Base):
    """One row: the schema version, and the number and token that change with every change."""

    __tablename__ = "nunatak_state"
    __table_args__ = (sa.CheckConstraint("id = 1"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    schema_version: Mapped[int]
    generation: Mapped[int] = mapped_column(sa.BigInteger)
    token: Mapped[str] = mapped_column(_TOKEN)


class TaskRow(Base):
    """A task that has, or once had, a version."""

    __tablename__ = "nunatak_tasks"

    name: Mapped[str] = mapped_column(_NAME, primary_key=True)
    next_version: Mapped[int]


class VersionRow(Base):
    """One published task version."""

    __tablename__ = "nunatak_versions"
    __table_args__ = (sa.UniqueConstraint("task", "content_digest"),)

    task: Mapped[str] = mapped_column(_NAME, sa.ForeignKey(TaskRow.name), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content_digest: Mapped[str] = mapped_column(_DIGEST)
    manifest: Mapped[str] = mapped_column(sa.Text)
    manifest_digest: Mapped[str] = mapped_column(_DIGEST)
    published_at: Mapped[str] = mapped_column(_TIME)


class BlobRow(Base):
    """A version's reference to a blob."""

    __tablename__ = "nunatak_version_blobs"
    __table_args__ = (
        sa.ForeignKeyConstraint(["task", "version"], [VersionRow.task, VersionRow.version]),
    )

    task: Mapped[str] = mapped_column(_NAME, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(_DIGEST, primary_key=True, index=True)


class RetiredBlobRow(Base):
    """A blob without references, which readers may still read, and the time of its retirement."""

    __tablename__ = "nunatak_retired_blobs"

    digest: Mapped[str] = mapped_column(_DIGEST, primary_key=True)
    at: Mapped[str] = mapped_column(_TIME)


class HoldRow(Base):
    """A reader that uses a version, such as a server with it in memory. Holds expire."""

    __tablename__ = "nunatak_holds"
    __table_args__ = (
        sa.ForeignKeyConstraint(["task", "version"], [VersionRow.task, VersionRow.version]),
    )

    reader: Mapped[str] = mapped_column(_READER, primary_key=True)
    task: Mapped[str] = mapped_column(_NAME, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    until: Mapped[str] = mapped_column(_TIME)


class ReplicaRow(Base):
    """A server process of this registry. Times are seconds, as of `Snapshot.seconds`."""

    __tablename__ = "nunatak_replicas"

    key: Mapped[str] = mapped_column(_READER, primary_key=True)
    id: Mapped[str] = mapped_column(_NAME)
    address: Mapped[str] = mapped_column(_READER)
    release: Mapped[str] = mapped_column(_NAME)
    started: Mapped[str] = mapped_column(_TIME)
    lease_s: Mapped[float | None] = mapped_column(sa.Double)
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    """The number of the generation that the process has applied; 0 while it is behind."""
    beat: Mapped[float] = mapped_column(sa.Double)
    until: Mapped[float] = mapped_column(sa.Double)
    load: Mapped[str] = mapped_column(sa.Text)


class AliasRow(Base):
    """The present version of an alias. The foreign key prevents a deletion of the version."""

    __tablename__ = "nunatak_aliases"
    __table_args__ = (
        sa.ForeignKeyConstraint(["task", "version"], [VersionRow.task, VersionRow.version]),
    )

    task: Mapped[str] = mapped_column(_NAME, primary_key=True)
    alias: Mapped[str] = mapped_column(_NAME, primary_key=True)
    version: Mapped[int]


class AliasEventRow(Base):
    """One move of an alias. Rows are only ever added; `id` orders them, the time does not."""

    __tablename__ = "nunatak_alias_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(_NAME, sa.ForeignKey(TaskRow.name), index=True)
    alias: Mapped[str] = mapped_column(_NAME)
    kind: Mapped[str] = mapped_column(sa.String(16))
    from_version: Mapped[int | None]
    to_version: Mapped[int]
    at: Mapped[str] = mapped_column(_TIME)
    by: Mapped[str] = mapped_column(_READER)


class CandidateRow(Base):
    """A version of one role next to an alias. The foreign keys prevent a deletion of both."""

    __tablename__ = "nunatak_candidates"
    __table_args__ = (
        sa.ForeignKeyConstraint(["task", "version"], [VersionRow.task, VersionRow.version]),
        sa.ForeignKeyConstraint(["task", "alias"], [AliasRow.task, AliasRow.alias]),
    )

    task: Mapped[str] = mapped_column(_NAME, primary_key=True)
    alias: Mapped[str] = mapped_column(_NAME, primary_key=True)
    role: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    version: Mapped[int]
    share: Mapped[float] = mapped_column(sa.Double)


class CandidateEventRow(Base):
    """One change of a candidate. Rows are only ever added, as for aliases."""

    __tablename__ = "nunatak_candidate_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(_NAME, sa.ForeignKey(TaskRow.name), index=True)
    alias: Mapped[str] = mapped_column(_NAME)
    role: Mapped[str] = mapped_column(sa.String(16))
    kind: Mapped[str] = mapped_column(sa.String(16))
    version: Mapped[int]
    share: Mapped[float] = mapped_column(sa.Double)
    at: Mapped[str] = mapped_column(_TIME)
    by: Mapped[str] = mapped_column(_READER)


class DocumentRow:
    """One published version of a document. Rows are only ever added; the newest version serves."""

    __tablename__: str

    name: Mapped[str] = mapped_column(_NAME, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    document: Mapped[str] = mapped_column(sa.Text)
    digest: Mapped[str] = mapped_column(_DIGEST)
    published_at: Mapped[str] = mapped_column(_TIME)
    by: Mapped[str] = mapped_column(_READER)


class PolicyRow(DocumentRow, Base):
    """One published version of a policy."""

    __tablename__ = "nunatak_policies"


class QuestionRow(DocumentRow, Base):
    """One published version of a question card."""

    __tablename__ = "nunatak_questions"


def layout_of(connection: sa.Connection) -> int:
    """Return the number of the layout of an index that has its tables, also a negative one.

    Raises:
        StoreUnavailableError: this release cannot upgrade from the layout.
    """
    number = connection.execute(sa.select(StateRow.schema_version)).scalar_one()
    # Code before the first release gave out 1 to 5, and made no table of question cards.
    if not sa.inspect(connection).has_table(QuestionRow.__tablename__):
        raise StoreUnavailableError(
            "the index was made by code from before the first release, and no release reads it; "
            "publish its tasks again, to a new registry"
        )
    if not SCHEMA_VERSION - len(STEPS) <= abs(number) <= SCHEMA_VERSION:
        raise StoreUnavailableError(
            f"the index has layout {abs(number)}, which this release does not know (its own is "
            f"{SCHEMA_VERSION}); use the release that wrote the index, or a later one"
        )
    return number


def require_current(connection: sa.Connection) -> None:
    """Raise `StoreUnavailableError` for an index that must not be read."""
    number = layout_of(connection)
    if number < 0:
        raise StoreUnavailableError(
            f"the index is being upgraded, and has reached layout {-number} of "
            f"{SCHEMA_VERSION}; wait for the end of `nunatak registry upgrade`, or run it "
            "again if it was killed"
        )
    if number != SCHEMA_VERSION:
        raise StoreUnavailableError(
            f"the index has layout {number}, and this release reads layout "
            f"{SCHEMA_VERSION}; stop all servers of the older release and run `nunatak "
            "registry upgrade`, or use the release that wrote the index"
        )


def check_layout(connection: sa.Connection, number: int) -> None:
    """Raise `StoreUnavailableError` if an upgrade has begun since a process opened the index."""
    if number != SCHEMA_VERSION:
        require_current(connection)

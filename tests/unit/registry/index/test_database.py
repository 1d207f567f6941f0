import sqlite3
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from doubles.damage import write_rows
from doubles.drafts import make_draft, publish_one
from doubles.replicas import beat
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.index.index import journal_mode
from nunatak_registry.store import Registry


def test_index_that_is_no_database_says_so_and_what_to_do(folder: Path) -> None:
    folder.mkdir()
    (folder / "index.sqlite3").write_bytes(b"no database at all" * 100)

    with pytest.raises(StoreUnavailableError, match=r"not a database; .* restore it from a backup"):
        Registry.open(folder)


def test_index_with_a_damaged_schema_is_unavailable(registry: Registry, folder: Path) -> None:
    registry.close()
    path = folder / "index.sqlite3"
    data = path.read_bytes()
    assert b"CREATE TABLE nunatak_state" in data
    path.write_bytes(
        data.replace(b"CREATE TABLE nunatak_state", b"CREATE T\xb1\xff\xfe nunatak_state")
    )

    with pytest.raises(StoreUnavailableError, match="index refused"):
        Registry.open(folder)


@pytest.mark.parametrize("database", ["", "/", "/:memory:"])
def test_sqlite_in_memory_is_refused(tmp_path: Path, database: str) -> None:
    with pytest.raises(StoreUnavailableError, match="must be a file"):
        Registry.open(f"sqlite://{database}?blobs={tmp_path}")


@pytest.mark.parametrize(
    ("version", "mode"),
    [((3, 40, 1), "truncate"), ((3, 51, 2), "truncate"), ((3, 51, 3), "wal"), ((4, 0, 0), "wal")],
)
def test_write_ahead_log_is_used_only_where_it_is_safe(
    version: tuple[int, int, int], mode: str
) -> None:
    assert journal_mode(version) == mode


WRITES: dict[str, Callable[[Registry, int], object]] = {
    "beat": lambda it, number: beat(it, f"replica{number}"),
    "hold": lambda it, number: it.hold(f"reader{number}", [("intent", 1)], seconds=60),
    "promote": lambda it, number: it.promote("intent", f"alias{number}", 1),
    "publish": lambda it, number: it.publish(*make_draft(seed=number)),
}


@contextmanager
def full_disk() -> Generator[None]:
    """Let no index have more pages than it has."""

    def limit(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    event.listen(sa.Engine, "begin", limit)
    try:
        yield
    finally:
        event.remove(sa.Engine, "begin", limit)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_fails_locks_nobody_out(
    registry: Registry, folder: Path, write: Callable[[Registry, int], object]
) -> None:
    publish_one(registry)

    with full_disk(), pytest.raises(StoreUnavailableError, match="full; make room") as caught:
        deque((write(registry, number) for number in range(10_000)), maxlen=0)

    # The error lives, as in the state of a server.
    assert caught.value.__traceback__
    with closing(sqlite3.connect(folder / "index.sqlite3", timeout=0)) as other:
        other.execute("BEGIN EXCLUSIVE")


def test_damaged_manifest_hides_its_task_alone(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft("bad", 1))
    registry.publish(*make_draft("good", 2))
    assert registry.damaged_tasks() == []
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE task = 'bad'")

    assert [task.name for task in registry.tasks()] == ["good"]
    assert [(task.name, task.version) for task in registry.damaged_tasks()] == [("bad", 1)]
    with pytest.raises(InvalidManifestError):
        registry.task("bad")

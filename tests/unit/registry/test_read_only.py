"""A failed fsync makes the store read-only, because data may be lost although a retry succeeds."""

import errno
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL
from sqlalchemy.exc import OperationalError

from doubles.drafts import make_draft, publish_one
from nunatak_registry.errors import StoreReadOnlyError, StoreUnavailableError
from nunatak_registry.index.database import Database, raise_generation
from nunatak_registry.store import Registry


def fail_one_sync(monkeypatch: pytest.MonkeyPatch, *, of_folders: bool) -> None:
    sync, calls = os.fsync, list[int]()

    def failing(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder == of_folders and not calls:
            calls.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


@pytest.mark.parametrize("of_folders", [False, True], ids=["file", "folder"])
def test_after_a_failed_sync_nothing_is_written_until_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_folders: bool
) -> None:
    with Registry.open(tmp_path) as registry:
        first = publish_one(registry, seed=0)
        publish_one(registry, seed=1)
        fail_one_sync(monkeypatch, of_folders=of_folders)
        changes: tuple[Callable[[], object], ...] = (
            lambda: publish_one(registry, seed=2),
            lambda: publish_one(registry, seed=0),
            lambda: registry.promote("intent", "prod", 1),
            lambda: registry.rollback("intent", "prod"),
            lambda: registry.delete("intent", 1),
            lambda: registry.gc(grace_s=0),
        )

        for change in changes:
            with pytest.raises(StoreReadOnlyError, match="fsync failed"):
                change()

        assert registry.task("intent").versions == (1, 2)
        assert registry.read_blob(first) == make_draft(seed=0)[1]["parameters"]

    with Registry.open(tmp_path) as reopened:
        assert publish_one(reopened, seed=2).version == 3


def failed_sync_of_sqlite() -> OperationalError:
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return OperationalError("COMMIT", None, cause)


def test_after_a_failed_sync_of_the_index_it_is_only_read(tmp_path: Path) -> None:
    database = Database.open(URL.create("sqlite", database=str(tmp_path / "index.sqlite3")))

    with pytest.raises(StoreReadOnlyError, match="fsync of the index"), database.writing():
        raise failed_sync_of_sqlite()
    with pytest.raises(StoreReadOnlyError), database.writing():
        pytest.fail("a writer was let in")

    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT generation FROM nunatak_state").scalar_one() == 0
    database.close()


def test_another_failure_of_the_index_is_not_final(tmp_path: Path) -> None:
    database = Database.open(URL.create("sqlite", database=str(tmp_path / "index.sqlite3")))

    with pytest.raises(StoreUnavailableError, match="full"), database.writing():
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("disk is full"))

    with database.writing() as connection:
        raise_generation(connection)
    database.close()

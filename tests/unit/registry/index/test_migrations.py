import sqlite3
from pathlib import Path

import pytest

from doubles.drafts import publish_one
from nunatak_registry.errors import StoreUnavailableError
from nunatak_registry.index.schema import SCHEMA_VERSION
from nunatak_registry.store import Registry


def columns(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return name, type, nullability and key of every column, by table."""
    connection = sqlite3.connect(folder / "index.sqlite3")
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema ORDER BY name")]
    found = {
        table: [tuple(row[1:6]) for row in connection.execute(f"PRAGMA table_info({table})")]
        for table in tables
    }
    connection.close()
    return found


def write(folder: Path, script: str) -> None:
    connection = sqlite3.connect(folder / "index.sqlite3")
    connection.executescript(script)
    connection.close()


def make_old(folder: Path) -> None:
    """Take a registry of this release back to schema version 1."""
    write(
        folder,
        "DROP TABLE nunatak_candidates; DROP TABLE nunatak_candidate_events; "
        "DROP TABLE nunatak_holds; DROP TABLE nunatak_retired_blobs; "
        "ALTER TABLE nunatak_state DROP COLUMN token; "
        "UPDATE nunatak_state SET schema_version = 1",
    )


def test_older_index_is_upgraded_with_everything_it_holds(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        publish_one(registry)
        registry.promote("intent", "prod", 1)
        tasks = registry.tasks()
    current = columns(tmp_path)
    make_old(tmp_path)

    with Registry.open(tmp_path) as upgraded:
        assert upgraded.tasks() == tasks
        assert publish_one(upgraded, seed=1).version == 2
        upgraded.delete("intent", 2)
        assert len(upgraded.gc(grace_s=-60).removed_blobs) == 1
        assert upgraded.verify() == []
    assert columns(tmp_path) == current


def test_upgrade_cut_short_leaves_the_old_layout(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        publish_one(registry)
    make_old(tmp_path)
    write(
        tmp_path,
        "CREATE TRIGGER kill BEFORE UPDATE ON nunatak_state "
        "BEGIN SELECT RAISE(ABORT, 'killed'); END",
    )

    with pytest.raises(StoreUnavailableError, match="killed"):
        Registry.open(tmp_path)
    assert "nunatak_retired_blobs" not in columns(tmp_path)

    write(tmp_path, "DROP TRIGGER kill")
    with Registry.open(tmp_path) as upgraded:
        assert upgraded.task("intent").versions == (1,)


@pytest.mark.parametrize("version", [0, -1, SCHEMA_VERSION + 1])
def test_unknown_schema_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    with Registry.open(tmp_path) as registry:
        publish_one(registry)
    write(tmp_path, f"UPDATE nunatak_state SET schema_version = {version:d}")  # noqa: S608 - a number
    before = (tmp_path / "index.sqlite3").read_bytes()

    with pytest.raises(StoreUnavailableError, match="use the release that wrote it"):
        Registry.open(tmp_path)

    assert (tmp_path / "index.sqlite3").read_bytes() == before

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from doubles.drafts import publish_many
from nunatak_registry.store import Registry

START = datetime(2026, 1, 1, tzinfo=UTC)


def holders(folder: Path) -> set[str]:
    connection = sqlite3.connect(folder / "index.sqlite3")
    found = {row[0] for row in connection.execute("SELECT reader FROM nunatak_holds")}
    connection.close()
    return found


def test_holds_of_killed_readers_are_cleared_once_they_are_over(tmp_path: Path) -> None:
    with Registry.open(tmp_path, clock=lambda: START) as registry:
        publish_many(registry, 2)
        registry.hold("killed", [("intent", 1)], seconds=60)
        registry.hold("alive", [("intent", 2)], seconds=600)

    with Registry.open(tmp_path, clock=lambda: START + timedelta(seconds=61)) as registry:
        assert registry.readers("intent", 1) == ()
        registry.hold("new", [("intent", 1)], seconds=60)

    assert holders(tmp_path) == {"alive", "new"}

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, event

from doubles.drafts import publish_many
from nunatak_registry.store import Registry

START = datetime(2026, 1, 1, tzinfo=UTC)


def holders(folder: Path) -> set[str]:
    connection = sqlite3.connect(folder / "index.sqlite3")
    found = {row[0] for row in connection.execute("SELECT reader FROM nunatak_holds")}
    connection.close()
    return found


def test_the_statements_of_a_hold_do_not_grow_with_its_versions(tmp_path: Path) -> None:
    def statements(reader: str, *numbers: int) -> list[str]:
        noted.clear()
        wanted = {("intent", number) for number in numbers}
        assert registry.hold(reader, wanted, seconds=60) == wanted == registry.held(reader)
        return [it for it in noted if it.startswith(("INSERT", "UPDATE", "DELETE", "SELECT"))]

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        noted.append(statement)

    noted = list[str]()
    event.listen(Engine, "before_cursor_execute", note)
    try:
        with Registry.open(tmp_path, clock=lambda: START) as registry:
            publish_many(registry, 12)
            many, one = statements("many", *range(1, 13)), statements("one", 1)
            renewal, fewer = statements("many", *range(1, 13)), statements("many", 3)
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert len(many) == len(one)
    assert not any(it.startswith("INSERT") for it in renewal)
    assert len(fewer) == len(one), "the end of eleven holds is one statement"


def test_holds_of_killed_readers_are_cleared_once_they_are_over(tmp_path: Path) -> None:
    with Registry.open(tmp_path, clock=lambda: START) as registry:
        publish_many(registry, 2)
        registry.hold("killed", [("intent", 1)], seconds=60)
        registry.hold("alive", [("intent", 2)], seconds=600)

    with Registry.open(tmp_path, clock=lambda: START + timedelta(seconds=61)) as registry:
        assert registry.readers("intent", 1) == ()
        registry.hold("new", [("intent", 1)], seconds=60)

    assert holders(tmp_path) == {"alive", "new"}

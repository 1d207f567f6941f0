"""An index that is restored from a backup under processes that have it open."""

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from doubles.drafts import publish_one
from doubles.postgres import PostgresServer
from doubles.refusals import raises
from doubles.restores import FileSite, PostgresSite, RestoreSite
from nunatak_registry import FindingKind, Registry, StoreUnavailableError

NOW = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["rename", "sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> RestoreSite:
    if request.param == "postgresql":
        return PostgresSite(tmp_path, request.getfixturevalue("postgres"))
    return FileSite(tmp_path, is_renamed=request.param == "rename")


@pytest.fixture
def registry(site: RestoreSite) -> Generator[Registry]:
    """Stay open while the index is restored, with connections that were used."""
    with Registry.open(site.location, clock=lambda: NOW) as opened:
        publish_one(opened, seed=1)
        opened.promote("intent", "prod", 1)
        site.back_up("early")
        publish_one(opened, seed=2)
        opened.promote("intent", "prod", 2)
        assert opened.resolve("intent").version == 2
        yield opened


def test_what_a_restored_index_says_is_what_is_read(site: RestoreSite, registry: Registry) -> None:
    late = registry.generation()
    site.restore("early")

    assert registry.generation() != late
    assert registry.resolve("intent").version == 1
    assert [task.versions for task in registry.tasks()] == [(1,)]
    assert [event.to_version for event in registry.history("intent", "prod")] == [1]
    assert {it.kind for it in registry.verify()} == {FindingKind.ORPHAN}


def test_what_is_written_after_a_restore_is_there_for_all(
    site: RestoreSite, registry: Registry
) -> None:
    site.restore("early")

    registry.promote("intent", "next", 1)
    assert publish_one(registry, seed=3).version == 2
    registry.hold("server", [("intent", 2)], seconds=60)

    with Registry.open(site.location, clock=lambda: NOW) as other:
        assert other.task("intent").aliases == {"next": 1, "prod": 1}
        assert other.resolve("intent/2") == registry.resolve("intent/2")
        with raises("version_in_use"):
            other.delete("intent", 2)


def test_a_change_by_others_after_a_restore_is_seen(site: RestoreSite, registry: Registry) -> None:
    site.restore("early")
    restored = registry.generation()

    with Registry.open(site.location) as other:
        other.promote("intent", "next", 1)

    assert registry.generation().number == restored.number + 1
    assert registry.task("intent").aliases == {"next": 1, "prod": 1}


def test_two_indexes_that_counted_as_many_changes_are_distinguished(
    site: RestoreSite, registry: Registry
) -> None:
    before = registry.generation()
    site.restore("early")
    with Registry.open(site.location) as other:
        publish_one(other, seed=3)
        other.promote("intent", "prod", 2)

    after = registry.generation()

    assert after.number == before.number
    assert after != before


def test_a_number_that_is_given_out_again_is_another_content(
    site: RestoreSite, registry: Registry
) -> None:
    first = registry.resolve("intent/2")
    site.restore("early")
    publish_one(registry, seed=3)

    second = registry.resolve("intent/2")

    assert first.reference == second.reference
    assert first.content != second.content


def test_a_backup_fills_a_new_database(postgres: PostgresServer, tmp_path: Path) -> None:
    lost, new = (PostgresSite(tmp_path, postgres) for _ in range(2))
    with Registry.open(lost.location, clock=lambda: NOW) as registry:
        publish_one(registry)
        published = registry.resolve("intent")
    lost.back_up("late")

    new.restore("late")

    with Registry.open(new.location, create=False) as registry:
        assert registry.resolve("intent") == published
        assert registry.verify() == []


def test_holds_that_a_restore_took_are_missed(site: RestoreSite, registry: Registry) -> None:
    assert registry.hold("server", [("intent", 1), ("intent", 2)], seconds=60) == {
        ("intent", 1),
        ("intent", 2),
    }
    assert registry.held("server") == {("intent", 1), ("intent", 2)}

    site.restore("early")

    assert registry.held("server") == set()
    assert registry.hold("server", [("intent", 1), ("intent", 2)], seconds=60) == {("intent", 1)}
    assert registry.held("server") == {("intent", 1)}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "registry" / "index.sqlite3"


@pytest.fixture
def on_file(tmp_path: Path, index: Path) -> Generator[Registry]:
    with Registry.open(index.parent) as opened:
        publish_one(opened, seed=1)
        with (
            closing(sqlite3.connect(index)) as source,
            closing(sqlite3.connect(tmp_path / "copy")) as copy,
        ):
            source.backup(copy)
        yield opened


CALLS: dict[str, Callable[[Registry], object]] = {
    "generation": lambda registry: registry.generation(),
    "resolve": lambda registry: registry.resolve("intent"),
    "publish": lambda registry: publish_one(registry, seed=2),
    "hold": lambda registry: registry.hold("server", [("intent", 1)], seconds=60),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_index_that_is_gone_is_unavailable_and_not_made_again(
    on_file: Registry, index: Path, tmp_path: Path, call: Callable[[Registry], object]
) -> None:
    generation = on_file.generation()
    index.unlink()

    with pytest.raises(StoreUnavailableError, match="missing"):
        call(on_file)

    assert not index.exists()
    (tmp_path / "copy").replace(index)
    assert on_file.generation() == generation
    call(on_file)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_empty_file_in_the_place_of_an_index_gets_no_tables(
    on_file: Registry, index: Path, tmp_path: Path, call: Callable[[Registry], object]
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    empty.replace(index)

    with pytest.raises(StoreUnavailableError):
        call(on_file)

    assert index.read_bytes() == b""


def test_a_write_that_went_to_a_file_replaced_meanwhile_is_not_acknowledged(
    on_file: Registry, index: Path, tmp_path: Path
) -> None:
    is_replaced = threading.Event()

    def replacing() -> datetime:
        # The clock is read within the transaction.
        if not is_replaced.is_set():
            is_replaced.set()
            (tmp_path / "copy").replace(index)
        return NOW

    with Registry.open(index.parent, clock=replacing) as writer:
        with pytest.raises(StoreUnavailableError, match="replaced"):
            publish_one(writer, seed=2)
        assert writer.task("intent").versions == (1,)
        assert publish_one(writer, seed=2).version == 2
    assert on_file.task("intent").versions == (1, 2)


def test_a_restored_index_of_another_layout_is_refused(on_file: Registry, index: Path) -> None:
    copy = index.with_name("other")
    with closing(sqlite3.connect(copy)) as target, closing(sqlite3.connect(index)) as source:
        source.backup(target)
        target.executescript("UPDATE nunatak_state SET schema_version = 99")
    content = copy.read_bytes()
    copy.replace(index)

    with pytest.raises(StoreUnavailableError, match="layout 99"):
        on_file.generation()

    assert index.read_bytes() == content

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import OperationalError

from doubles.damage import blob_paths, write_rows
from doubles.drafts import draft_with, make_draft, publish_many, publish_one, safetensors_bytes
from nunatak_contract.manifest import TaskDraft
from nunatak_registry.aliases import AliasEvent, AliasEventKind, rollback_target
from nunatak_registry.blobs.files import LocalFiles
from nunatak_registry.errors import InvalidManifestError, StoreReadOnlyError, StoreUnavailableError
from nunatak_registry.index.index import Index
from nunatak_registry.index.snapshot import Snapshot
from nunatak_registry.store import Registry
from nunatak_registry.upkeep import FindingKind

ALL = range(1, 10)
START = datetime(2026, 1, 1, tzinfo=UTC)
DRAFT, BLOBS = make_draft()
DATA = BLOBS["parameters"]
REFUSED: dict[str, tuple[TaskDraft, dict[str, bytes]]] = {
    "no role": (DRAFT, {}),
    "a role more": (DRAFT, {**BLOBS, "more": DATA}),
    "another role": (DRAFT, {"more": DATA}),
    "a role twice": (DRAFT.model_copy(update={"blobs": DRAFT.blobs * 2}), BLOBS),
}


def history(*moves: str) -> list[AliasEvent]:
    events: list[AliasEvent] = []
    for move in moves:
        kind = AliasEventKind.ROLLBACK if move.startswith("r") else AliasEventKind.PROMOTE
        events.append(
            AliasEvent(
                task="intent",
                alias="prod",
                kind=kind,
                from_version=events[-1].to_version if events else None,
                to_version=int(move[1:]),
                at=datetime(2026, 1, 1, tzinfo=UTC),
                by="ada",
            )
        )
    return events


def holders(folder: Path) -> set[str]:
    connection = sqlite3.connect(folder / "index.sqlite3")
    found = {row[0] for row in connection.execute("SELECT reader FROM nunatak_holds")}
    connection.close()
    return found


def fail_one_sync(monkeypatch: pytest.MonkeyPatch, *, of_folders: bool) -> None:
    sync, calls = os.fsync, list[int]()

    def failing(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder == of_folders and not calls:
            calls.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


def test_folder_holds_the_index_and_the_blobs_and_nothing_else(
    registry: Registry, folder: Path
) -> None:
    manifest = registry.publish(*make_draft())
    digest = manifest.blobs[0].sha256

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    expected = [f"blobs/sha256/{digest[:2]}/{digest}", "index.sqlite3"]

    # SQLite keeps its emptied journal.
    assert [name for name in files if not name.startswith("index.sqlite3-")] == expected


def test_blobs_are_read_by_role(registry: Registry) -> None:
    blobs = {
        "parameters": safetensors_bytes({"a": ((1,), [1.0])}),
        "extra": safetensors_bytes({"b": ((1,), [2.0])}),
    }
    manifest = registry.publish(draft_with(**blobs), blobs)

    assert registry.read_blob(manifest) == blobs["parameters"]
    assert registry.read_blob(manifest, "extra") == blobs["extra"]
    with pytest.raises(InvalidManifestError, match="no blob 'other'"):
        registry.read_blob(manifest, "other")


def test_publish_killed_before_its_row_shows_nothing_and_can_be_repeated(
    registry: Registry, folder: Path
) -> None:
    registry.publish(DRAFT, BLOBS)
    write_rows(
        folder,
        "CREATE TRIGGER kill BEFORE INSERT ON nunatak_version_blobs "
        "BEGIN SELECT RAISE(ABORT, 'killed'); END",
    )
    generation = registry.generation()

    with pytest.raises(StoreUnavailableError, match="killed"):
        registry.publish(*make_draft(seed=1))

    assert registry.task("intent").versions == (1,)
    assert registry.generation() == generation
    assert [finding.kind for finding in registry.verify()] == [FindingKind.ORPHAN]

    write_rows(folder, "DROP TRIGGER kill")
    assert registry.publish(*make_draft(seed=1)).version == 2
    assert registry.verify() == []


def test_blob_swept_away_during_a_publish_is_written_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, keys = LocalFiles.write, list[str]()

    def swept(files: LocalFiles, key: str, data: bytes) -> None:
        """Lose the first written file, as if another process had collected it."""
        write(files, key, data)
        keys.append(key)
        if len(keys) == 1:
            files.delete(key)

    monkeypatch.setattr(LocalFiles, "write", swept)

    assert registry.read_blob(registry.publish(DRAFT, BLOBS)) == DATA
    assert len(keys) == 2


def test_collection_cut_short_leaves_an_orphan_and_no_version(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalFiles, key: str) -> NoReturn:
        raise StoreUnavailableError(f"cannot delete {key}")

    monkeypatch.setattr(LocalFiles, "delete", refuse)
    publish_one(registry)
    registry.delete("intent", 1)
    with pytest.raises(StoreUnavailableError):
        registry.gc(grace_s=0)

    assert registry.tasks() == []
    assert [found.kind for found in registry.verify()] == [FindingKind.ORPHAN]


def test_folder_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailableError, match="registry folder"):
        Registry.open(tmp_path / "file" / "registry")


def test_generation_of_an_unchanged_registry_is_not_queried_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registry.generation()

    def refuse(_: object) -> NoReturn:
        raise AssertionError("queried again")

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "generation", refuse)
        assert registry.generation() == before
    registry.publish(*make_draft())
    assert registry.generation() != before


@pytest.mark.parametrize(
    ("moves", "available", "target"),
    [
        ("", ALL, None),
        ("p1", ALL, None),
        ("p1 p2", ALL, 1),
        ("p1 p2 r1", ALL, None),
        ("p1 p2 p3", ALL, 2),
        ("p1 p2 p3 r2", ALL, 1),
        ("p1 p2 p3 r2 r1", ALL, None),
        ("p1 p2 r1 p3", ALL, 1),
        ("p1 p2 p1", ALL, 2),
        ("p1 p2 p1 r2", ALL, 1),
        ("p3 p1 p2 p1 r2 r1", ALL, 3),
        ("p1 p2 p3", {1, 3}, 1),
        ("p1 p2 p3", {3}, None),
        ("p1 p2 p1", {1}, None),
        ("p1 p3 p2 p3", {1, 3}, 1),
        ("p1 p3 p2 p3 r1", {1, 3}, None),
        ("p1 p2 p3 r1", {1, 3}, None),
    ],
)
def test_rollback_goes_back_one_promotion_and_skips_deleted_versions_and_the_current_one(
    moves: str, available: Collection[int], target: int | None
) -> None:
    assert rollback_target(history(*moves.split()), available) == target


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


@pytest.mark.parametrize("case", REFUSED)
def test_blobs_of_other_roles_than_the_drafts_are_refused_and_not_stored(
    registry: Registry, folder: Path, case: str
) -> None:
    with pytest.raises(InvalidManifestError, match="describes blobs"):
        registry.publish(*REFUSED[case])

    assert blob_paths(folder) == []
    assert registry.tasks() == []


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


def test_an_index_on_a_read_only_disk_is_read_and_takes_no_changes(tmp_path: Path) -> None:
    def forbid_changes(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    with Registry.open(tmp_path) as registry:
        publish_one(registry)
    event.listen(Engine, "connect", forbid_changes)
    try:
        with Registry.open(tmp_path) as registry:
            assert registry.task("intent").versions == (1,)
            with pytest.raises(StoreReadOnlyError, match="allow writing there"):
                registry.promote("intent", "prod", 1)
    finally:
        event.remove(Engine, "connect", forbid_changes)


@pytest.fixture
def index(tmp_path: Path) -> Generator[Index]:
    opened = Index.open(URL.create("sqlite", database=str(tmp_path / "index.sqlite3")))
    yield opened
    opened.close()


def refusal_of_sqlite(code: int = sqlite3.SQLITE_IOERR_FSYNC) -> OperationalError:
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorcode = code
    return OperationalError("COMMIT", None, cause)


@pytest.mark.parametrize("name", ["SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY"])
def test_a_change_of_a_killed_process_that_no_reader_may_take_back_says_what_to_do(
    index: Index, name: str
) -> None:
    with pytest.raises(StoreUnavailableError, match="as a user who may write"), index.reading():
        raise refusal_of_sqlite(getattr(sqlite3, name))


def test_after_a_failed_sync_of_the_index_it_is_only_read(index: Index) -> None:
    with pytest.raises(StoreReadOnlyError, match="fsync of the index"), index.writing():
        raise refusal_of_sqlite()
    with pytest.raises(StoreReadOnlyError), index.writing():
        pytest.fail("a writer was let in")

    with index.reading() as snapshot:
        assert snapshot.generation().number == 0


def test_another_failure_of_the_index_is_not_final(index: Index) -> None:
    with pytest.raises(StoreUnavailableError, match="full"), index.writing():
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("disk is full"))

    with index.writing() as change:
        change.reserve_numbers("mood", 2)

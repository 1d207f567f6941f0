"""Registries of older layouts lose nothing by an upgrade, wherever the upgrade is cut short."""

import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import IntegrityError

from doubles.backbones import tiny_backbone, tiny_tokenizer
from doubles.damage import files_of_at_most, write_rows
from doubles.golden import (
    FIRST,
    GOLDEN,
    OLDER,
    OLDER_STEPS,
    SET_LAYOUT,
    engine_of,
    lost_rows,
    put_in_folder,
    put_in_postgres,
    rows_of,
)
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone
from nunatak_registry import CandidateRole, Registry, StoreUnavailableError
from nunatak_registry.index.schema import SCHEMA_VERSION, STEPS, Base
from nunatak_registry.index.upgrade import rehearse, upgrade
from nunatak_versions import load_task

Put = Callable[[str], str]
LAYOUTS = tuple(map(str, range(1, SCHEMA_VERSION + 1)))
READS = ("SELECT", "PRAGMA", "\nSELECT")


class Killed(Exception):  # noqa: N818 - stands for a signal, which is no Exception
    pass


@contextmanager
def dying_at(number: int) -> Generator[None]:
    """Send only the changes and commits before this number."""
    sent = count(1)

    def die(*arguments: object) -> None:
        is_change = len(arguments) == 1 or not str(arguments[2]).startswith(READS)
        if is_change and next(sent) >= number:
            raise Killed

    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, die)
    try:
        yield
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, die)


@pytest.fixture(params=["sqlite", "postgresql"])
def put(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Make a new registry of a layout, and return its location."""
    for number, step in OLDER_STEPS.items():
        monkeypatch.setitem(STEPS, number, step)
    numbers = count()
    if request.param == "sqlite":
        return lambda layout: put_in_folder(layout, tmp_path / str(next(numbers)))
    server = request.getfixturevalue("postgres")
    return lambda layout: put_in_postgres(layout, server, tmp_path / str(next(numbers)))


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


def silent(_line: str) -> None:
    pass


def refusal_of(location: str) -> str:
    """Return the words with which a server refuses a registry; none if it opens the registry."""
    try:
        Registry.open(location, create=False).close()
    except StoreUnavailableError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """The backbone of the old registries' versions."""
    return tiny_backbone(tokenizer=tiny_tokenizer("bert", finds_special=False))


def faults_of(location: str, backbone: Backbone, *, with_types: bool = True) -> list[str]:
    """Return what a release of today finds wrong with a golden registry."""
    engine = engine_of(location)
    options = {"compare_type": with_types, "compare_server_default": True}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        faults = [str(it) for it in compare_metadata(context, Base.metadata)]
        published = {
            f"{it.task}/{it.version}": it.content_digest
            for it in connection.execute(text("SELECT * FROM nunatak_versions"))
        }
    engine.dispose()
    with Registry.open(location, create=False) as registry:
        faults += [str(it) for it in registry.verify() if it.kind.is_error]
        for manifest in (*registry.versions("tone"), *registry.versions("topic")):
            # Raises unless the answers equal those of the older code.
            load_task(manifest, registry.read_blob(manifest), backbone)
            if manifest.content != published[manifest.reference]:
                faults.append(f"{manifest.reference} has another digest of its content")
    return faults


@pytest.mark.parametrize("layout", OLDER)
def test_an_upgrade_keeps_every_row_and_every_answer(
    put: Put, layout: str, backups: Path, backbone: Backbone
) -> None:
    location = put(layout)
    before = rows_of(location)

    done = upgrade(location, folder=backups, tell=silent)

    assert lost_rows(before, rows_of(location)) == []
    assert faults_of(location, backbone) == []
    assert (done.found, done.layout, done.num_versions) == (layout, LAYOUTS[-1], 3)
    assert list(done.steps) == [*LAYOUTS[LAYOUTS.index(layout) + 1 :]]
    assert upgrade(location, tell=silent).steps == ()


def test_an_upgraded_registry_takes_changes(put: Put, backups: Path) -> None:
    location = put("1")
    upgrade(location, folder=backups, tell=silent)

    with Registry.open(location, create=False) as registry:
        earlier = registry.history("tone", "prod")
        moved = registry.promote("tone", "prod", 2, by="key test")
        assert registry.history("tone", "prod") == [*earlier, moved]
        assert registry.rollback("tone", "prod").to_version == 1
        registry.delete("topic", 1)
        assert registry.names() == ("tone",)
    second = "INSERT INTO nunatak_state SELECT 2, schema_version, 1, token FROM nunatak_state"
    with pytest.raises(IntegrityError):
        write_rows(location, second)


def test_every_released_layout_has_a_registry_that_its_own_code_made() -> None:
    numbers = range(int(FIRST), SCHEMA_VERSION + 1)

    assert {it.parent.name for it in GOLDEN.glob("*/rows.sql")} == set(map(str, numbers))
    assert [*STEPS] == [*numbers[1:]]


def test_a_change_of_a_table_needs_a_new_layout(put: Put, backbone: Backbone) -> None:
    assert faults_of(put(LAYOUTS[-1]), backbone) == []


def test_a_registry_of_the_present_layout_is_left_alone(put: Put) -> None:
    location = put(LAYOUTS[-1])
    before = rows_of(location)
    told = list[str]()

    done = upgrade(location, tell=told.append)

    assert rows_of(location) == before
    assert (done.steps, done.backup, told) == ((), None, [])
    with Registry.open(location, create=False) as registry:
        assert registry.rollouts.get("tone", "prod", CandidateRole.CANARY).share == 0.25
        assert [it.reference for it in registry.policies.newest()] == ["guard/1"]


@pytest.mark.each
@pytest.mark.parametrize("layout", OLDER)
def test_a_server_opens_no_older_layout_and_changes_nothing(put: Put, layout: str) -> None:
    location = put(layout)
    before = rows_of(location)

    with pytest.raises(StoreUnavailableError, match=rf"layout {layout},.*registry upgrade"):
        Registry.open(location)

    assert rows_of(location) == before


def test_an_index_of_unreleased_code_is_refused_and_left_alone(put: Put) -> None:
    location = put(FIRST)
    write_rows(location, "DROP TABLE nunatak_questions")
    for number in (1, 2, 3, 5, -5):
        write_rows(location, SET_LAYOUT + str(number))
        before = rows_of(location)

        for run in (
            partial(upgrade, location, tell=silent),
            partial(rehearse, location, tell=silent),
            partial(Registry.open, location),
        ):
            with pytest.raises(StoreUnavailableError, match=r"before the first release.*publish"):
                run()

        assert rows_of(location) == before


@pytest.mark.timeout(900)
def test_an_upgrade_that_dies_at_any_statement_loses_nothing(
    put: Put, backups: Path, backbone: Backbone, request: pytest.FixtureRequest
) -> None:
    deaths, before = 0, rows_of(put("1"))
    # PostgreSQL undoes a transaction as SQLite does, in twenty times the time.
    step = 9 if "postgresql" in request.node.name else 1
    for dies_at in count(1, step):
        location = put("1")
        try:
            with dying_at(dies_at):
                upgrade(location, folder=backups, tell=silent)
        except Killed:
            deaths += 1
        else:
            break
        assert lost_rows(before, rows_of(location)) == []
        refused = refusal_of(location)
        assert "registry upgrade" in refused or faults_of(location, backbone) == []
        upgrade(location, folder=backups, tell=silent)
        assert lost_rows(before, rows_of(location)) == []
        if deaths % 7 == 0:
            assert faults_of(location, backbone) == []
    assert deaths > 3


def test_no_release_opens_a_registry_during_an_upgrade(put: Put, backups: Path) -> None:
    location, numbers = put("1"), list[int]()

    def look_after_a_step(line: str) -> None:
        if line.startswith("layout"):
            with pytest.raises(StoreUnavailableError, match="is being upgraded"):
                Registry.open(location)
            numbers.append(rows_of(location)["nunatak_state"][0]["schema_version"])

    upgrade(location, folder=backups, tell=look_after_a_step)

    # Every release compares the number with its own, which is above zero.
    assert numbers == [-2, -3]


def test_two_upgrades_at_once_make_one(put: Put, backups: Path, backbone: Backbone) -> None:
    location = put("1")
    before, others = rows_of(location), list[tuple[str, ...]]()

    def upgrade_too(line: str) -> None:
        if line.startswith("layout") and not others:
            others.append(upgrade(location, folder=backups, tell=silent).steps)

    first = upgrade(location, folder=backups, tell=upgrade_too)

    assert [*first.steps, *others[0]] == [*LAYOUTS[1:]]
    assert lost_rows(before, rows_of(location)) == []
    assert faults_of(location, backbone) == []


def test_a_running_server_prevents_an_upgrade(put: Put, backups: Path) -> None:
    location = put("2")
    before = rows_of(location)
    during, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

    for run in (upgrade, rehearse):
        with pytest.raises(NunatakError, match="host:1") as caught:
            run(location, folder=backups, now=during, tell=silent)
        assert caught.value.code == "registry_in_use"
        assert rows_of(location) == before
        assert list(backups.iterdir()) == []

    assert upgrade(location, folder=backups, now=later, tell=silent).steps == ("3",)


def test_the_copy_is_the_registry_as_it_was(
    put: Put, backups: Path, tmp_path: Path, backbone: Backbone
) -> None:
    location = put("1")
    before = rows_of(location)

    copy = upgrade(location, folder=backups, tell=silent).backup

    assert copy is not None
    assert list(backups.iterdir()) == [copy]
    restored = f"sqlite:///{copy}?blobs={tmp_path / '0' / 'blobs'}"
    assert rows_of(restored) == before
    upgrade(restored, folder=tmp_path, tell=silent)
    # A copy from PostgreSQL names the types of its columns as PostgreSQL does.
    assert faults_of(restored, backbone, with_types=False) == []


@pytest.mark.each
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[-1]])
def test_a_rehearsal_tells_the_steps_and_changes_nothing(
    put: Put, layout: str, backups: Path
) -> None:
    location = put(layout)
    before, told, again = rows_of(location), list[str](), list[str]()

    rehearsed = rehearse(location, folder=backups, tell=told.append)

    assert rows_of(location) == before
    assert list(backups.iterdir()) == []
    done = upgrade(location, folder=backups, tell=again.append)
    assert told == [line for line in again if line.startswith("layout")]
    assert (rehearsed.steps, rehearsed.num_versions) == (done.steps, done.num_versions)


def test_an_unknown_layout_is_refused_and_left_alone(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = put("3")
    monkeypatch.delitem(STEPS, 2)
    for number in (0, 1, -1, SCHEMA_VERSION + 1, 99, -99):
        write_rows(location, SET_LAYOUT + str(number))
        before = rows_of(location)

        for run in (upgrade, rehearse):
            with pytest.raises(StoreUnavailableError, match=f"layout {abs(number)}, .* not know"):
                run(location, tell=silent)

        assert rows_of(location) == before


def test_a_process_from_before_an_upgrade_changes_nothing_and_notices(put: Put) -> None:
    location = put("3")
    with Registry.open(location, create=False) as registry:
        for number in (-SCHEMA_VERSION, SCHEMA_VERSION + 1):
            write_rows(location, SET_LAYOUT + str(number))
            before = rows_of(location)

            for call in (registry.generation, lambda: registry.promote("tone", "late", 1)):
                with pytest.raises(StoreUnavailableError, match="layout"):
                    call()

            assert rows_of(location) == before


def test_a_place_without_a_registry_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NunatakError) as caught:
        upgrade(tmp_path / "none", tell=silent)

    assert caught.value.code == "registry_missing"
    assert not (tmp_path / "none").exists()


@pytest.mark.each
@pytest.mark.parametrize("place", ["missing", "file", "full"])
def test_a_copy_that_cannot_be_made_leaves_nothing_and_the_registry_alone(
    put: Put, backups: Path, place: str
) -> None:
    location = put("2")
    before, folder = rows_of(location), backups / "copies"
    if place == "file":
        folder.write_bytes(b"")
    if place == "full":
        folder.mkdir()

    for run in (upgrade, rehearse):
        with (
            files_of_at_most(8192 if place == "full" else resource.RLIM_INFINITY),
            pytest.raises(StoreUnavailableError, match=r"nothing is changed.*--backup"),
        ):
            run(location, folder=folder, tell=silent)

    assert rows_of(location) == before
    assert [*folder.rglob("*")] == []


def test_a_damaged_manifest_is_told_and_kept(put: Put, backups: Path) -> None:
    location = put("1")
    write_rows(location, "UPDATE nunatak_versions SET manifest = '{}' WHERE task = 'topic'")
    before = rows_of(location)

    done = upgrade(location, folder=backups, tell=silent)

    assert done.unreadable == ("topic/1",)
    assert lost_rows(before, rows_of(location)) == []

"""Copies between registries: whole tasks, repeatable; nothing that is there changes."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from doubles.drafts import make_draft, publish_many, publish_one
from doubles.object_stores import ObjectStore
from doubles.postgres import PostgresServer
from doubles.refusals import raises
from nunatak_contract.enums import CandidateRole
from nunatak_registry import Candidate, CorruptBlobError, Registry
from nunatak_registry.blobs.blobs import blob_key

Registries = tuple[Registry, Registry]
CANARY = Candidate(task="intent", alias="prod", role=CandidateRole.CANARY, version=3, share=0.25)


def location_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """A new place: a folder; or a database with blobs in a folder or a bucket."""
    if kind == "folder":
        return str(folder)
    postgres: PostgresServer = request.getfixturevalue("postgres")
    if kind == "postgresql":
        return f"{postgres.create_database()}&blobs={folder}"
    server: ObjectStore = request.getfixturevalue("bucket_server")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        patch.setenv(name, value)
    return f"{postgres.create_database()}&blobs=s3://{server.create_bucket()}/tasks"


@pytest.fixture(params=["folder>folder", "folder>s3", "s3>folder"])
def registries(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Registries]:
    """Source and target of a copy; the source has two tasks, aliases, history and a canary."""
    kinds = request.param.split(">")
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(Registry.open(location_of(kind, request, tmp_path / name)))
            for kind, name in zip(kinds, ("source", "target"), strict=True)
        )
        fill(source)
        yield source, target


@pytest.fixture
def folders(tmp_path: Path) -> Generator[Registries]:
    with Registry.open(tmp_path / "a") as source, Registry.open(tmp_path / "b") as target:
        fill(source)
        yield source, target


def fill(source: Registry) -> None:
    publish_many(source, 4)
    source.delete("intent", 4)
    for version in (1, 2):
        source.promote("intent", "prod", version, by="ann")
    source.rollback("intent", "prod", by="bob")
    source.promote("intent", "eu", 3, by="ann")
    source.rollouts.set(CANARY, by="ann")
    publish_one(source, "mood", seed=9)


def copy_all(registries: Registries) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    source, target = registries
    copied = [target.copies.take(name, source.copies) for name in source.copies.tasks()]
    return [(it.task, it.versions, it.present, it.num_events) for it in copied]


def test_a_copy_says_everything_that_its_source_says_and_a_repeated_one_changes_nothing(
    registries: Registries,
) -> None:
    source, target = registries

    copied = copy_all(registries)

    assert copied == [("intent", (1, 2, 3), (), 5), ("mood", (1,), (), 0)]
    assert target.verify() == []
    for name in ("intent", "mood"):
        assert target.listed_versions(name) == source.listed_versions(name)
        assert [target.read_blob(it) for it in target.versions(name)] == [
            source.read_blob(it) for it in source.versions(name)
        ]
    for alias in ("prod", "eu"):
        assert target.history("intent", alias) == source.history("intent", alias)
        assert target.rollouts.history("intent", alias) == source.rollouts.history("intent", alias)
    before = target.generation()
    assert copy_all(registries) == [("intent", (), (1, 2, 3), 0), ("mood", (), (1,), 0)]
    assert target.generation() == before
    # Version 4 was deleted in the source, and no number is given out twice.
    assert publish_one(target, seed=77).version == 5


@pytest.mark.parametrize("registries", ["folder>postgresql", "postgresql>folder"], indirect=True)
def test_a_later_copy_brings_what_is_new(registries: Registries) -> None:
    source, target = registries
    copy_all(registries)
    publish_one(source, seed=50)
    source.promote("intent", "prod", 5)

    (copied, _) = copy_all(registries)

    # The promotion also ends the canary.
    assert copied == ("intent", (5,), (1, 2, 3), 2)
    assert target.task("intent").aliases == source.task("intent").aliases
    assert target.task("intent").candidates == ()
    assert target.verify() == []


def test_a_copy_that_was_cut_short_goes_on(folders: Registries, tmp_path: Path) -> None:
    source, target = folders
    target.copies.take("mood", source.copies)
    # A killed copy left the blob of another task, damaged and without a version.
    place = tmp_path / "b" / "blobs" / blob_key(source.resolve("intent/1").blobs[0].sha256)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"cut")

    assert copy_all(folders) == [("intent", (1, 2, 3), (), 5), ("mood", (), (1,), 0)]
    assert target.verify() == []


def test_a_target_that_is_ahead_stays_as_it_is(folders: Registries) -> None:
    source, target = folders
    copy_all(folders)
    target.promote("intent", "prod", 3)
    publish_one(target, seed=60)

    assert copy_all(folders)[0] == ("intent", (), (1, 2, 3), 0)
    assert target.task("intent").aliases["prod"] == 3
    assert source.task("intent").aliases["prod"] == 1


def other_content(_: Registry, target: Registry) -> None:
    publish_one(target, seed=70)


def other_number(source: Registry, target: Registry) -> None:
    target.copies.take("intent", source.copies)
    source.delete("intent", publish_one(source, seed=60).version)
    for registry in (source, target):
        publish_one(registry, seed=61)


def deleted(_: Registry, target: Registry) -> None:
    publish_one(target, seed=0)
    target.delete("intent", 1)


def other_history(_: Registry, target: Registry) -> None:
    publish_one(target, seed=0)
    target.promote("intent", "prod", 1, by="eve")


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        (other_content, "version 1 has other content there"),
        (other_number, "version 6 has the content of version 5 there"),
        (deleted, "version 1 was deleted there"),
        (other_history, "alias 'prod' has another history there"),
    ],
)
def test_a_target_that_contradicts_the_source_is_left_alone(
    folders: Registries, happened: Callable[[Registry, Registry], None], reason: str
) -> None:
    source, target = folders
    happened(source, target)
    before = target.generation()

    with raises("copy_conflict", match=reason):
        target.copies.take("intent", source.copies)

    assert target.generation() == before
    assert target.copies.take("mood", source.copies).versions == (1,)


def test_a_damaged_blob_of_the_source_is_not_copied(folders: Registries, tmp_path: Path) -> None:
    source, target = folders
    place = tmp_path / "a" / "blobs" / blob_key(source.resolve("intent/2").blobs[0].sha256)
    place.chmod(0o600)
    place.write_bytes(b"damaged")

    with pytest.raises(CorruptBlobError, match=" of intent/2 must have"):
        target.copies.take("intent", source.copies)

    assert target.tasks() == []


def test_a_version_with_the_same_content_counts_as_there(folders: Registries) -> None:
    source, target = folders
    draft, blobs = make_draft(task="mood", seed=9)
    target.publish(draft, blobs)

    assert target.copies.take("mood", source.copies).present == (1,)

import os
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from doubles.damage import blob_paths, write_rows
from doubles.drafts import draft_with, make_draft, publish_one
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import CorruptBlobError, InvalidManifestError, StoreUnavailableError
from nunatak_registry.store import Registry
from nunatak_registry.upkeep import Finding, FindingKind

DATA = make_draft()[1]["parameters"]


@dataclass
class ManualClock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def registry(folder: Path, clock: ManualClock) -> Generator[Registry]:
    with Registry.open(folder, clock=clock) as registry:
        yield registry


def path_of(folder: Path, seed: int) -> Path:
    digest = digest_of(make_draft(seed=seed)[1]["parameters"])
    return folder / "blobs" / "sha256" / digest[:2] / digest


def write_aged(path: Path, data: bytes, *, age_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    moment = datetime.now(UTC).timestamp() - age_s
    os.utime(path, (moment, moment))


def test_deleted_version_can_be_read_until_it_is_collected(
    registry: Registry, clock: ManualClock
) -> None:
    held = publish_one(registry)
    clock.advance(10_000)
    registry.delete("intent", 1)

    clock.advance(3599)
    early = registry.gc()
    assert registry.read_blob(held) == DATA
    assert (early.removed_blobs, early.kept_young) == ((), 1)

    clock.advance(2)
    assert registry.gc().removed_blobs == (held.blobs[0].sha256,)
    assert registry.verify() == []


def test_grace_starts_again_when_a_blob_is_published_and_deleted_again(
    registry: Registry, clock: ManualClock
) -> None:
    publish_one(registry)
    registry.delete("intent", 1)
    clock.advance(5000)
    publish_one(registry)
    assert registry.gc().removed_blobs == ()
    registry.delete("intent", 2)

    clock.advance(3000)
    assert registry.gc().removed_blobs == ()
    clock.advance(1000)
    assert len(registry.gc().removed_blobs) == 1


def test_leftovers_of_killed_writers_are_collected_and_files_under_way_are_not(
    registry: Registry, folder: Path
) -> None:
    publish_one(registry)
    folder_of_blobs = path_of(folder, 0).parent
    for seed, age_s in ((1, 7200), (2, 60)):
        write_aged(path_of(folder, seed), make_draft(seed=seed)[1]["parameters"], age_s=age_s)
        write_aged(folder_of_blobs / f".{seed:032}.tmp", b"cut short", age_s=age_s)

    collected = registry.gc()

    assert (len(collected.removed_blobs), collected.removed_temporary) == (1, 1)
    assert collected.kept_young == 2
    assert not path_of(folder, 1).exists()
    assert path_of(folder, 2).exists()
    assert [path.name for path in folder_of_blobs.glob(".*")] == [f".{2:032}.tmp"]


def test_collection_never_touches_strangers(registry: Registry, folder: Path) -> None:
    stranger = path_of(folder, 0).parent / "README"
    write_aged(stranger, b"hello", age_s=7200)

    registry.gc(grace_s=0)

    assert stranger.read_bytes() == b"hello"


def test_only_a_full_check_looks_for_leftovers(registry: Registry, folder: Path) -> None:
    publish_one(registry)
    write_aged(path_of(folder, 1), make_draft(seed=1)[1]["parameters"], age_s=0)

    assert registry.verify("intent") == []
    assert [finding.kind for finding in registry.verify()] == [FindingKind.ORPHAN]


def found_and_moved(registry: Registry) -> list[tuple[FindingKind, bool]]:
    found = registry.verify(quarantine=True)
    return [(finding.kind, finding.moved_to is not None) for finding in found]


def moved_file(folder: Path, finding: Finding) -> Path:
    assert finding.moved_to is not None
    return folder / "blobs" / finding.moved_to


def test_damaged_blob_is_quarantined_whole_for_all_its_versions_and_the_others_are_served(
    registry: Registry, folder: Path
) -> None:
    publish_one(registry, "a")
    publish_one(registry, "b")
    good = publish_one(registry, "good", seed=1)
    path = path_of(folder, 0)
    path.chmod(0o644)
    path.write_bytes(b"damaged")

    first, second = registry.verify(quarantine=True)

    assert [(it.subject, it.kind) for it in (first, second)] == [
        ("a/1", FindingKind.BLOB),
        ("b/1", FindingKind.BLOB),
    ]
    assert moved_file(folder, first).read_bytes() == b"damaged"
    assert first.moved_to == second.moved_to
    assert not path.exists()
    assert registry.read_blob(good) == make_draft(seed=1)[1]["parameters"]
    assert registry.verify("good") == []
    assert found_and_moved(registry) == [(FindingKind.BLOB, False)] * 2


def make_stranger(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/")
        case "folder":
            path.mkdir()
            (path / "inner").write_bytes(b"")
        case _:
            path.write_bytes(b"")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "file"])
@pytest.mark.parametrize(
    "place", ["sha256/ab/stranger", "sha256/ab/" + "c" * 64, f"sha256/00/{digest_of(DATA)}"]
)
def test_stranger_among_the_blobs_is_quarantined(
    registry: Registry, folder: Path, kind: str, place: str
) -> None:
    publish_one(registry)
    make_stranger(kind, folder / "blobs" / place)

    (finding,) = registry.verify(quarantine=True)

    assert (finding.subject, finding.kind) == (place, FindingKind.STRANGER)
    assert os.path.lexists(moved_file(folder, finding))
    assert registry.verify() == []


def test_orphan_of_other_bytes_is_a_stranger(registry: Registry, folder: Path) -> None:
    write_aged(path_of(folder, 0), b"other bytes", age_s=7200)

    assert found_and_moved(registry) == [(FindingKind.STRANGER, True)]


def test_stranger_next_to_the_blobs_is_reported_and_left_alone(
    registry: Registry, folder: Path
) -> None:
    publish_one(registry)
    (folder / "blobs" / "README").write_bytes(b"hello")

    assert found_and_moved(registry) == [(FindingKind.STRANGER, False)]


@pytest.mark.parametrize("depth", [1, 2])
def test_link_in_place_of_a_blob_folder_is_not_followed(
    registry: Registry, folder: Path, tmp_path: Path, depth: int
) -> None:
    publish_one(registry)
    path = path_of(folder, 0)
    place = path.parents[depth - 1]
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")

    kinds = {finding.kind for finding in registry.verify(quarantine=True)}

    assert kinds == {FindingKind.BLOB, FindingKind.STRANGER}
    assert not os.path.lexists(place)
    # Without its folder, the place could be a volume that is not mounted.
    path.parents[1].mkdir(exist_ok=True)
    publish_one(registry)
    assert registry.verify() == []


def replace_manifest(folder: Path, document: str) -> None:
    write_rows(
        folder,
        "UPDATE nunatak_versions SET manifest = ?, manifest_digest = ?",
        document,
        digest_of(document.encode()),
    )


@pytest.mark.parametrize("damage", ["gone", "changed", "link"])
def test_damaged_blob_is_refused_reported_and_healed_by_publishing_again(
    registry: Registry, folder: Path, damage: str
) -> None:
    draft, blobs = make_draft()
    manifest = registry.publish(draft, blobs)
    (path,) = blob_paths(folder)
    data = path.read_bytes()
    path.rename(folder / "elsewhere")
    if damage == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "link":
        path.symlink_to(folder / "elsewhere")

    with pytest.raises(CorruptBlobError, match=r"\.\.\. of intent/1 (is missing|holds bytes)"):
        registry.read_blob(manifest)
    assert [(found.subject, found.kind) for found in registry.verify()] == [
        ("intent/1", FindingKind.BLOB)
    ]

    assert registry.publish(draft, blobs) == manifest
    assert registry.read_blob(manifest) == data
    assert registry.verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nunatak_versions SET manifest = replace(manifest, 'yes', 'yea')",
        "UPDATE nunatak_versions SET manifest = '{}'",
        "UPDATE nunatak_versions SET manifest = substr(manifest, 2)",
        "UPDATE nunatak_versions SET manifest_digest = lower(hex(zeroblob(32)))",
    ],
)
def test_manifest_changed_in_the_index_is_refused_and_reported(
    registry: Registry, folder: Path, statement: str
) -> None:
    registry.publish(*make_draft())
    write_rows(folder, statement)

    with pytest.raises(InvalidManifestError, match="differs from the published manifest"):
        registry.resolve("intent")
    assert [(found.subject, found.kind) for found in registry.verify()] == [
        ("intent/1", FindingKind.MANIFEST)
    ]


def test_manifest_that_this_release_cannot_read_is_refused(
    registry: Registry, folder: Path
) -> None:
    registry.publish(*make_draft())
    replace_manifest(folder, "{}")

    with pytest.raises(InvalidManifestError, match="does not follow schema version 1"):
        registry.resolve("intent")


def test_manifest_of_one_version_is_refused_as_another(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft(seed=1))
    registry.publish(*make_draft(seed=2))
    write_rows(
        folder,
        "UPDATE nunatak_versions SET (manifest, manifest_digest) = "
        "(SELECT manifest, manifest_digest FROM nunatak_versions WHERE version = 1)",
    )

    with pytest.raises(InvalidManifestError, match="stored as intent/2 says it is intent/1"):
        registry.resolve("intent/2")


def test_blob_whose_header_is_bad_is_reported(registry: Registry, folder: Path) -> None:
    good, blobs = make_draft()
    registry.publish(good, blobs)
    pickle = b"\x80\x04\x95" + bytes(64)
    (path,) = blob_paths(folder)
    stored = path.parent.parent / digest_of(pickle)[:2] / digest_of(pickle)
    stored.parent.mkdir(exist_ok=True)
    stored.write_bytes(pickle)
    document = draft_with(parameters=pickle).model_dump_json()
    document = document.removesuffix("}") + ',"version":1}'
    replace_manifest(folder, document)

    assert FindingKind.HEADER in {found.kind for found in registry.verify()}


def test_what_no_version_needs_is_no_error() -> None:
    assert {kind for kind in FindingKind if not kind.is_error} == {
        FindingKind.ORPHAN,
        FindingKind.TEMPORARY,
        FindingKind.STRANGER,
    }


@pytest.mark.parametrize(
    ("statement", "subject"),
    [
        ("DELETE FROM nunatak_version_blobs", "intent/1"),
        ("UPDATE nunatak_aliases SET version = 9", "intent@prod"),
        ("UPDATE nunatak_alias_events SET to_version = 9", "intent@prod"),
        ("UPDATE nunatak_tasks SET next_version = 1", "intent"),
    ],
)
def test_index_that_contradicts_itself_is_reported(
    registry: Registry, folder: Path, statement: str, subject: str
) -> None:
    registry.publish(*make_draft())
    registry.promote("intent", "prod", 1)
    write_rows(folder, statement)

    assert subject in {
        found.subject for found in registry.verify() if found.kind is FindingKind.INDEX
    }


def test_blob_that_the_index_has_forgotten_is_not_collected(
    registry: Registry, folder: Path
) -> None:
    manifest = registry.publish(*make_draft())
    write_rows(folder, "DELETE FROM nunatak_version_blobs")

    assert registry.gc(grace_s=-60).removed_blobs == ()
    assert registry.read_blob(manifest)


def test_damaged_history_is_refused(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft())
    registry.promote("intent", "prod", 1)
    write_rows(folder, "UPDATE nunatak_alias_events SET at = 'yesterday'")

    with pytest.raises(StoreUnavailableError, match="history"):
        registry.history("intent", "prod")
    assert registry.resolve("intent").version == 1
    assert "intent@prod" in {found.subject for found in registry.verify()}

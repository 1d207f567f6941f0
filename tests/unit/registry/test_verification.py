from pathlib import Path

import pytest

from doubles.damage import blob_paths, write_rows
from doubles.drafts import draft_with, make_draft
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import CorruptBlobError, InvalidManifestError, StoreUnavailableError
from nunatak_registry.store import Registry
from nunatak_registry.upkeep import FindingKind


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

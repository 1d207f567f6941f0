import sqlite3
from collections.abc import Generator
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from sqlalchemy import URL

from doubles.drafts import make_draft, safetensors_bytes
from nunatak_registry.blobs import MAX_BLOB_BYTES, BlobStore, digest_of
from nunatak_registry.errors import (
    CorruptBlobError,
    InvalidArtifactError,
    InvalidManifestError,
    StoreUnavailableError,
)
from nunatak_registry.index import Index
from nunatak_registry.local_files import LocalFiles
from nunatak_registry.manifest import BlobRecord, TaskDraft
from nunatak_registry.store import Registry, utc_now
from nunatak_registry.verification import FindingKind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def registry(folder: Path) -> Generator[Registry]:
    with Registry.open(folder) as registry:
        yield registry


def blob_paths(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "blobs").rglob("*") if path.is_file())


def write_rows(folder: Path, statement: str, *values: str) -> None:
    connection = sqlite3.connect(folder / "index.sqlite3")
    with connection:
        connection.execute(statement, values)
    connection.close()


def replace_manifest(folder: Path, document: str) -> None:
    write_rows(
        folder,
        "UPDATE nunatak_versions SET manifest = ?, manifest_digest = ?",
        document,
        digest_of(document.encode()),
    )


def draft_of(**blobs: bytes) -> TaskDraft:
    draft, _ = make_draft()
    records = tuple(
        BlobRecord(role=role, sha256=digest_of(data), size_bytes=len(data))
        for role, data in blobs.items()
    )
    return draft.model_copy(update={"blobs": records})


def test_folder_holds_the_index_and_the_blobs_and_nothing_else(
    registry: Registry, folder: Path
) -> None:
    manifest = registry.publish(*make_draft())
    digest = manifest.blobs[0].sha256

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    expected = [f"blobs/sha256/{digest[:2]}/{digest}", "index.sqlite3"]

    # SQLite keeps its emptied journal.
    assert [name for name in files if not name.startswith("index.sqlite3-")] == expected


@pytest.mark.parametrize("names", [(), ("parameters", "more"), ("more",)])
def test_bytes_must_have_the_roles_of_the_draft(
    registry: Registry, folder: Path, names: tuple[str, ...]
) -> None:
    draft, blobs = make_draft()

    with pytest.raises(InvalidManifestError, match="describes blobs"):
        registry.publish(draft, dict.fromkeys(names, blobs["parameters"]))

    assert blob_paths(folder) == []


def test_a_role_given_twice_is_refused(registry: Registry) -> None:
    draft, blobs = make_draft()
    twice = draft.model_copy(update={"blobs": draft.blobs * 2})

    with pytest.raises(InvalidManifestError, match="describes blobs"):
        registry.publish(twice, blobs)


def test_bytes_of_another_size_are_refused(registry: Registry, folder: Path) -> None:
    draft, blobs = make_draft()

    with pytest.raises(InvalidManifestError, match="bytes, got"):
        registry.publish(draft, {"parameters": blobs["parameters"] + b"x"})

    assert blob_paths(folder) == []


def test_a_blob_beyond_the_cap_is_refused_unread(registry: Registry) -> None:
    draft, blobs = make_draft()
    (record,) = draft.blobs
    huge = draft.model_copy(
        update={"blobs": (record.model_copy(update={"size_bytes": MAX_BLOB_BYTES + 1}),)}
    )

    with pytest.raises(InvalidArtifactError, match="at most"):
        registry.publish(huge, blobs)


def test_other_bytes_of_the_same_size_are_refused(registry: Registry, folder: Path) -> None:
    draft, _ = make_draft(seed=0)
    _, others = make_draft(seed=1)

    with pytest.raises(InvalidManifestError, match="SHA-256"):
        registry.publish(draft, others)

    assert blob_paths(folder) == []


def test_bytes_that_are_no_safetensors_are_refused(registry: Registry, folder: Path) -> None:
    pickle = b"\x80\x04\x95" + bytes(64)

    with pytest.raises(InvalidArtifactError):
        registry.publish(draft_of(parameters=pickle), {"parameters": pickle})

    assert blob_paths(folder) == []
    assert registry.tasks() == []


def test_blobs_are_read_by_role(registry: Registry) -> None:
    blobs = {
        "parameters": safetensors_bytes({"a": ((1,), [1.0])}),
        "extra": safetensors_bytes({"b": ((1,), [2.0])}),
    }
    manifest = registry.publish(draft_of(**blobs), blobs)

    assert registry.read_blob(manifest) == blobs["parameters"]
    assert registry.read_blob(manifest, "extra") == blobs["extra"]
    with pytest.raises(InvalidManifestError, match="no blob 'other'"):
        registry.read_blob(manifest, "other")


def test_publish_killed_before_its_row_shows_nothing_and_can_be_repeated(
    registry: Registry, folder: Path
) -> None:
    draft, blobs = make_draft()
    registry.publish(draft, blobs)
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


class SweptFiles(LocalFiles):
    """Loses the first file written, as if a deletion elsewhere had swept it away."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writes = 0

    def write(self, key: str, data: bytes) -> None:
        super().write(key, data)
        self.writes += 1
        if self.writes == 1:
            self.delete(key)


def test_blob_swept_away_during_a_publish_is_written_again(folder: Path) -> None:
    folder.mkdir()
    index = Index.open(URL.create("sqlite", database=str(folder / "index.sqlite3")))
    files = SweptFiles(folder / "blobs")

    with Registry(index=index, blobs=BlobStore(files), clock=utc_now) as registry:
        manifest = registry.publish(*make_draft())

        assert registry.read_blob(manifest) == make_draft()[1]["parameters"]
    assert files.writes == 2


class UnclearableFiles(LocalFiles):
    """A place that can be written but not cleared."""

    def delete(self, key: str) -> None:
        raise StoreUnavailableError(f"cannot delete {key}")


def test_collection_cut_short_leaves_an_orphan_and_no_version(folder: Path) -> None:
    folder.mkdir()
    index = Index.open(URL.create("sqlite", database=str(folder / "index.sqlite3")))
    files = UnclearableFiles(folder / "blobs")

    with Registry(index=index, blobs=BlobStore(files), clock=utc_now) as registry:
        registry.publish(*make_draft())
        registry.delete("intent", 1)
        with pytest.raises(StoreUnavailableError):
            registry.gc(grace_s=0)

        assert registry.tasks() == []
        assert [found.kind for found in registry.verify()] == [FindingKind.ORPHAN]


@pytest.mark.parametrize("damage", ["remove", "truncate", "flip", "link"])
def test_damaged_blob_is_refused_reported_and_healed_by_publishing_again(
    registry: Registry, folder: Path, damage: str
) -> None:
    draft, blobs = make_draft()
    manifest = registry.publish(draft, blobs)
    (path,) = blob_paths(folder)
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "truncate":
            path.write_bytes(data[:-1])
        case "flip":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "link":
            elsewhere = folder / "elsewhere"
            elsewhere.write_bytes(data)
            path.symlink_to(elsewhere)
        case _:
            pass

    with pytest.raises(CorruptBlobError):
        registry.read_blob(manifest)
    assert [(found.subject, found.kind) for found in registry.verify()] == [
        ("intent/1", FindingKind.BLOB)
    ]

    assert registry.publish(draft, blobs) == manifest
    assert registry.read_blob(manifest) == data
    assert registry.verify() == []


def test_damaged_version_leaves_other_tasks_alone(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft("a", 1))
    blob_paths(folder)[0].unlink()
    good = registry.publish(*make_draft("b", 2))

    assert registry.read_blob(registry.resolve("b")) == make_draft("b", 2)[1]["parameters"]
    assert registry.verify("b") == []
    assert [found.subject for found in registry.verify()] == ["a/1"]
    assert good.version == 1


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            "UPDATE nunatak_versions SET manifest = replace(manifest, 'yes', 'yea')", id="label"
        ),
        pytest.param("UPDATE nunatak_versions SET manifest = '{}'", id="emptied"),
        pytest.param("UPDATE nunatak_versions SET manifest = substr(manifest, 2)", id="truncated"),
        pytest.param(
            "UPDATE nunatak_versions SET manifest_digest = lower(hex(zeroblob(32)))", id="digest"
        ),
    ],
)
def test_manifest_changed_in_the_index_is_refused_and_reported(
    registry: Registry, folder: Path, statement: str
) -> None:
    registry.publish(*make_draft())
    write_rows(folder, statement)

    with pytest.raises(InvalidManifestError, match="differs from the one published"):
        registry.resolve("intent")
    assert [(found.subject, found.kind) for found in registry.verify()] == [
        ("intent/1", FindingKind.MANIFEST),
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
    document = draft_of(parameters=pickle).model_dump_json()
    document = document.removesuffix("}") + ',"version":1}'
    replace_manifest(folder, document)

    assert FindingKind.HEADER in {found.kind for found in registry.verify()}


def test_what_no_version_needs_is_no_error() -> None:
    assert {kind for kind in FindingKind if not kind.is_error} == {
        FindingKind.ORPHAN,
        FindingKind.TEMPORARY,
        FindingKind.STRANGER,
    }


def test_folder_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreUnavailableError, match="registry folder"):
        Registry.open(tmp_path / "file" / "registry")


def test_sqlite_by_url_with_blobs_in_memory(tmp_path: Path) -> None:
    location = f"sqlite:///{tmp_path / 'index.db'}?blobs=memory://{tmp_path.name}"

    with Registry.open(location) as registry:
        manifest = registry.publish(*make_draft())
        assert registry.read_blob(manifest) == make_draft()[1]["parameters"]
        assert registry.verify() == []


def publish_all(folder: Path, seeds: range, start: Barrier) -> None:
    start.wait(60)
    with Registry.open(folder) as registry:
        for seed in seeds:
            registry.publish(*make_draft(seed=seed))


def test_two_processes_publish_every_version_exactly_once(folder: Path) -> None:
    context = get_context("spawn")
    start = context.Barrier(2)
    processes = [
        context.Process(target=publish_all, args=(folder, seeds, start))
        for seeds in (range(50), range(50, 100))
    ]

    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0]
    with Registry.open(folder) as registry:
        assert registry.task("intent").versions == tuple(range(1, 101))
        digests = {manifest.blobs[0].sha256 for manifest in registry.versions("intent")}
        assert len(digests) == 100
        assert registry.generation() == 100
        assert registry.verify() == []


def test_damaged_manifest_hides_its_task_alone(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft("bad", 1))
    registry.publish(*make_draft("good", 2))
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE task = 'bad'")

    assert [task.name for task in registry.tasks()] == ["good"]
    assert [(task.name, task.version) for task in registry.damaged_tasks()] == [("bad", 1)]
    with pytest.raises(InvalidManifestError):
        registry.task("bad")


def test_no_task_is_damaged_in_a_sound_registry(registry: Registry) -> None:
    registry.publish(*make_draft())

    assert registry.damaged_tasks() == []


@pytest.mark.parametrize(
    ("statement", "subject"),
    [
        pytest.param("DELETE FROM nunatak_version_blobs", "intent/1", id="blob-row"),
        pytest.param("UPDATE nunatak_aliases SET version = 9", "intent@prod", id="alias"),
        pytest.param("UPDATE nunatak_alias_events SET to_version = 9", "intent@prod", id="history"),
        pytest.param("UPDATE nunatak_tasks SET next_version = 1", "intent", id="counter"),
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

from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import URL

from doubles.damage import write_rows
from doubles.drafts import draft_with, make_draft, safetensors_bytes
from nunatak_registry.blobs.blobs import BlobStore
from nunatak_registry.blobs.files import LocalFiles
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.index.index import Index
from nunatak_registry.index.snapshot import Snapshot
from nunatak_registry.store import Registry, utc_now
from nunatak_registry.upkeep import FindingKind


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
    """Loses the first written file, as if another process had collected it."""

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
    """A place that allows writes and no removals."""

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


def test_generation_shows_what_any_opener_of_the_registry_changes(
    registry: Registry, folder: Path
) -> None:
    with Registry.open(folder) as other:
        seen = [registry.generation(), other.generation()]
        for number, writer in enumerate((registry, other, registry, registry, other)):
            writer.publish(*make_draft(seed=number))
            now = registry.generation()
            assert now == other.generation()
            assert now not in seen
            seen.append(now)


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

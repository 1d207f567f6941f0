"""Planted bugs: the negative controls. A check that catches none of them proves nothing.

Each mutant is a registry that leaves out one necessary step, or does the step too early.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, event

from nunatak_registry import ListedTask, Registry, StoreUnavailableError
from nunatak_registry.blobs.blobs import BlobStore, StoredFile, blob_key
from nunatak_registry.blobs.files import Files, LocalFiles
from nunatak_registry.index.index import Index
from nunatak_registry.store import utc_now


class Mutant(StrEnum):
    SKIP_FILE_SYNC = "skip-file-sync"
    SKIP_FOLDER_SYNC = "skip-folder-sync"
    SKIP_JOURNAL_SYNC = "skip-journal-sync"
    WRITE_IN_PLACE = "write-in-place"
    ROW_BEFORE_BLOB = "row-before-blob"
    BLOB_GONE_BEFORE_ROW = "blob-gone-before-row"
    ACKNOWLEDGE_EARLY = "acknowledge-early"
    SWALLOW_ERRORS = "swallow-errors"
    TRUST_BYTES = "trust-bytes"
    OVERLOOK_STRANGERS = "overlook-strangers"
    LEAVE_IN_PLACE = "leave-in-place"
    SKIP_COMPARE = "skip-compare"
    NAMES_AS_PATHS = "names-as-paths"


def open_registry(location: str, mutant: Mutant | None = None) -> Registry:
    """Open a registry; a registry with a bug must be in a folder."""
    match mutant:
        case Mutant.SKIP_FILE_SYNC | Mutant.SKIP_FOLDER_SYNC:
            _skip_syncs(of_folders=mutant is Mutant.SKIP_FOLDER_SYNC)
        case Mutant.SKIP_JOURNAL_SYNC:
            event.listen(Engine, "engine_connect", _sync_nothing)
        case Mutant.TRUST_BYTES:
            return _assemble(location, LocalFiles, TrustingBlobs)
        case Mutant.LEAVE_IN_PLACE:
            return _assemble(location, LocalFiles, LazyBlobs)
        case Mutant.NAMES_AS_PATHS:
            return _assemble(location, LocalFiles, kind=PathRegistry)
        case Mutant.BLOB_GONE_BEFORE_ROW:
            return _assemble(location, LocalFiles, kind=HastyRegistry)
        case Mutant() if mutant in _FILES_OF:
            return _assemble(location, _FILES_OF[mutant])
        case _:
            # Planted in the callers, which acknowledge and compare operations.
            pass
    return Registry.open(location)


class InPlaceFiles(LocalFiles):
    """Writes a file directly to its final place."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root

    def write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with path.open("wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            file.write(data[len(data) // 2 :])


class LateFiles(LocalFiles):
    """Reports a write as done, and writes the file only before the next write."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pending: dict[str, bytes] = {}

    def write(self, key: str, data: bytes) -> None:
        pending, self.pending = self.pending, {key: data}
        for late_key, late_data in pending.items():
            super().write(late_key, late_data)

    def exists(self, key: str) -> bool:
        return key in self.pending or super().exists(key)


class HopefulFiles(LocalFiles):
    """Reports every write as a success."""

    def write(self, key: str, data: bytes) -> None:
        with contextlib.suppress(StoreUnavailableError):
            super().write(key, data)

    def check_writable(self, room: int = 0) -> None:
        del room

    def exists(self, key: str) -> bool:
        return True


class BlindFiles(LocalFiles):
    """Lists plain files alone."""

    def list_keys(self) -> Iterator[str]:
        return (key for key in super().list_keys() if self.exists(key) and "READ" not in key)


class TrustingBlobs(BlobStore):
    """Returns the stored bytes without a check."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.files_below = files

    def get(self, digest: str, size: int, *, pause: Callable[[], None] = lambda: None) -> bytes:
        del pause
        return self.files_below.read(blob_key(digest), size) or b""


class LazyBlobs(BlobStore):
    """Reports that a file is in quarantine, and does not move the file."""

    def quarantine(self, key: str) -> str | None:
        return f"quarantine/{key}"


class PathRegistry(Registry):
    """Makes a path of a task's name before the check of the name. Use harmless names only."""

    folder: Path

    def task(self, name: str) -> ListedTask:
        (self.folder / f"{name}.lock").touch()
        return super().task(name)


class HastyRegistry(Registry):
    """Removes the blobs of a version before its row."""

    blobs_below: BlobStore

    def delete(self, task: str, version: int) -> None:
        manifest = self.resolve(f"{task}/{version}")
        self.blobs_below.remove(StoredFile.at(blob_key(manifest.blobs[0].sha256)))
        super().delete(task, version)


_FILES_OF: Mapping[Mutant, type[LocalFiles]] = {
    Mutant.WRITE_IN_PLACE: InPlaceFiles,
    Mutant.ROW_BEFORE_BLOB: LateFiles,
    Mutant.SWALLOW_ERRORS: HopefulFiles,
    Mutant.OVERLOOK_STRANGERS: BlindFiles,
}


def _assemble(
    location: str,
    files: type[LocalFiles],
    blobs: type[BlobStore] = BlobStore,
    kind: type[Registry] = Registry,
) -> Registry:
    Registry.open(location).close()
    folder = Path(location)
    store = blobs(files(folder / "blobs"))
    index = Index.open(URL.create("sqlite", database=str(folder / "index.sqlite3")))
    registry = kind(index=index, blobs=store, clock=utc_now)
    if isinstance(registry, HastyRegistry):
        registry.blobs_below = store
    if isinstance(registry, PathRegistry):
        registry.folder = folder
    return registry


def _skip_syncs(*, of_folders: bool) -> None:
    sync = os.fsync

    def partial(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) != of_folders:
            sync(descriptor)

    os.fsync = partial  # pyrefly: ignore[bad-assignment]


def _sync_nothing(connection: Connection) -> None:
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()

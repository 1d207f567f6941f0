"""What the cache folder holds, for people who want to know or need the room."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from nunatak_training import checkpoints, trunk
from nunatak_training.cache_folder import default_cache_folder
from nunatak_training.trunk.entries import sweep_partial


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """Where a killed run would go on."""

    path: Path
    num_bytes: int
    written_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """All that a cache folder holds."""

    folder: Path
    states: tuple[trunk.StoredEntry, ...]
    """From the least to the most recently used."""
    checkpoints: tuple[StoredCheckpoint, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it."""
        return sum(stored.entry.num_bytes for stored in self.states) + sum(
            stored.num_bytes for stored in self.checkpoints
        )


def cache_contents(folder: Path | None = None) -> CacheContents:
    """Return what a cache folder holds; nothing if there is no such folder."""
    root = folder or default_cache_folder()
    return CacheContents(
        folder=root,
        states=trunk.stored_entries(root / trunk.FOLDER),
        checkpoints=tuple(_checkpoints(root / checkpoints.FOLDER)),
    )


def clear_cache(folder: Path | None = None) -> CacheContents:
    """Remove what no process works on, and return what is left: checkpoints of running processes.

    States that a process reads stay readable to it.
    """
    root = folder or default_cache_folder()
    trunk.make_room(root / trunk.FOLDER, budget=0)
    sweep_partial(root / trunk.FOLDER)
    for stored in _checkpoints(root / checkpoints.FOLDER):
        lock = FileLock(stored.path.with_suffix(checkpoints.LOCK))
        try:
            with lock.acquire(blocking=False):
                stored.path.unlink(missing_ok=True)
        except Timeout:
            continue
    return cache_contents(root)


def _checkpoints(root: Path) -> Iterator[StoredCheckpoint]:
    for path in sorted(root.glob(f"*{checkpoints.SUFFIX}")):
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        written_at = datetime.fromtimestamp(facts.st_mtime, tz=UTC)
        yield StoredCheckpoint(path=path, num_bytes=facts.st_size, written_at=written_at)

"""What the cache folder holds, for people who want to know or need the room."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from nunatak_training import trunk
from nunatak_training.cache.folder import default_cache_folder
from nunatak_training.loop import checkpoints
from nunatak_training.trunk.entries import sweep_unusable


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
    sweep_unusable(root / trunk.FOLDER)
    for part in (trunk.FOLDER, checkpoints.FOLDER):
        _unlink_unlocked(root / part)
    return cache_contents(root)


def _unlink_unlocked(root: Path) -> None:
    """Remove the files of every key that no process holds, locks among them."""
    for key, files in _files_by_key(root).items():
        lock = root / f"{key}{checkpoints.LOCK}"
        try:
            with FileLock(lock).acquire(blocking=False):
                # The lock last, and while it is held: who opened it meanwhile sees that it is gone.
                for path in (*files, lock):
                    path.unlink(missing_ok=True)
        except Timeout:
            continue


def _checkpoints(root: Path) -> Iterator[StoredCheckpoint]:
    """The checkpoints by key, each with what a kill amid writing left of the next one."""
    for key, files in _files_by_key(root).items():
        facts = list[os.stat_result]()
        for path in files:
            with suppress(FileNotFoundError):
                facts.append(path.stat())
        if facts:
            yield StoredCheckpoint(
                path=root / f"{key}{checkpoints.SUFFIX}",
                num_bytes=sum(each.st_size for each in facts),
                written_at=datetime.fromtimestamp(max(it.st_mtime for it in facts), tz=UTC),
            )


def _files_by_key(root: Path) -> Mapping[str, Sequence[Path]]:
    """The files of each key, without its lock."""
    found = defaultdict[str, list[Path]](list)
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_file():
            files = found[path.name.partition(".")[0]]
            if path.suffix != checkpoints.LOCK:
                files.append(path)
    return found

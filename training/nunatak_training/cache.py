"""The cache folder: reproducible files of training, and checkpoints of killed runs.

<folder>/trunk/<key>.safetensors         trunk states of one data set, named in its metadata
<folder>/checkpoints/<key>.safetensors   the state from which a killed run continues
<folder>/checkpoints/<key>.answers.jsonl   an upstream's answers to an adoption that stopped
<folder>/*/<key>*.partial                an unfinished file, or the rest of a killed write
<folder>/*/<key>.lock                    locked by the process that makes or uses the key's files
"""

import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import CACHE_VARIABLE

STATES_FOLDER, CHECKPOINTS_FOLDER = "trunk", "checkpoints"
SUFFIX, LOCK, PARTIAL = ".safetensors", ".lock", ".partial"


class StatesFacts(BaseModel, frozen=True, extra="forbid"):
    """The metadata of a file of trunk states."""

    key: str
    """The name of the file: a digest over everything that the states depend on."""
    digest: str
    """SHA-256 of the states."""
    backbone: str
    depth: int
    num_inputs: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStates:
    path: Path
    facts: StatesFacts
    used_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    path: Path
    num_bytes: int
    written_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    folder: Path
    states: tuple[StoredStates, ...]
    """From the least to the most recently used."""
    checkpoints: tuple[StoredCheckpoint, ...]

    @property
    def num_bytes(self) -> int:
        return sum(stored.facts.num_bytes for stored in self.states) + sum(
            stored.num_bytes for stored in self.checkpoints
        )


def default_cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else platformdirs.user_cache_path("nunatak")


@contextmanager
def usable(folder: Path) -> Generator[None]:
    """Raise `cache_unusable` for a file or folder of the cache that cannot be read or written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise NunatakError("cache_unusable", folder=folder, problem=str(error)) from error


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a temporary path, which becomes `path` in one step at the end of the block.

    Only one process at a time may write to the same path. An error leaves `path` unchanged.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def stored_states(root: Path) -> tuple[StoredStates, ...]:
    """From the least to the most recently used."""
    found = map(_read_states, root.glob(f"*{SUFFIX}"))
    return tuple(sorted((it for it in found if it is not None), key=lambda it: it.used_at))


def make_room(root: Path, *, budget: int) -> None:
    """Remove the least recently used states; a process that reads them still can."""
    held = stored_states(root)
    total = sum(stored.facts.num_bytes for stored in held)
    for stored in held:
        if total <= budget:
            return
        stored.path.unlink(missing_ok=True)
        total -= stored.facts.num_bytes


def sweep_unusable(root: Path) -> None:
    """Remove partial files that no process writes any more, and files that cannot be read."""
    for path in [*root.glob(f"*{PARTIAL}"), *root.glob(f"*{SUFFIX}")]:
        if path.suffix == SUFFIX and _read_states(path) is not None:
            continue
        lock = FileLock(path.with_name(_key_of(path) + LOCK))
        with suppress(Timeout), lock.acquire(blocking=False):
            # Another process may have created the file again before the lock was free.
            if path.suffix == PARTIAL or _read_states(path) is None:
                path.unlink(missing_ok=True)


def cache_contents(folder: Path | None = None) -> CacheContents:
    root = folder or default_cache_folder()
    return CacheContents(
        folder=root,
        states=stored_states(root / STATES_FOLDER),
        checkpoints=tuple(_checkpoints(root / CHECKPOINTS_FOLDER)),
    )


def clear_cache(folder: Path | None = None) -> CacheContents:
    """Remove the files that no process works on; return the rest, the checkpoints in use."""
    root = folder or default_cache_folder()
    for part in (STATES_FOLDER, CHECKPOINTS_FOLDER):
        _unlink_unlocked(root / part)
    return cache_contents(root)


def _read_states(path: Path) -> StoredStates | None:
    try:
        used_at = datetime.fromtimestamp(path.stat().st_mtime, tz=UTC)
        with safe_open(path, framework="np") as file:
            facts = StatesFacts.model_validate(file.metadata())
    except (FileNotFoundError, SafetensorError, ValidationError):
        return None
    return StoredStates(path=path, facts=facts, used_at=used_at)


def _key_of(path: Path) -> str:
    return path.name.partition(".")[0]


def _unlink_unlocked(root: Path) -> None:
    """Remove the files of every key that no process holds, including locks."""
    for key, files in _files_by_key(root).items():
        lock = root / f"{key}{LOCK}"
        with suppress(Timeout), FileLock(lock).acquire(blocking=False):
            # The lock file is removed last, under its lock, so that a process that opened it sees
            # the removal.
            for path in (*files, lock):
                path.unlink(missing_ok=True)


def _checkpoints(root: Path) -> Iterator[StoredCheckpoint]:
    """The checkpoints by key, each with the partial file of a killed write."""
    for key, files in _files_by_key(root).items():
        facts = list[os.stat_result]()
        for path in files:
            with suppress(FileNotFoundError):
                facts.append(path.stat())
        if facts:
            yield StoredCheckpoint(
                path=root / f"{key}{SUFFIX}",
                num_bytes=sum(each.st_size for each in facts),
                written_at=datetime.fromtimestamp(max(it.st_mtime for it in facts), tz=UTC),
            )


def _files_by_key(root: Path) -> Mapping[str, Sequence[Path]]:
    found = defaultdict[str, list[Path]](list)
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_file():
            files = found[_key_of(path)]
            if path.suffix != LOCK:
                files.append(path)
    return found

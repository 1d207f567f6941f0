"""The entries of the trunk cache on disk: what one folder holds, and which go first.

<folder>/<key>/entry.json      what the states are, and the checksum of the other file
<folder>/<key>/states.bin      the packed states, row after row
<folder>/<key>.lock            held while the entry is made
<folder>/<key>.*.partial       an entry in the making, or what a killed process left of it
"""

import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

ENTRY, STATES = "entry.json", "states.bin"
PARTIAL, LOCK = ".partial", ".lock"
BLOCK_BYTES = 1 << 24


class TrunkEntry(BaseModel):
    """What an entry says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    backbone_digest: str
    numerics: str
    depth: int
    num_inputs: int
    num_tokens: int
    width: int
    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry that is there."""

    folder: Path
    entry: TrunkEntry
    used_at: datetime


def read_entry(folder: Path) -> StoredEntry | None:
    """Return the entry in a folder; None if there is none, or none that can be read."""
    place = folder / ENTRY
    try:
        used_at = datetime.fromtimestamp(place.stat().st_mtime, tz=UTC)
        entry = TrunkEntry.model_validate_json(place.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return StoredEntry(folder=folder, entry=entry, used_at=used_at)


def stored_entries(root: Path) -> tuple[StoredEntry, ...]:
    """Return all entries, from the least to the most recently used."""
    found = [read_entry(folder) for folder in root.iterdir()] if root.is_dir() else []
    return tuple(sorted((it for it in found if it is not None), key=lambda it: it.used_at))


def is_whole(stored: StoredEntry) -> bool:
    """Whether the states are those that were written, by size and checksum."""
    place = stored.folder / STATES
    try:
        if place.stat().st_size != stored.entry.num_bytes:
            return False
        with place.open("rb") as file:
            return checksum(file) == stored.entry.crc32
    except FileNotFoundError:
        return False


def checksum(file: BinaryIO) -> int:
    """CRC-32 of what is left of a file."""
    found = 0
    while block := file.read(BLOCK_BYTES):
        found = zlib.crc32(block, found)
    return found


def drop_entry(folder: Path) -> None:
    """Remove an entry in one step, so that nobody sees half of it; fine if it is gone."""
    # An empty folder to put in its place, swept up later should this process be killed in between.
    doomed = new_partial(folder)
    with suppress(FileNotFoundError):
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def new_partial(folder: Path) -> Path:
    """Create an empty folder beside that of an entry, which counts as partial."""
    return Path(tempfile.mkdtemp(PARTIAL, f"{folder.name}.", folder.parent))


def make_room(root: Path, *, budget: int) -> None:
    """Drop entries, the least recently used first, until the others fit a budget of bytes."""
    entries = stored_entries(root)
    total = sum(stored.entry.num_bytes for stored in entries)
    for stored in entries:
        if total <= budget:
            return
        drop_entry(stored.folder)
        total -= stored.entry.num_bytes


def sweep_unusable(root: Path) -> None:
    """Remove what nobody makes and nobody can read: what killed processes left, broken entries."""
    for folder in _unusable(root):
        lock = FileLock(root / f"{folder.name.partition('.')[0]}{LOCK}")
        try:
            with lock.acquire(blocking=False):
                # It may have been made anew before the lock was free.
                if read_entry(folder) is None or folder.suffix == PARTIAL:
                    shutil.rmtree(folder, ignore_errors=True)
        except Timeout:
            continue


def _unusable(root: Path) -> Iterator[Path]:
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.is_dir() and (folder.suffix == PARTIAL or read_entry(folder) is None):
            yield folder

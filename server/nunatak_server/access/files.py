"""The file of API keys: readers see the old file or the new one, never a part."""

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from nunatak_server.access.keys import KeyFile, KeyRecord
from nunatak_server.errors import KeyFileError

MODE: Final = 0o600
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
MAX_BYTES: Final = 16 * 1024**2

Keys = tuple[KeyRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Identifies one state of a file. A write renames a new file, so the inode changes."""

    inode: int
    modified_ns: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedKeys:
    """Keys, and the state of their file."""

    keys: Keys
    stamp: Stamp


def stamp_of(path: Path) -> Stamp:
    try:
        return _stamp(path.stat())
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be read") from None


def read_keys(path: Path) -> StampedKeys:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            _check(path, status)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be read") from None
    return StampedKeys(keys=_parse(path, data), stamp=_stamp(status))


def change_keys(path: Path, change: Callable[[Keys], Keys]) -> None:
    """Replace the keys of a file with the result of `change`; a missing file has no keys.

    A lock orders changes of all processes. Readers see the old file or the new one.
    """
    try:
        with _locked(path.parent):
            keys = read_keys(path).keys if path.exists() else ()
            _write(path, KeyFile(keys=change(keys)))
    except OSError as error:
        raise KeyFileError(path, error.strerror or "cannot be written") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting: to open a pipe would block until another process writes."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(path, "is not a regular file")
    if status.st_mode & WRITABLE_BY_OTHERS:
        raise KeyFileError(path, f"may be written by others; run: chmod 600 {path}")


def _parse(path: Path, data: bytes) -> Keys:
    if len(data) > MAX_BYTES:
        raise KeyFileError(path, f"has more than {MAX_BYTES} bytes")
    try:
        return KeyFile.model_validate_json(data).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise KeyFileError(path, f"{place}: {first['msg']}") from None


def _write(path: Path, content: KeyFile) -> None:
    """Replace a file and keep its owner and mode, because a server may run as another user."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _keep_owner(path, file.fileno())
            file.write(content.model_dump_json(indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_owner(path: Path, descriptor: int) -> None:
    if not path.exists():
        return
    status = path.stat()
    try:
        os.fchown(descriptor, status.st_uid, status.st_gid)
    except PermissionError:
        owner = f"user {status.st_uid} and group {status.st_gid}"
        raise KeyFileError(
            path, f"belongs to {owner}; run the command as that user, or as root"
        ) from None
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, and flush renames in the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(inode=status.st_ino, modified_ns=status.st_mtime_ns, num_bytes=status.st_size)

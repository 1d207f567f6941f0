# fsspec ships no types: what it returns is given one where it enters.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false
"""Where blobs lie: a local folder, or any object store that fsspec speaks.

Keys are relative paths with '/', made from digests only. A file appears whole or not at all.
"""

import errno
import os
import stat
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from nunatak_registry.errors import StoreUnavailableError

# A missing file, a file in place of a folder, a symbolic link, a socket: no file of ours is there.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}


class Files(Protocol):
    """Whole files under one root, by key.

    Every method raises `StoreUnavailableError` where the place cannot be reached.
    """

    def write(self, key: str, data: bytes) -> None:
        """Store `data`, durable on return; an earlier file of that key is replaced whole."""
        ...

    def read(self, key: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes from the start, or None where no plain file is."""
        ...

    def exists(self, key: str) -> bool:
        """Tell whether a plain file is there."""
        ...

    def delete(self, key: str) -> None:
        """Remove the file, if it is there."""
        ...

    def list_keys(self) -> Iterator[str]:
        """Yield the key of every file under the root, strangers included, in no order."""
        ...


def open_files(root: str) -> Files:
    """Return the files under `root`, a local path or an fsspec URL. Creates nothing.

    Raises:
        StoreUnavailableError: the protocol is unknown, or its package is not installed.
    """
    if "://" not in root:
        return LocalFiles(Path(root))
    protocol = root.partition("://")[0]
    try:
        # A listing that another process has outdated must never answer for the store.
        filesystem, path = cast(
            "tuple[AbstractFileSystem, str]", url_to_fs(root, use_listings_cache=False)
        )
    except (ImportError, ValueError) as error:
        raise StoreUnavailableError(
            f"blob root must be a path or an fsspec URL whose package is installed, "
            f"got protocol {protocol!r}: {error}"
        ) from error
    if isinstance(filesystem, LocalFileSystem):
        return LocalFiles(Path(path))
    return RemoteFiles(filesystem, path)


class LocalFiles:
    """A folder of a POSIX file system.

    Reads never map a file: a mapped file that is truncated kills the process, one that is
    overwritten changes weights in use. They follow no link and block on no pipe.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, key: str, data: bytes) -> None:
        """Store `data`: temporary file, fsync, rename, fsync of the folders."""
        path = self._root / key
        with _local_refusals("write"):
            _create_folder(path.parent)
            temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
            try:
                _write_through(temporary, data)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            # The folder may be new and its maker not yet done syncing: sync it in any case.
            _sync_folder(path.parent)
            _sync_folder(path.parent.parent)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes from the start, or None where no plain file is."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _local_refusals("read"):
            try:
                descriptor = os.open(self._root / key, flags)
            except OSError as error:
                if error.errno in _NO_FILE:
                    return None
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    return file.read(limit)
            finally:
                os.close(descriptor)

    def exists(self, key: str) -> bool:
        """Tell whether a plain file is there."""
        with _local_refusals("look for"):
            try:
                return stat.S_ISREG((self._root / key).lstat().st_mode)
            except OSError as error:
                if error.errno in _NO_FILE:
                    return False
                raise

    def delete(self, key: str) -> None:
        """Remove the file, if it is there."""
        with _local_refusals("delete"):
            (self._root / key).unlink(missing_ok=True)

    def list_keys(self) -> Iterator[str]:
        """Yield the key of every file under the root, strangers included, in no order."""
        with _local_refusals("list"):
            for folder, _, names in os.walk(self._root, onerror=_raise_unless_missing):
                prefix = Path(folder).relative_to(self._root)
                yield from ((prefix / name).as_posix() for name in names)


class RemoteFiles:
    """A place behind fsspec, such as a bucket, whose puts are atomic and durable of themselves."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def write(self, key: str, data: bytes) -> None:
        """Store `data` with one put."""
        with _remote_refusals("write"):
            self._filesystem.pipe_file(self._path(key), data)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes from the start, or None where no object is."""
        with _remote_refusals("read"):
            try:
                data = self._filesystem.cat_file(self._path(key), start=0, end=limit)
            except (FileNotFoundError, IsADirectoryError):
                return None
            return cast("bytes", data)

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        with _remote_refusals("look for"):
            try:
                info = cast("dict[str, object]", self._filesystem.info(self._path(key)))
            except FileNotFoundError:
                return False
            return info.get("type") == "file"

    def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        with _remote_refusals("delete"):
            try:
                self._filesystem.rm_file(self._path(key))
            except FileNotFoundError:
                return

    def list_keys(self) -> Iterator[str]:
        """Yield the key of every object under the root, strangers included, in no order."""
        with _remote_refusals("list"):
            paths = cast("Iterable[str]", self._filesystem.find(self._root))
        prefix = f"{self._root}/"
        yield from (path.removeprefix(prefix) for path in paths)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


def _create_folder(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _write_through(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if error.errno not in _NO_FILE:
        raise error


@contextmanager
def _local_refusals(action: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(
            f"cannot {action} a blob: {error.strerror or type(error).__name__}; "
            "check the blob folder's disk and permissions"
        ) from error


@contextmanager
def _remote_refusals(action: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        # Each protocol raises exceptions of its own, and their texts may quote credentials:
        # the cause is chained, the message carries its kind alone.
        raise StoreUnavailableError(
            f"cannot {action} a blob in the object store: {type(error).__name__}; "
            "check its address, credentials and reachability"
        ) from error

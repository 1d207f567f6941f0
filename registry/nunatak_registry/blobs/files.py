"""Files of blobs: in a local folder, or in any object store that fsspec supports.

Keys are relative paths of at most three parts with '/', made from digests only. A file appears
whole or not at all.

`LocalFiles` keeps files durably in a folder of a POSIX file system. `LocalFiles` never maps a file
to memory: to truncate a mapped file kills the process, and to overwrite a mapped file changes
weights in use. Below the root, `LocalFiles` follows no link and waits for no pipe.

`RemoteFiles` uses fsspec, for example for a bucket whose puts are atomic and durable.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeAlias, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from nunatak_registry.errors import StoreReadOnlyError, StoreUnavailableError

# A missing file, a file in place of a folder, a symbolic link or a socket: no blob is there.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_MAX_PARTS = 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_files(root: str) -> "Files":
    """Return the files under `root`, a local path or an fsspec URL. Creates nothing."""
    if "://" not in root:
        return LocalFiles(Path(root))
    protocol = root.partition("://")[0]
    try:
        # No cached listings: another process may have changed the store.
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
    """A local folder. After a failed fsync the folder refuses writes, because data may be lost.

    Every method raises `StoreUnavailableError` if the place cannot be reached.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sync_failure: str | None = None

    def check_writable(self, room: int = 0) -> None:
        """Raise `StoreReadOnlyError` once a write may have been lost; look for `room` bytes."""
        if self._sync_failure is not None:
            raise StoreReadOnlyError(self._sync_failure)
        if room:
            folder = next(it for it in (self._root, *self._root.parents) if it.exists())
            with _local_refusals(f"write {room:,} bytes"), TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, room)

    def write(self, key: str, data: bytes) -> None:
        """Store `data`, durable on return; an earlier file of that key is replaced whole."""
        self.check_writable()
        path = self._root / key
        with _local_refusals(f"write the blob {key}"), self._failed_sync_is_final():
            create_durable_folder(path.parent)
            with self._folder(key) as folder:
                _write_whole(folder, path.name, data)
                # Another process may have created the folders and not synced them yet, so they are
                # synced in any case.
                _sync(folder)
            for above in (path.parent.parent, self._root):
                sync_folder(above)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes from the start, or None if there is no plain file."""
        with _local_refusals(f"read the blob {key}"):
            try:
                with self._folder(key) as folder:
                    descriptor = os.open(_name(key), _READ, dir_fd=folder)
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
        """Return whether a plain file is there."""
        found = self._status(key)
        return found is not None and stat.S_ISREG(found.st_mode)

    def has_folder(self, name: str) -> bool:
        found = self._status(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def delete(self, key: str) -> None:
        self.check_writable()
        with _local_refusals(f"delete the blob {key}"):
            try:
                with self._folder(key) as folder:
                    os.unlink(_name(key), dir_fd=folder)
            except FileNotFoundError:
                return

    def move(self, key: str, target: str) -> bool:
        """Move the file at `key` without reading it; False if there is none."""
        self.check_writable()
        if self._status(key) is None:
            return False
        with _local_refusals(f"move the blob {key}"), self._failed_sync_is_final():
            create_durable_folder((self._root / target).parent)
            with self._folder(key) as source, self._folder(target) as destination:
                os.rename(_name(key), _name(target), src_dir_fd=source, dst_dir_fd=destination)
                _sync(destination)
                _sync(source)
        return True

    def modified(self, key: str) -> datetime | None:
        """Return the time of the file's last write, in UTC; None if there is none."""
        found = self._status(key)
        return None if found is None else datetime.fromtimestamp(found.st_mtime, UTC)

    def list_keys(self) -> Iterator[str]:
        """Yield the key of everything under the root, foreign files included, in no order.

        A folder is yielded only at the third part of a key, where no folder belongs.
        """
        with _local_refusals("list the blobs"):
            yield from _keys_below(self._root, "", 1)

    def _status(self, key: str) -> os.stat_result | None:
        with _local_refusals(f"look for the blob {key}"):
            try:
                with self._folder(key) as folder:
                    return os.stat(_name(key), dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno in _NO_FILE:
                    return None
                raise

    @contextmanager
    def _folder(self, key: str) -> Generator[int]:
        descriptor = os.open(self._root, _FOLDER)
        try:
            for part in key.split("/")[:-1]:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _failed_sync_is_final(self) -> Generator[None]:
        try:
            yield
        except _SyncFailedError as error:
            # The kernel may have dropped the pages, and the next fsync would report success.
            self._sync_failure = f"an fsync failed ({error.strerror})"
            raise StoreReadOnlyError(self._sync_failure) from error


def _write_whole(folder: int, name: str, data: bytes) -> None:
    temporary = f".{uuid.uuid4().hex}.tmp"
    try:
        with os.fdopen(os.open(temporary, _CREATE, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            _sync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        # The cause of the failed write may break this removal too. gc removes the file later.
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def create_durable_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync them."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


class _SyncFailedError(OSError):
    """An fsync failed: the written bytes may be lost."""


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder."""
    descriptor = os.open(folder, _FOLDER)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _SyncFailedError(error.errno, error.strerror) from error


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _keys_below(folder: Path, prefix: str, part: int) -> Iterator[str]:
    try:
        entries = os.scandir(folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            return
        raise
    with entries:
        for entry in entries:
            key = prefix + entry.name
            if part < _MAX_PARTS and entry.is_dir(follow_symlinks=False):
                yield from _keys_below(folder / entry.name, f"{key}/", part + 1)
            else:
                yield key


@contextmanager
def _local_refusals(action: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(
            f"cannot {action}: {error.strerror or type(error).__name__}; "
            "check the blob folder's disk and permissions"
        ) from error


class RemoteFiles:
    """An object store, as `LocalFiles`."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def check_writable(self, room: int = 0) -> None:
        """Do nothing: an object store is responsible for its own disks."""

    def write(self, key: str, data: bytes) -> None:
        with _remote_refusals("write"):
            self._filesystem.pipe_file(self._path(key), data)

    def read(self, key: str, limit: int) -> bytes | None:
        with _remote_refusals("read"):
            try:
                data = self._filesystem.cat_file(self._path(key), start=0, end=limit)
            except (FileNotFoundError, IsADirectoryError):
                return None
            return cast("bytes", data)

    def exists(self, key: str) -> bool:
        with _remote_refusals("look for"):
            try:
                info = cast("dict[str, object]", self._filesystem.info(self._path(key)))
            except FileNotFoundError:
                return False
            return info.get("type") == "file"

    def has_folder(self, name: str) -> bool:
        """Return True: files need no folders here."""
        return True

    def delete(self, key: str) -> None:
        with _remote_refusals("delete"), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(key))

    def move(self, key: str, target: str) -> bool:
        if not self.exists(key):
            return False
        with _remote_refusals("move"):
            self._filesystem.cp_file(self._path(key), self._path(target))
            self._filesystem.rm_file(self._path(key))
        return True

    def modified(self, key: str) -> datetime | None:
        with _remote_refusals("look for"), contextlib.suppress(FileNotFoundError):
            moment = cast("datetime", self._filesystem.modified(self._path(key)))
            return moment.astimezone(UTC)
        return None

    def list_keys(self) -> Iterator[str]:
        with _remote_refusals("list"):
            paths = cast("Iterable[str]", self._filesystem.find(self._root))
        prefix = f"{self._root}/"
        yield from (path.removeprefix(prefix) for path in paths)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


@contextmanager
def _remote_refusals(action: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        # Each protocol raises its own exceptions, whose texts may quote credentials. So the cause
        # is chained, and the message names only the kind of exception.
        raise StoreUnavailableError(
            f"cannot {action} a blob in the object store: {type(error).__name__}; "
            "check its address, credentials and reachability"
        ) from error


Files: TypeAlias = LocalFiles | RemoteFiles

# fsspec ships no types: what it returns is given one where it enters.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false
"""Blobs behind fsspec, such as in a bucket, whose puts are atomic and durable of themselves."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import cast

from fsspec import AbstractFileSystem

from nunatak_registry.errors import StoreUnavailableError


class RemoteFiles:
    """A place that fsspec reaches."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def check_writable(self) -> None:
        """Accept: an object store answers for its own disks."""

    def write(self, key: str, data: bytes) -> None:
        """Store `data` with one put."""
        with _refusals("write"):
            self._filesystem.pipe_file(self._path(key), data)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes from the start, or None where no object is."""
        with _refusals("read"):
            try:
                data = self._filesystem.cat_file(self._path(key), start=0, end=limit)
            except (FileNotFoundError, IsADirectoryError):
                return None
            return cast("bytes", data)

    def exists(self, key: str) -> bool:
        """Tell whether an object is there."""
        with _refusals("look for"):
            try:
                info = cast("dict[str, object]", self._filesystem.info(self._path(key)))
            except FileNotFoundError:
                return False
            return info.get("type") == "file"

    def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        with _refusals("delete"):
            try:
                self._filesystem.rm_file(self._path(key))
            except FileNotFoundError:
                return

    def move(self, key: str, target: str) -> bool:
        """Copy the object, then remove it; False where none is."""
        if not self.exists(key):
            return False
        with _refusals("move"):
            self._filesystem.cp_file(self._path(key), self._path(target))
            self._filesystem.rm_file(self._path(key))
        return True

    def modified(self, key: str) -> datetime | None:
        """Return when the object was written last, in UTC; None where none is."""
        with _refusals("look for"):
            try:
                moment = cast("datetime", self._filesystem.modified(self._path(key)))
            except FileNotFoundError:
                return None
            return moment.astimezone(UTC)

    def list_keys(self) -> Iterator[str]:
        """Yield the key of every object under the root, strangers included, in no order."""
        with _refusals("list"):
            paths = cast("Iterable[str]", self._filesystem.find(self._root))
        prefix = f"{self._root}/"
        yield from (path.removeprefix(prefix) for path in paths)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


@contextmanager
def _refusals(action: str) -> Generator[None]:
    try:
        yield
    except Exception as error:
        # Each protocol raises exceptions of its own, and their texts may quote credentials:
        # the cause is chained, the message carries its kind alone.
        raise StoreUnavailableError(
            f"cannot {action} a blob in the object store: {type(error).__name__}; "
            "check its address, credentials and reachability"
        ) from error

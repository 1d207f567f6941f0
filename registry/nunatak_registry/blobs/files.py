# fsspec ships no types: what it returns is given one where it enters.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false
"""Where blobs lie: a local folder, or any object store that fsspec speaks.

Keys are relative paths of at most three parts with '/', made from digests only. A file appears
whole or not at all.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from nunatak_registry.blobs.local_files import LocalFiles
from nunatak_registry.blobs.remote_files import RemoteFiles
from nunatak_registry.errors import StoreUnavailableError


class Files(Protocol):
    """Whole files under one root, by key.

    Every method raises `StoreUnavailableError` where the place cannot be reached.
    """

    def check_writable(self) -> None:
        """Raise `StoreReadOnlyError` once a write may have been lost."""
        ...

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

    def move(self, key: str, target: str) -> bool:
        """Move whatever lies at `key`, unread; False where nothing does."""
        ...

    def modified(self, key: str) -> datetime | None:
        """Return when the file was written last, in UTC; None where nothing is."""
        ...

    def list_keys(self) -> Iterator[str]:
        """Yield the key of everything under the root, strangers included, in no order.

        A folder is yielded only where no folder can be: at the third part of a key.
        """
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

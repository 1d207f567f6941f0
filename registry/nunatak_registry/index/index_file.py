"""The file of a SQLite index: it may be replaced by another one while a process has it open.

An open connection stays with the file it has opened, even after that file has lost its name. So
whoever uses a connection must first compare its file with the one that lies at the path now.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Self

from sqlalchemy import URL

from nunatak_registry.errors import StoreUnavailableError

FileIdentity = tuple[int, int]
"""Device and inode: no two files have the same as long as one of them is open."""


class IndexFile:
    """One path, and which file lies there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, url: URL) -> Self:
        """Return the file that a URL names.

        Raises:
            StoreUnavailableError: the URL names no file, or names it by a URI.
        """
        database = url.database
        if database is None or database in {"", ":memory:"}:
            raise StoreUnavailableError("a SQLite index must be a file, got a database in memory")
        if database.startswith("file:"):
            raise StoreUnavailableError("a SQLite index must be named by its path, got a URI")
        return cls(Path(database).absolute())

    def create(self) -> None:
        """Make an empty file if there is none."""
        if not self._path.exists():
            # SQLite itself: to close a file by other means would drop the locks of this process.
            with closing(sqlite3.connect(self._path)):
                pass

    def url(self, url: URL) -> URL:
        """Return a URL by which SQLite opens the file and never makes one."""
        named = url.set(database=self._path.as_uri())
        return named.update_query_dict({"mode": "rw", "uri": "true"})

    def identity(self) -> FileIdentity:
        """Return which file lies at the path now.

        Raises:
            StoreUnavailableError: there is none, or nothing can be known of it.
        """
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a twentieth of the time, for each use
        except FileNotFoundError as error:
            raise StoreUnavailableError(
                "the file of the registry index is missing; put it back, or restore it from a "
                "backup"
            ) from error
        except OSError as error:
            raise StoreUnavailableError(
                f"the file of the registry index cannot be looked at: {error.strerror}"
            ) from error
        return found.st_dev, found.st_ino

    def require(self, opened: FileIdentity) -> None:
        """Refuse to go on if another file lies at the path than the one that was opened.

        Raises:
            StoreUnavailableError: the file was replaced, or is missing.
        """
        if self.identity() != opened:
            raise StoreUnavailableError(
                "the registry index was replaced while this change was written to it; the change "
                "is lost with the old index: make it again"
            )

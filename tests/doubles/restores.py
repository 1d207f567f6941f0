"""Registries whose index is backed up and restored under processes that have it open."""

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from doubles.postgres import PostgresServer, find_binaries


class FileSite:
    """A registry on SQLite, restored by a rename, or through SQLite itself."""

    def __init__(self, folder: Path, *, is_renamed: bool) -> None:
        self.location = str(folder / "registry")
        self._index = folder / "registry" / "index.sqlite3"
        self._folder = folder
        self._is_renamed = is_renamed

    def back_up(self, name: str) -> None:
        with (
            closing(sqlite3.connect(self._index)) as source,
            closing(sqlite3.connect(self._folder / name)) as target,
        ):
            source.backup(target)

    def restore(self, name: str) -> None:
        if self._is_renamed:
            copy = self._index.with_name("incoming")
            shutil.copy(self._folder / name, copy)
            copy.replace(self._index)
            return
        with (
            closing(sqlite3.connect(self._folder / name)) as source,
            closing(sqlite3.connect(self._index)) as target,
        ):
            source.backup(target)


class PostgresSite:
    """A registry on PostgreSQL, whose tables are put back by `pg_restore`."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        url = server.create_database()
        self.location = f"{url}&blobs={folder / 'blobs'}"
        self._folder = folder
        self._url = url.replace("+psycopg", "")

    def back_up(self, name: str) -> None:
        self._run("pg_dump", "--format=custom", "--file", str(self._folder / name), self._url)

    def restore(self, name: str) -> None:
        options = ("--clean", "--if-exists", "--single-transaction", "--dbname", self._url)
        self._run("pg_restore", *options, str(self._folder / name))

    def _run(self, program: str, *arguments: str) -> None:
        binaries = find_binaries()
        assert binaries is not None
        subprocess.run([str(binaries / program), *arguments], check=True, timeout=60)  # noqa: S603 - PostgreSQL's own


RestoreSite = FileSite | PostgresSite

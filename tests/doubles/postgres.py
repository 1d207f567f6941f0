"""A private PostgreSQL server for tests: own data folder, own socket, no TCP port."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from pwd import getpwall

import psycopg
import pytest
from psycopg import sql

ANYWHERE = pytest.mark.parametrize(
    "location", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""Marks laws in which the database has no part: with PostgreSQL, only the slow run tests them."""
_UNPRIVILEGED = ("postgres", "nobody")
_END_OTHERS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC"


def find_binaries() -> Path | None:
    """Return the folder of PostgreSQL's server programs, newest release first, if there is one."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True
    )
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    programs = ("initdb", "pg_ctl", "postgres")
    return next(
        (folder for folder in folders if all((folder / name).exists() for name in programs)), None
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PostgresServer:
    """A running server; every call of `create_database` gives another empty database.

    A new database is three hundred files, so a test gets the databases of earlier tests again.
    """

    socket_folder: Path
    made: set[str]
    control: Callable[..., None]
    """Run `pg_ctl` with these arguments on this server."""
    numbers: "count[int]" = field(default_factory=count)

    def for_one_test(self) -> "PostgresServer":
        """Return the same server, which gives all databases out again, emptied."""
        return replace(self, numbers=count())

    def create_database(self) -> str:
        name = f"registry{next(self.numbers)}"
        if name in self.made:
            with self._connect(name) as connection:
                connection.execute(_END_OTHERS)
                connection.execute(_EMPTY)
        else:
            with self._connect("postgres") as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            self.made.add(name)
        return f"postgresql+psycopg://nunatak@/{name}?host={self.socket_folder}"

    def _connect(self, name: str) -> "psycopg.Connection":
        folder = str(self.socket_folder)
        return psycopg.connect(host=folder, user="nunatak", dbname=name, autocommit=True)

    def restart(self) -> None:
        """End the server at once, as a crash would, and start it again."""
        self.control("restart", "-w", "-m", "immediate")


@contextmanager
def private_postgres(binaries: Path) -> Generator[PostgresServer]:
    """Start a server in a temporary folder and stop it at the end."""
    # A short path, because a socket's path has at most 107 bytes. pytest's own folders are closed
    # to the unprivileged user that the server needs.
    folder = Path(tempfile.mkdtemp(prefix="nunatak-pg-"))
    user = _server_user()
    data = folder / "data"
    try:
        if user is not None:
            shutil.chown(folder, user)
        options = "-c listen_addresses='' -c fsync=off -k " + str(folder)
        initialize = ["--auth=trust", "--username=nunatak", "--no-sync", "--encoding=UTF8"]
        _run(user, binaries / "initdb", "-D", data, *initialize)
        started = ("-D", data, "-l", folder / "log", "-o", options)
        control = partial(_control, user, binaries, started)
        control("start", "-w")
        try:
            yield PostgresServer(socket_folder=folder, made=set(), control=control)
        finally:
            control("stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def _control(
    user: str | None, binaries: Path, started: Sequence[str | Path], *command: str
) -> None:
    _run(user, binaries / "pg_ctl", *command, *started)


def _server_user() -> str | None:
    # PostgreSQL refuses to run as root.
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in getpwall()}
    return next(name for name in _UNPRIVILEGED if name in known)


def _run(user: str | None, *command: str | Path) -> None:
    # The server keeps the inherited streams open, so a read of a pipe would never end.
    subprocess.run(  # noqa: S603 - the programs are PostgreSQL's own
        [str(part) for part in command],
        user=user,
        cwd="/",
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

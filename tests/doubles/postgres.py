"""A private PostgreSQL server for tests: own data folder, own socket, no TCP port."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from pwd import getpwall

import psycopg
from psycopg import sql

_UNPRIVILEGED = ("postgres", "nobody")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server; every call of `create_database` gives an empty database."""

    socket_folder: Path
    numbers: "count[int]"
    control: Callable[..., None]
    """Run `pg_ctl` with these arguments on this server."""

    def create_database(self) -> str:
        """Return the URL of a new database."""
        name = f"registry{next(self.numbers)}"
        with psycopg.connect(
            host=str(self.socket_folder), user="nunatak", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://nunatak@/{name}?host={self.socket_folder}"

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
            yield PostgresServer(socket_folder=folder, numbers=count(), control=control)
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

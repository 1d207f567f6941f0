"""A real server process on a free port.

The processes are forked from one that has imported the libraries, which take most of a start.
"""

import contextlib
import os
import queue
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import TextIOWrapper
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

COMMAND = "from nunatak_cli.main import app; app(['serve'])"
SCRIPT = """
from nunatak_server.processes.serving import serve
from nunatak_server.settings import ServerSettings

serve(ServerSettings(), announce=lambda address: print(address, flush=True))
"""
FAULTY_SCRIPT = """
import sys
import time
from pathlib import Path

import torch
from sqlalchemy import event
from sqlalchemy.engine import Engine

from nunatak_cli.__main__ import main

FAULTS, join = Path({faults!r}), torch.cat


@event.listens_for(Engine, "before_cursor_execute")
def wait(*_):
    while (FAULTS / "mute").exists():
        time.sleep(0.005)


def faulty_join(*args, **kwargs):
    while (FAULTS / "held").exists():
        time.sleep(0.005)
    if (FAULTS / "lost").exists():
        raise torch.AcceleratorError("device-side assert triggered")
    return join(*args, **kwargs)


torch.cat = faulty_join
sys.argv[1:] = ["serve"]
main()
"""
"""The command itself, on a device that a file blocks or loses, and a registry that one blocks."""
NOISY_SCRIPT = """
import logging
import sys
import threading
import warnings

import torch

from nunatak_cli.main import app

logging.getLogger("library").addHandler(logging.StreamHandler())
joins, join = [], torch.cat


class Unraisable:
    def __del__(self):
        raise ValueError("secret")


def noisy_join(*args, **kwargs):
    if not joins:
        joins.append(1)
        logging.getLogger("library").warning("from a library")
        logging.getLogger("quiet").info("left out")
        warnings.warn("from Python")
        print("from print")
        print("from standard error", file=sys.stderr)
        failing = threading.Thread(target=lambda: int("secret"), name="failing")
        failing.start()
        failing.join()
        Unraisable()
    return join(*args, **kwargs)


torch.cat = noisy_join
app(["serve", *sys.argv[1:]])
"""
"""The command itself, with code that writes by every means of Python."""
START_LIMIT_S = 90
IMPORTED = ["nunatak_cli.main", "nunatak_server.processes.serving"]


@cache
def forks() -> ForkServerContext:
    """The process that forks servers."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server."""

    process: ForkServerProcess
    address: str
    output: TextIOWrapper

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid or 0, number)

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process; return its status, or the negative of a signal."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, "the process has not ended"
        return self.process.exitcode


class StartError(Exception):
    """A process that ended, with its status, before it announced an address."""


@contextlib.contextmanager
def server_process(
    *,
    registry: Path | str,
    backbone: Path,
    script: str = SCRIPT,
    log: Path | None = None,
    **settings: object,
) -> Generator[ServerProcess]:
    """Start a server process; it is killed at the end if it has not ended by itself.

    The server's log goes to `log`, if given.
    """
    values = {"registry": registry, "backbone": backbone, "port": 0, "compute_threads": 1}
    own = {f"NUNATAK_{name.upper()}": str(value) for name, value in (values | settings).items()}
    source, sink = Pipe(duplex=False)
    process = forks().Process(target=run, args=(script, {**os.environ, **own}, sink, log))
    process.start()
    sink.close()
    with os.fdopen(os.dup(source.fileno()), encoding="utf-8") as output, source:
        try:
            found = re.search(r"http://[^\s\"]+", _first_line(output))
            if found is None:
                process.join(START_LIMIT_S)
                raise StartError(process.exitcode)
            yield ServerProcess(process=process, address=found[0], output=output)
        finally:
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that has ended: its status, or the negative of a signal, and what it wrote."""

    status: int | None
    stdout: str
    stderr: str


def ended(script: str, *arguments: str) -> Ended:
    source, sink = Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        process = forks().Process(target=run, args=(script, {**os.environ}, sink, log, arguments))
        process.start()
        sink.close()
        with os.fdopen(os.dup(source.fileno()), encoding="utf-8") as output, source:
            printed = output.read()
        process.join()
        return Ended(status=process.exitcode, stdout=printed, stderr=log.read_text("utf-8"))


def run(
    script: str,
    environment: Mapping[str, str],
    output: Connection,
    log: Path | None,
    arguments: Sequence[str] = (),
) -> None:
    """Run a script as an interpreter would in a new process."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    if log is not None:
        with log.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 2)
    output.close()
    sys.stdout, sys.stderr = (
        open(it, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
        for it in (1, 2)
    )
    # A supervisor starts its templates by the command of its own process.
    sys.argv, sys.orig_argv = ["nunatak", *arguments], [sys.executable, "-c", script]
    exec(script, {"__name__": "__main__"})  # noqa: S102 - a script of the tests


def _first_line(output: TextIOWrapper) -> str:
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    return lines.get(timeout=START_LIMIT_S)

"""A real server process on a free port."""

import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
from nunatak_server.processes.serving import serve
from nunatak_server.settings import ServerSettings

serve(ServerSettings(), announce=lambda address: print(address, flush=True))
"""
FAULTY_SCRIPT = """
import time
from pathlib import Path

import torch

from nunatak_cli.main import app

FAULTS, join = Path({faults!r}), torch.cat


def faulty_join(*args, **kwargs):
    while (FAULTS / "held").exists():
        time.sleep(0.005)
    if (FAULTS / "lost").exists():
        raise torch.AcceleratorError("device-side assert triggered")
    return join(*args, **kwargs)


torch.cat = faulty_join
app(["serve"])
"""
"""The command itself, on a device that a file blocks or loses."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server."""

    process: "subprocess.Popen[str]"
    address: str


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
    environment = {f"NUNATAK_{name.upper()}": str(v) for name, v in (values | settings).items()}
    with (
        nullcontext() if log is None else log.open("w") as errors,
        subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-c", script],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield ServerProcess(process=process, address=_first_line(process))
        finally:
            process.kill()


def _first_line(process: "subprocess.Popen[str]") -> str:
    output = process.stdout
    assert output is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    line = lines.get(timeout=START_LIMIT_S).strip()
    found = re.search(r"http://[^\s\"]+", line)
    assert found is not None, "the server ended before it was ready"
    return found[0]

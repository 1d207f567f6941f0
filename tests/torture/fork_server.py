"""Lives of registry processes: forked in milliseconds, killed or failed, looked at afterwards.

A life is one process that opens a registry and runs operations on it. This is the driver's side;
the process that forks them runs `fork_server_main`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntFlag
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from torture.mutants import Mutant
from torture.operations import Operation

TESTS = Path(__file__).parent.parent
LIFE_LIMIT_S = 60
"""Time limit of a life. Only a hanging life takes as long."""


class Calls(IntFlag):
    """Kinds of system calls that the preloaded library counts, as in `faults.c`."""

    OPEN = 1
    WRITE = 2
    SYNC = 4
    RENAME = 8
    UNLINK = 16
    MKDIR = 32
    TRUNCATE = 64
    ALL = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The fault at the `nth` counted call below `folder`: `error`, or a kill if `error` is 0."""

    folder: str
    nth: int = 0
    error: int = 0
    kinds: int = int(Calls.ALL)
    persistent: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a life, and its finished operations."""

    acknowledged: int
    """Number of acknowledged operations."""
    was_killed: bool
    refusal: str | None
    """The registry's error that ended the life."""
    breakage: str | None
    """Any other error that ended the life."""


@cache
def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


class ForkServer:
    """The process that forks; one life at a time."""

    def __init__(self, process: "subprocess.Popen[str]", scratch: Path) -> None:
        self._process = process
        self._log = scratch / "log"

    def run(
        self,
        location: str,
        operations: Sequence[Operation],
        *,
        fault: Fault | None = None,
        mutant: Mutant | None = None,
        upgrades_into: Path | None = None,
        kill_when: Callable[[], object] | None = None,
        is_killed_from_birth: bool = False,
    ) -> Death:
        """Run operations in a new process; if `kill_when` is given, kill the process when it
        returns. With `upgrades_into`, the process only upgrades the registry, and copies it there.

        `kill_when` is called once the process is ready, or at the start of the process on request.
        """
        self._log.unlink(missing_ok=True)
        self._send_line(
            json.dumps(
                {
                    "location": location,
                    "operations": [asdict(operation) for operation in operations],
                    "log": str(self._log),
                    "fault": None if fault is None else asdict(fault),
                    "mutant": mutant,
                    "upgrades_into": None if upgrades_into is None else str(upgrades_into),
                }
            )
        )
        child = int(self._receive().removeprefix("pid "))
        if is_killed_from_birth:
            status = self._kill(child, kill_when)
        else:
            line = self._receive()
            if line == "ready" and kill_when is not None:
                status = self._kill(child, kill_when)
            else:
                status = self._await_status(line)
        return self._death(status)

    def _kill(self, child: int, when: Callable[[], object] | None) -> int:
        if when is not None:
            when()
        # The process may be dead, but its parent has not reaped it, so its number is still in use.
        os.kill(child, signal.SIGKILL)
        return self._await_status(self._receive())

    def _await_status(self, line: str) -> int:
        while line != "over":
            line = self._receive()
        self._send_line("bury")
        return int(self._receive().removeprefix("status "))

    def _death(self, status: int) -> Death:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return Death(
            acknowledged=sum(line.isdigit() for line in lines),
            was_killed=os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
            refusal=next((line[2:] for line in lines if line.startswith("! ")), None),
            breakage=_hang(status)
            or next((line[2:] for line in lines if line.startswith("? ")), None),
        )

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _receive(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the fork server has ended with status {self._process.wait()}"
        return line.strip()


@contextmanager
def fork_server(*, with_faults: bool = False) -> Generator[ForkServer]:
    """Start the process that forks; with the library of faults preloaded, if asked for."""
    with TemporaryDirectory(prefix="nunatak-torture-") as name:
        scratch = Path(name)
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        if with_faults:
            environment["LD_PRELOAD"] = str(_build(scratch))
        with subprocess.Popen(
            [sys.executable, "-m", "torture.fork_server_main"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield ForkServer(process, scratch)
            finally:
                process.kill()


def _hang(status: int) -> str | None:
    was_alarmed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    return f"hanging for {LIFE_LIMIT_S} s" if was_alarmed else None


def after_seconds(seconds: float) -> Callable[[], None]:
    """Return a function that ends a life at a random moment."""
    return lambda: time.sleep(seconds)


def _build(folder: Path) -> Path:
    program = compiler()
    assert program is not None, "the library of faults needs a C compiler"
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(  # noqa: S603 - the machine's own compiler
        [program, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return library

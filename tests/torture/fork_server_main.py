"""A process that has imported everything and forks a child for each requested life.

Reads one JSON life per line. The child prints `pid N` and what it does; the process prints `over`
at its end, and after one more line of input, it waits for the child and prints `status N`.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from doubles import statements
from doubles.golden import OLDER_STEPS
from nunatak_contract.errors import NunatakError
from nunatak_registry.index.schema import STEPS
from nunatak_registry.index.upgrade import upgrade
from torture.fork_server import LIFE_LIMIT_S
from torture.mutants import Mutant, open_registry
from torture.operations import Operation
from torture.steps import OPERATIONS, PRELUDE

PRELOADED = (psycopg,)
FAILED, BROKEN = 3, 4
"""Exit statuses: after an error of the registry, and after any other error."""


def main() -> None:
    """Fork a process for every life asked for, until the input ends."""
    compile_statements()
    STEPS.update(OLDER_STEPS)
    for line in iter(sys.stdin.readline, ""):
        life = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(LIFE_LIMIT_S)
            # Said by the child, whose words would overtake those of a parent without a core.
            say(f"pid {os.getpid()}")
            os._exit(live(life))
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        say("over")
        # The process is reaped only after this line, so that a kill cannot hit another process.
        sys.stdin.readline()
        _, status = os.waitpid(child, 0)
        say(f"status {status}")


def compile_statements() -> None:
    """Run every operation once, so that no life compiles a statement for SQLite again."""
    statements.share()
    with TemporaryDirectory() as folder, open_registry(folder) as registry:
        for operation in (*(it for it, _ in PRELUDE), *OPERATIONS.values()):
            operation.run(registry)


def live(life: Mapping[str, Any]) -> int:
    """Open the registry, run the operations, and log each before and after it ran."""
    log = os.open(life["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    operations = [Operation(**fields) for fields in life["operations"]]
    mutant = Mutant(life["mutant"]) if life["mutant"] else None
    try:
        if life["upgrades_into"]:
            upgrade(life["location"], folder=Path(life["upgrades_into"]), tell=lambda _: None)
            return 0
        with open_registry(life["location"], mutant) as registry:
            say("ready")
            arm(life["fault"])
            for number, operation in enumerate(operations):
                if mutant is Mutant.ACKNOWLEDGE_EARLY:
                    os.write(log, f"{number}\n".encode())
                operation.run(registry)
                if mutant is not Mutant.ACKNOWLEDGE_EARLY:
                    os.write(log, f"{number}\n".encode())
    except NunatakError as error:
        os.write(log, f"! {error.code}: {error}\n".encode())
        return FAILED
    except BaseException as error:  # noqa: BLE001 - the driver must learn of every error
        os.write(log, f"? {type(error).__name__}: {error}\n".encode())
        return BROKEN
    return 0


def arm(fault: Mapping[str, Any] | None) -> None:
    """Arm the preloaded library, if the life has a fault."""
    if fault is None:
        return
    trace = -1
    if fault["trace"]:
        trace = os.open(fault["trace"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ctypes.CDLL(None).nunatak_arm(
        fault["folder"].encode(),
        ctypes.c_int(fault["kinds"]),
        ctypes.c_long(fault["nth"]),
        ctypes.c_int(fault["error"]),
        ctypes.c_int(fault["persistent"]),
        ctypes.c_int(trace),
    )


def say(text: str) -> None:
    """Print one line at once, with one system call."""
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main()

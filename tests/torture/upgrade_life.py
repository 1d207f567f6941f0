# ruff: noqa: T201
"""Forks processes that upgrade registries, each within milliseconds of its order.

Each line of standard input has two paths and the most seconds of a life, as JSON. The program
prints the number of the signal that ended the process, or its exit code as a negative number, and
the seconds that the process has lived.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from doubles.golden import OLDER_STEPS
from nunatak_registry.index.upgrade import STEPS, upgrade


def main() -> None:
    """Fork one process after the other."""
    STEPS.update(OLDER_STEPS)
    print("ready", flush=True)
    for line in sys.stdin:
        location, folder, lives_s = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if not child:
            upgrade(location, folder=Path(folder), tell=_silent)
            os._exit(0)
        if lives_s is not None and not select.select([os.pidfd_open(child)], [], [], lives_s)[0]:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        lived_s = time.monotonic() - began
        print(json.dumps([-os.waitstatus_to_exitcode(status), lived_s]), flush=True)


def _silent(_line: str) -> None:
    pass


if __name__ == "__main__":
    main()

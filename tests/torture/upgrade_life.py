# ruff: noqa: T201
"""Forks processes that upgrade registries, each within milliseconds of its order.

For each line of standard input, two paths as JSON, the program forks a process, prints its number,
and prints the number of the signal that ended the process, or its exit code as a negative number.
"""

import json
import os
import sys
from pathlib import Path

from nunatak_registry.index.upgrade import upgrade


def main() -> None:
    """Fork one process after the other."""
    print("ready", flush=True)
    for line in sys.stdin:
        location, folder = json.loads(line)
        child = os.fork()
        if not child:
            upgrade(location, folder=Path(folder), tell=_silent)
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(-os.waitstatus_to_exitcode(status), flush=True)


def _silent(_line: str) -> None:
    pass


if __name__ == "__main__":
    main()

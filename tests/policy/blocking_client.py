"""The blocking client is the asyncio client without `async` and `await`.

`python tests/policy/blocking_client.py` writes it; `test_blocking_client.py` checks it.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "clients" / "python" / "nunatak_client"
SOURCE: Final = PACKAGE / "async_client.py"
TARGET: Final = PACKAGE / "client.py"

HEADER: Final = '''"""The blocking client; generated from `async_client.py`.

Change `async_client.py` instead, and run `make client`.
"""'''

RULES: Final = (
    (r'\A""".*?"""', HEADER),
    (r"^import asyncio\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"^ *loop=asyncio\.get_running_loop,\n", ""),
    (r"\bEach event loop and each forked process\b", "Each forked process"),
    (r"\bconnections of this event loop\b", "connections of this process"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\b(async|await) ", ""),
    (r"\bAsyncIterable, ", ""),
    (r"\bAsync(BaseTransport|Client|Generator|Iterable|NetworkBackend|NetworkStream)\b", r"\1"),
    (r"\bAnyIOBackend\(\)[^\n]*", "SyncBackend()"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|iter_lines|read)\(", r"\1("),
    (r"\bcoroutines\b", "threads"),
)
"""Patterns and their replacements, in this order; each pattern must occur."""

LEFT_OVER: Final = re.compile(r"\w*(await|[Aa]sync(?!_client\.py))\w*")


def blocking_client(source: str) -> str:
    """Return the source of the blocking client for a source of the asyncio client.

    Raises:
        ValueError: a pattern does not occur, or asynchronous code remains.
    """
    for pattern, replacement in RULES:
        source, found = re.subn(pattern, replacement, source, flags=re.DOTALL | re.MULTILINE)
        if not found:
            raise ValueError(f"nothing in {SOURCE.name} matches {pattern!r}: remove that rule")
    if left := LEFT_OVER.search(source):
        raise ValueError(f"add a rule for {left.group()!r}, which is left over of {SOURCE.name}")
    sorted_imports = _ruff("check", "--quiet", "--select", "I", "--fix", source=source)
    return _ruff("format", source=sorted_imports)


def _ruff(*arguments: str, source: str) -> str:
    command = (sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-")
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command, input=source, capture_output=True, check=True, encoding="utf-8"
    )
    return done.stdout


if __name__ == "__main__":
    TARGET.write_text(blocking_client(SOURCE.read_text("utf-8")), "utf-8")

"""The blocking client is the asyncio client without `async` and `await`; each build writes it.

The build of the wheel and an editable install run `BlockingClient`. After a change of
`async_client.py`, `python -m release.blocking_client` writes the client again, and so do the tests.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = Path(__file__).parents[1] / "clients" / "python" / "nunatak_client"
SOURCE: Final = PACKAGE / "async_client.py"
TARGET: Final = PACKAGE / "client.py"

HEADER: Final = '''"""The blocking client; made from `async_client.py` by the build."""'''

RULES: Final = (
    (r'\A""".*?"""', HEADER),
    (r"^import asyncio\n", "import threading\n"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"^ *loop=asyncio\.get_running_loop,\n", ""),
    (r"\bEach event loop and each forked process\b", "Each forked process"),
    (r"\bconnections of this event loop\b", "connections of this process"),
    (r"\basyncio\.Semaphore\b", "threading.Semaphore"),
    (
        r"async with asyncio\.timeout\((\S+)\):\s+(is_taken = )await (\w+\.acquire)\(\)",
        r"\2\3(timeout=\1)",
    ),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\b(async|await) ", ""),
    (r"\bAsyncIterable, ", ""),
    (r"\bAsync(BaseTransport|Client|Generator|Iterable|NetworkBackend|NetworkStream)\b", r"\1"),
    (r"\bAbstractAsync", "Abstract"),
    (r"\bAnyIOBackend\(\)[^\n]*", "SyncBackend()"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|iter_bytes)\(", r"\1("),
    (r"\bcoroutines\b", "threads"),
)
"""Patterns and their replacements, in this order; each pattern must occur."""

LEFT_OVER: Final = re.compile(r"\w*(await|[Aa]sync(?!_client\.py))\w*")


class BlockingClient(BuildHookInterface):  # pyrefly: ignore[implicit-any-type-argument] - the default
    """Writes the client before the files of a wheel are gathered."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the client into the sources, which an editable install leaves in place."""
        write()


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
    return source


def write() -> None:
    """Write the client, unless it is there."""
    made = blocking_client(SOURCE.read_text("utf-8")).encode()
    if not TARGET.exists() or TARGET.read_bytes() != made:
        # Renamed, because several processes of tests may write at once.
        scratch = TARGET.with_suffix(".writing")
        scratch.write_bytes(made)
        scratch.replace(TARGET)


if __name__ == "__main__":
    write()

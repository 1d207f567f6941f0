"""Hostile names in every method with a name: refused at once, and nothing is touched."""

import string
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from doubles.names import HOSTILE_NAMES
from nunatak_contract.errors import InvalidNameError
from nunatak_registry import InvalidManifestError
from torture.hostile_artifacts import contents
from torture.tally import Tally

CONTROLS = [*map(chr, range(32)), "\x7f"]
INVISIBLE = [
    *map(chr, [0xA0, 0xAD, 0x1680, 0x180E, *range(0x2000, 0x2010), *range(0x2028, 0x2030)]),
    *map(chr, [0x205F, *range(0x2060, 0x2065), 0x3000, 0xFEFF, 0xFFFD]),
]
PATHS = [
    *("../../etc/passwd", "..\\..\\boot.ini", "/proc/self/environ", "//host/share", "a/./b"),
    *("index.sqlite3/..", "blobs/sha256/../..", ".git/config", "....//....//etc", "C:..\\x"),
]

Calls = Callable[[str], Iterable[Callable[[], object]]]


def every_name() -> list[str]:
    """Return more than 200 names that break the grammar, each another way."""
    once = [quote(path, safe="") for path in PATHS]
    twice = [quote(path, safe="") for path in once]
    separators = [c for c in string.punctuation if c not in "-_."]
    names = [
        *HOSTILE_NAMES,
        *(f"a{character}b" for character in (*CONTROLS, *INVISIBLE, *separators)),
        *(*PATHS, *once, *twice, *(quote(path, safe="") for path in twice)),
        *("a" * length for length in (65, 255, 256, 4096, 1_000_000)),
        *(f"{'a' * 63}{end}" for end in ("..", ".", "\n", "\x00", " ")),
    ]
    return list(dict.fromkeys(names))


def try_names(names: list[str], calls: Calls, watched: Path) -> tuple[Tally, float]:
    """Call everything with every name; return the tally and the most CPU seconds of a call."""
    tally = Tally(campaign="hostile names", seed=0)
    longest = 0.0
    before = contents(watched)
    for name in names:
        tally.injected += 1
        refused = 0
        every = list(calls(name))
        for call in every:
            started = time.process_time()
            refused += _is_refused(call)
            longest = max(longest, time.process_time() - started)
        if refused < len(every):
            tally.wrong += 1
            tally.note(f"{name[:60]!r}: {len(every) - refused} calls did not refuse it")
        elif contents(watched) != before:
            tally.wrong += 1
            tally.note(f"{name[:60]!r}: something was written")
        else:
            tally.survived += 1
    return tally, longest


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except (InvalidNameError, InvalidManifestError):
        return True
    except Exception:  # noqa: BLE001 - any other end is no refusal
        return False
    return False

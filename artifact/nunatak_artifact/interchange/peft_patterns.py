"""Regular expressions out of a stranger's file.

A short pattern can keep `re` busy for years, and nothing in its process can stop it. What is more
than a plain name is therefore matched in a process of its own, which is ended when it takes long.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from nunatak_artifact.errors import CorruptFileError

TIME_LIMIT_SECONDS = 10.0
"""Honest patterns take milliseconds, most of which go into starting the process."""

_PLAIN = re.compile(r"[\w.-]*")
"""Names, in which a dot stands for any character: nothing to repeat, nothing to choose from."""

_PROGRAM = """
import json, re, sys
patterns, names = json.load(sys.stdin)
json.dump([[name for name in names if re.fullmatch(it, name)] for it in patterns], sys.stdout)
"""


def matches(
    patterns: Sequence[str],
    names: Sequence[str],
    *,
    folder: str,
    file: str,
    time_limit: float = TIME_LIMIT_SECONDS,
) -> list[frozenset[str]]:
    """For each pattern, out of `file`, the names that it matches from first to last letter.

    Raises:
        CorruptFileError: a pattern is no regular expression, or takes too long.
    """
    if all(_PLAIN.fullmatch(pattern) for pattern in patterns):
        return [
            frozenset(name for name in names if re.fullmatch(pattern, name)) for pattern in patterns
        ]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and program; patterns are data
            [sys.executable, "-I", "-c", _PROGRAM],
            input=json.dumps([list(patterns), list(names)]),
            capture_output=True,
            text=True,
            check=True,
            timeout=time_limit,
        )
    except subprocess.TimeoutExpired as error:
        raise CorruptFileError(
            folder, file, f"holds a pattern that takes over {time_limit:g} s to match"
        ) from error
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip().rpartition("\n")[2][:200]
        raise CorruptFileError(
            folder, file, f"holds a pattern that is no regular expression ({reason})"
        ) from error
    found: list[list[str]] = json.loads(done.stdout)
    return [frozenset(it) for it in found]

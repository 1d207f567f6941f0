"""Cores for the measured processes alone, so that clients take no CPU time from servers."""

import os
from collections.abc import Sequence

Cores = tuple[int, ...] | None
"""None means any core."""


def cores_of(text: str) -> Cores:
    """Read an option such as `0,1` or `any`.

    Raises:
        ValueError: the text names no cores.
    """
    return None if text == "any" else tuple(map(int, text.split(",")))


def pinned(command: Sequence[str], cores: Cores) -> list[str]:
    if cores is None:
        return list(command)
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]


def keep_off(cores: Cores) -> None:
    """Keep this process and its children off these cores, if other cores are allowed."""
    others = os.sched_getaffinity(0) - set(cores or ())
    if others:
        os.sched_setaffinity(0, others)

"""Waits for versions to come into memory, for as long as an operator wants to wait."""

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from nunatak_artifact import LoadedTask
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.time_limits import within

LOAD_DEADLINE_S: Final = 120.0
"""Where the caller does not say."""
TOO_LATE: Final = (
    "the version was not in memory in time, and nothing was changed: the store is slow, or "
    "versions in use leave no room; ask again, evict others, or allow more time"
)


async def in_time(load: Coroutine[Any, Any, LoadedTask], deadline_ms: int | None) -> LoadedTask:
    """Return the version that a load brings; one that has begun goes on for whoever asks next.

    Raises:
        DeadlineExceededError: it has not come by then.
    """
    seconds = LOAD_DEADLINE_S if deadline_ms is None else deadline_ms / 1000
    return await within(seconds, load, late=partial(DeadlineExceededError, TOO_LATE))

"""The frequency of garbage collection."""

import gc
from collections.abc import Generator

import pytest

from nunatak_server.processes.serving import (
    MAX_OBJECTS,
    MIN_OBJECTS,
    OBJECTS_PER_REQUEST,
    collect_rarely,
)


@pytest.fixture(autouse=True)
def collector() -> Generator[None]:
    """Restore the collector."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("max_requests", "num_objects"),
    [(1, MIN_OBJECTS), (1024, 1024 * OBJECTS_PER_REQUEST), (2**31, MAX_OBJECTS)],
)
def test_collections_begin_beyond_what_a_full_queue_explains(
    max_requests: int, num_objects: int
) -> None:
    collect_rarely(max_requests=max_requests)

    assert gc.get_threshold()[0] == num_objects
    assert gc.get_freeze_count() > 0

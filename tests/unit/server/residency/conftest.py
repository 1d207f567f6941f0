from collections.abc import AsyncGenerator

import pytest

from doubles.serving import FakeStore
from nunatak_model import Branch


@pytest.fixture
async def store(branch: Branch) -> AsyncGenerator[FakeStore]:
    """A store whose residencies end with the test."""
    store = FakeStore(branch)
    yield store
    for residency in store.residencies:
        await residency.aclose()

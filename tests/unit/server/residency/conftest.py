import pytest

from doubles.engines import tiny_branch
from doubles.serving import FakeStore
from nunatak_model import Branch


@pytest.fixture(scope="module")
def branch() -> Branch:
    return tiny_branch()


@pytest.fixture
def store(branch: Branch) -> FakeStore:
    return FakeStore(branch)

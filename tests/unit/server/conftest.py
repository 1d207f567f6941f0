"""The smallest backbone with a trunk, and a task of it."""

from collections.abc import AsyncGenerator
from functools import partial

import pytest

from doubles.backbones import tiny_backbone
from doubles.services import Held, make_held_bench
from doubles.serving import FakeStore
from doubles.tasks import random_branch
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, Branch


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(scope="session")
def branch(backbone: Backbone) -> Branch:
    return random_branch(backbone, TopK(num_layers=1))


@pytest.fixture
async def store(branch: Branch) -> AsyncGenerator[FakeStore]:
    """A store whose residencies end with the test."""
    store = FakeStore(branch)
    yield store
    for residency in store.residencies:
        await residency.aclose()


@pytest.fixture
def held(backbone: Backbone, branch: Branch) -> Held:
    return partial(make_held_bench, backbone, branch)

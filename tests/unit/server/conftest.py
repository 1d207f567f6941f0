"""The smallest backbone with a trunk, and a task of it."""

import pytest

from doubles.backbones import tiny_backbone
from doubles.tasks import random_branch
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, Branch


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(scope="session")
def branch(backbone: Backbone) -> Branch:
    return random_branch(backbone, TopK(num_layers=1))

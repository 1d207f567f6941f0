"""The smallest backbone with a trunk, and a task of it."""

import pytest

from doubles.backbones import tiny_backbone
from doubles.tasks import random_parameters, spec_of
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, Branch, build_branch


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(scope="session")
def branch(backbone: Backbone) -> Branch:
    spec = spec_of(backbone, TopK(num_layers=1), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))

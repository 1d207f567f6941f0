import pytest

from doubles.backbones import tiny_backbone
from doubles.serving import FakeStore
from doubles.tasks import random_parameters, spec_of
from nunatak_contract.methods import HeadOnly
from nunatak_model import Branch, build_branch


@pytest.fixture(scope="module")
def branch() -> Branch:
    backbone = tiny_backbone(num_layers=1)
    spec = spec_of(backbone, HeadOnly(), num_labels=2)
    return build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))


@pytest.fixture
def store(branch: Branch) -> FakeStore:
    return FakeStore(branch)

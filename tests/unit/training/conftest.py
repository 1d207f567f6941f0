"""What the tests of training read, and nobody writes."""

from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.sweeps import toy_folder
from nunatak_model import Backbone


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture(name="folder", scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and the backbone of tiny sweeps."""
    return toy_folder(tmp_path_factory.mktemp("sweep"))

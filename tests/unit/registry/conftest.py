"""A registry in a folder of its own."""

from collections.abc import Generator
from pathlib import Path

import pytest

from nunatak_registry.store import Registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def registry(folder: Path) -> Generator[Registry]:
    with Registry.open(folder) as registry:
        yield registry

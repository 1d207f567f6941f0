"""What the sweeps of all tests here read, and nobody writes."""

from pathlib import Path

import pytest

from doubles.sweeps import toy_folder


@pytest.fixture(name="folder", scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("sweep"))

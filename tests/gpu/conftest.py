"""All tests here need a CUDA device; `make gpu` runs them before it measures."""

from pathlib import Path

import pytest
import torch

from doubles.backbones import Family
from doubles.gpu import DEVICE, Served, make_twins, served
from doubles.published import Twin


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    """Skip without a CUDA device."""
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")


@pytest.fixture(scope="module")
def family() -> Family:
    return "bert"


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(family)


@pytest.fixture(scope="module")
def twins(folder: Path, family: Family) -> list[Twin]:
    return make_twins(folder, family)


@pytest.fixture(scope="module")
def fast(folder: Path, twins: list[Twin]) -> Served:
    return served(folder, [twin.branch for twin in twins], dtype=torch.bfloat16)

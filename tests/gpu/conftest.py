"""All tests here need a CUDA device; `make gpu` runs them before it measures."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    """Skip without a CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")

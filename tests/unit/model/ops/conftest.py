"""The native operators, and every level at which this CPU runs them."""

from collections.abc import Generator

import pytest
import torch

from doubles.native_ops import native_operators
from nunatak_model.ops.native import has_native_operators


@pytest.fixture(scope="module", name="native")
def _native() -> Generator[None]:
    with native_operators():
        assert has_native_operators()
        yield


LEVELS = ("portable", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx")


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def level(request: pytest.FixtureRequest) -> int:
    if request.param not in torch.ops.nunatak_ops.levels():
        pytest.skip("this CPU has no such level")
    return request.param

"""An error keeps its class, its code and its values on the way to another process."""

import pickle

import pytest

from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_server.errors import OverloadedError


@pytest.mark.parametrize(
    "error",
    [
        NunatakError("invalid_option", problem="expected 1"),
        InvalidNameError("task", "A B", "lower case"),
        OverloadedError("requests", 3, retry_after_s=2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_it_was_raised(error: NunatakError) -> None:
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)

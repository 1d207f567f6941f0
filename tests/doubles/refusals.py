"""Expected errors by their code, for errors that differ only in their code."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from nunatak_contract.errors import NunatakError


@contextmanager
def raises(code: str, *, match: str | None = None) -> Generator[pytest.ExceptionInfo[NunatakError]]:
    """Expect an error with this code, and with this pattern in its message."""
    with pytest.raises(NunatakError, match=match) as caught:
        yield caught
    assert caught.value.code == code


def code_of(outcome: object) -> str:
    assert isinstance(outcome, NunatakError)
    return outcome.code

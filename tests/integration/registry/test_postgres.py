"""What only a registry on PostgreSQL can get wrong."""

from pathlib import Path

import pytest

from nunatak_registry import Registry, StoreUnavailableError


def test_unreachable_server_is_unavailable_and_the_password_is_not_quoted(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://user:hush@/database?host={tmp_path}&blobs={tmp_path}"

    with pytest.raises(StoreUnavailableError, match="index refused") as caught:
        Registry.open(url)

    assert "hush" not in str(caught.value)
    assert "hush" not in str(caught.value.__cause__)


@pytest.mark.parametrize("scheme", ["mysql", "oracle", "file", "https"])
def test_other_databases_are_refused(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(StoreUnavailableError):
        Registry.open(f"{scheme}://user:hush@host/database?blobs={tmp_path}")

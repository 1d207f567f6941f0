from pathlib import Path

import pytest

from nunatak_registry.errors import StoreUnavailableError
from nunatak_registry.locations import LOCATION_VARIABLE, default_location, parse_location


def test_environment_names_the_default_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCATION_VARIABLE, "/srv/tasks")

    assert default_location() == "/srv/tasks"


def test_default_location_is_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCATION_VARIABLE, raising=False)

    assert default_location().endswith("nunatak/registry")


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCATION_VARIABLE, "")

    assert default_location().endswith("nunatak/registry")


def test_folder_holds_index_and_blobs(tmp_path: Path) -> None:
    place = parse_location(tmp_path)

    assert place.folder == tmp_path
    assert place.index_url.database == str(tmp_path / "index.sqlite3")
    assert place.blob_root == str(tmp_path / "blobs")
    assert parse_location(str(tmp_path)) == place


def test_url_names_index_and_blobs_and_keeps_other_options() -> None:
    place = parse_location("postgresql+psycopg://u:p@h:1/db?blobs=s3://b/p&connect_timeout=3")

    assert place.folder is None
    assert place.blob_root == "s3://b/p"
    assert dict(place.index_url.query) == {"connect_timeout": "3"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush@h/db",
        "postgresql://u:hush@h/db?blobs=",
        "postgresql://u:hush@h/db?blobs=a&blobs=b",
        "post gres://u:hush@h/db?blobs=a",
        "postgresql://u:hush@h:port/db?blobs=a",
    ],
)
def test_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        parse_location(url)

    assert "hush" not in str(caught.value)

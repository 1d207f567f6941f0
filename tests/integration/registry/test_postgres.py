"""Errors that only a registry on PostgreSQL can make."""

from pathlib import Path

import psycopg
import pytest

from doubles.drafts import make_draft, publish_one
from doubles.postgres import PostgresServer
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


def test_role_that_may_only_read_reads_all_and_changes_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.create_database()
    place = f"{url}&blobs={tmp_path}"
    with Registry.open(place) as owner:
        manifest = publish_one(owner)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE ROLE spectator LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO spectator")

    with Registry.open(place.replace("nunatak@", "spectator@")) as spectator:
        assert spectator.resolve("intent") == manifest
        assert spectator.read_blob(manifest) == make_draft()[1]["parameters"]
        assert spectator.verify() == []
        for change in (
            lambda: publish_one(spectator, seed=1),
            lambda: spectator.promote("intent", "prod", 1),
            lambda: spectator.delete("intent", 1),
            lambda: spectator.hold("server", [("intent", 1)], seconds=60),
        ):
            with pytest.raises(StoreUnavailableError, match="permission denied"):
                change()

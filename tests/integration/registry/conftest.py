"""The kinds of index for the laws of the registry."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from doubles.object_stores import ObjectStore, object_store
from doubles.postgres import PostgresServer
from nunatak_registry import Registry

# Later than the time of every file, so that a grace period of 0 s protects nothing.
START = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "registry")
    server: PostgresServer = request.getfixturevalue("postgres")
    return f"{server.create_database()}&blobs={tmp_path / 'blobs'}"


@pytest.fixture
def registry(location: str) -> Generator[Registry]:
    ticks = count()
    with Registry.open(location, clock=lambda: START + timedelta(seconds=next(ticks))) as registry:
        yield registry


@pytest.fixture(scope="session")
def bucket_server() -> Generator[ObjectStore]:
    with object_store() as server:
        yield server

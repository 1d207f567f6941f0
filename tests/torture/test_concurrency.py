"""Racing processes make one history."""

from pathlib import Path

import pytest

from doubles.postgres import PostgresServer
from torture.concurrency import race


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "registry")
    server: PostgresServer = request.getfixturevalue("postgres")
    return f"{server.create_database()}&blobs={tmp_path / 'blobs'}"


def test_racing_processes_make_one_history(location: str, tmp_path: Path) -> None:
    tally = race(location, tmp_path, num_workers=3, operations=30, seed=31)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == 90

"""Processes killed at random times lose nothing."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from doubles.postgres import PostgresServer
from torture.fork_server import ForkServer
from torture.kills import kill_at_random


@pytest.fixture(params=["sqlite", "postgresql"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    numbers = count()
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"registry{next(numbers)}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: f"{server.create_database()}&blobs={tmp_path / f'blobs{next(numbers)}'}"


def test_random_kills_lose_nothing(forks: ForkServer, new_location: Callable[[], str]) -> None:
    tally = kill_at_random(forks, new_location, num_kills=15, seed=20)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == 15

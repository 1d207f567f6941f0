"""Upgrades killed at random times lose nothing, and every task answers as before."""

from itertools import count
from pathlib import Path

import pytest

from doubles.postgres import PostgresServer
from nunatak_model import Backbone
from torture.upgrades import OldRegistries, kill_upgrades


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_killed_upgrades_lose_nothing(
    request: pytest.FixtureRequest, dialect: str, tmp_path: Path, backbone: Backbone
) -> None:
    old, numbers = OldRegistries(tmp_path, backbone, num_versions=40), count()

    def new_location() -> str:
        place = f"sqlite:///{tmp_path / f'index{next(numbers)}'}?"
        if dialect == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            place = f"{server.create_database()}&"
        return old.put(f"{place}blobs={old.blobs}", dialect)

    tally = kill_upgrades(old, new_location, tmp_path / "copies", num_kills=3, seed=45)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 3

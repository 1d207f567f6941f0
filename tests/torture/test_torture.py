"""Processes race and die, disks lie, and nothing is lost; `make torture` does more of it."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import publish_one
from doubles.names import calls_with_name
from doubles.postgres import PostgresServer
from nunatak_model import Backbone
from nunatak_registry import Registry
from torture.concurrency import race
from torture.controls import is_caught
from torture.corruption import corrupt_stores
from torture.fork_server import ForkServer
from torture.hostile_artifacts import LIMIT_S, attacks, launch_all
from torture.hostile_names import every_name, try_names
from torture.kills import kill_at_random
from torture.mutants import Mutant
from torture.scale import fill, measure
from torture.tally import many
from torture.upgrades import OldRegistries, kill_upgrades

# Other processes run at the same time; `make torture` needs a quiet machine.
PATIENCE, LIMIT_MS = many(20, 1), many(400, 20)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    numbers = count()
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"registry{next(numbers)}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: f"{server.create_database()}&blobs={tmp_path / f'blobs{next(numbers)}'}"


def test_racing_processes_make_one_history(new_location: Callable[[], str], tmp_path: Path) -> None:
    workers, operations = many(3, 8), many(20, 500)
    tally = race(new_location(), tmp_path, num_workers=workers, operations=operations, seed=31)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == workers * operations


@pytest.mark.parametrize("mutant", Mutant)
def test_planted_bug_is_caught(mutant: Mutant, tmp_path: Path, faulty_forks: ForkServer) -> None:
    assert is_caught(mutant, tmp_path, faulty_forks)


def test_damaged_stores_are_found_out_and_serve_the_rest(tmp_path: Path) -> None:
    tally = corrupt_stores(tmp_path, num_stores=many(20, 1000), seed=30)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == many(20, 1000)


@pytest.mark.usefixtures("uncollected")
def test_hostile_artefacts_are_refused_by_code_and_leave_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        every = list(attacks(registry, tiny_backbone()))
        tally, longest_s = launch_all(every, tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 60
    assert longest_s < PATIENCE * LIMIT_S


@pytest.mark.usefixtures("uncollected")
def test_hostile_names_are_refused_by_every_call_and_touch_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        publish_one(registry)
        tally, longest_s = try_names(every_name(), partial(calls_with_name, registry), tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 200
    assert longest_s < PATIENCE * LIMIT_S


def test_random_kills_lose_nothing(forks: ForkServer, new_location: Callable[[], str]) -> None:
    tally = kill_at_random(forks, new_location, num_kills=many(10, 2000), seed=20)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == many(10, 2000)


def test_a_registry_of_many_versions_answers_at_once(tmp_path: Path) -> None:
    fill(tmp_path, many(1000, 10_000))

    for times in measure(tmp_path, repeats=many(3, 51)).values():
        # The fastest where other processes run, the median on a quiet machine.
        assert sorted(times)[many(0, len(times) // 2)] < LIMIT_MS


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> OldRegistries:
    return OldRegistries(
        tmp_path_factory.mktemp("old"), backbone, num_versions=many(20, 500), num_tasks=many(2, 20)
    )


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_killed_upgrades_lose_nothing(
    request: pytest.FixtureRequest,
    dialect: str,
    tmp_path: Path,
    old: OldRegistries,
    forks: ForkServer,
) -> None:
    numbers = count()

    def new_location() -> str:
        place = f"sqlite:///{tmp_path / f'index{next(numbers)}'}?"
        if dialect == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            place = f"{server.create_database()}&"
        return old.put(f"{place}blobs={old.blobs}", dialect)

    copies = tmp_path / "copies"
    tally = kill_upgrades(forks, old, new_location, copies, num_kills=many(2, 30), seed=45)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= many(2, 30)

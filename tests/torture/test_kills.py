"""Short form of `make torture`: processes killed, and calls failing, at random and in turn."""

import errno
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path

import pytest

from doubles.postgres import PostgresServer, find_binaries, private_postgres
from torture.kills import kill_at_random
from torture.mutants import Mutant
from torture.nursery import Nursery, compiler, nursery
from torture.steps import ERRORS, Bench, sampled, strike_every_step, undurable
from torture.tally import Tally

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler on this machine")


@pytest.fixture(scope="module")
def postgres() -> Generator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server programs on this machine")
    with private_postgres(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    numbers = count()
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"registry{next(numbers)}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: f"{server.create_database()}&blobs={tmp_path / f'blobs{next(numbers)}'}"


@pytest.fixture(scope="module")
def lives() -> Generator[Nursery]:
    with nursery() as lives:
        yield lives


def test_random_kills_lose_nothing(lives: Nursery, new_location: Callable[[], str]) -> None:
    tally = kill_at_random(lives, new_location, num_kills=15, seed=20)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == 15


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bench]:
    with nursery(with_faults=True) as lives:
        yield Bench(lives, tmp_path_factory.mktemp("bench"))


@needs_compiler
def test_a_kill_at_any_step_leaves_the_state_before_or_after(bench: Bench) -> None:
    cases = sampled(bench.cases([0]), 16, seed=21)

    tally = strike_every_step(bench, Tally(campaign="steps", seed=21), cases)

    assert tally.is_clean, (tally.line(), tally.problems)


@needs_compiler
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_an_error_at_any_call_is_refused_and_can_be_repeated(bench: Bench, error: int) -> None:
    cases = sampled(bench.cases([error]), 6, seed=22)

    tally = strike_every_step(bench, Tally(campaign="errors", seed=22), cases)

    assert tally.is_clean, (tally.line(), tally.problems)


@needs_compiler
@pytest.mark.parametrize("name", ["publish", "publish-again"])
def test_a_version_is_named_only_after_its_bytes_are_durable(bench: Bench, name: str) -> None:
    trace = bench.trace(name)

    assert undurable(trace) == []
    assert ("sync", "blobs/sha256") in trace


@needs_compiler
@pytest.mark.parametrize("mutant", [Mutant.SKIP_FILE_SYNC, Mutant.SKIP_FOLDER_SYNC])
def test_a_skipped_sync_is_caught(bench: Bench, mutant: Mutant) -> None:
    assert undurable(bench.trace("publish", mutant)) != []


CAUGHT_BY_A_FAULT = [
    pytest.param(Mutant.WRITE_IN_PLACE, "publish-again", 0, id="write-in-place"),
    pytest.param(Mutant.ROW_BEFORE_BLOB, "publish", 0, id="row-before-blob"),
    pytest.param(Mutant.BLOB_GONE_BEFORE_ROW, "delete", 0, id="blob-gone-before-row"),
    pytest.param(Mutant.SWALLOW_ERRORS, "publish", errno.EIO, id="swallow-errors"),
]


@needs_compiler
@pytest.mark.parametrize(("mutant", "name", "error"), CAUGHT_BY_A_FAULT)
def test_a_planted_bug_is_caught_by_a_fault_at_some_step(
    bench: Bench, mutant: Mutant, name: str, error: int
) -> None:
    tally = Tally(campaign=mutant, seed=0)

    for case in bench.cases([error]):
        if case.name == name and tally.failures == 0:
            strike_every_step(bench, tally, [case], mutant)

    assert tally.failures > 0


def test_an_early_acknowledgement_is_caught(lives: Nursery, tmp_path: Path) -> None:
    numbers = count()

    tally = kill_at_random(
        lives,
        lambda: str(tmp_path / f"registry{next(numbers)}"),
        num_kills=8,
        seed=23,
        mutant=Mutant.ACKNOWLEDGE_EARLY,
    )

    assert tally.lost > 0

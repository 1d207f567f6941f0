"""Short form of `make torture`: damaged stores, hostile artefacts and names, racing processes."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import publish_one
from nunatak_registry import InvalidNameError, Registry
from torture.artifacts import LIMIT_S, attacks, launch_all
from torture.concurrency import race
from torture.corruption import corrupt_stores
from torture.hostile_names import calls_of, every_name, try_names
from torture.mutants import Mutant
from torture.scale import fill, measure

# Another process may hold the processor for a while; `make torture` measures on a quiet machine.
PATIENCE = 20


def test_damaged_stores_are_found_out_and_serve_the_rest(tmp_path: Path) -> None:
    tally = corrupt_stores(tmp_path, num_stores=40, seed=30)

    assert tally.is_clean, (tally.line(), tally.problems)


@pytest.mark.parametrize("mutant", [Mutant.TRUST_BYTES, Mutant.OVERLOOK_STRANGERS])
def test_a_store_that_looks_away_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    assert corrupt_stores(tmp_path, num_stores=25, seed=3, mutant=mutant).failures > 0


def test_hostile_artefacts_are_refused_by_code_and_leave_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        every = list(attacks(registry, tiny_backbone()))
        tally, longest_s = launch_all(every, tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 60
    assert longest_s < PATIENCE * LIMIT_S


def test_hostile_names_are_refused_by_every_call_and_touch_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        publish_one(registry)
        tally, longest_s = try_names(every_name(), calls_of(registry), tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 200
    assert longest_s < PATIENCE * LIMIT_S


def test_names_that_become_paths_are_caught(tmp_path: Path) -> None:
    def calls(name: str) -> Iterable[Callable[[], object]]:
        def touch_and_refuse() -> None:
            (tmp_path / name.encode().hex()[:20]).touch()
            raise InvalidNameError("task name", name, "another")

        return (touch_and_refuse,)

    tally, _ = try_names(["../x"], calls, tmp_path)

    assert tally.wrong == 1


def test_racing_processes_make_one_history(tmp_path: Path) -> None:
    location = str(tmp_path / "registry")

    tally = race(location, tmp_path, num_workers=3, operations=30, seed=31)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == 90


def test_a_promotion_that_does_not_compare_is_caught(tmp_path: Path) -> None:
    location = str(tmp_path / "registry")

    tally = race(
        location, tmp_path, num_workers=3, operations=40, seed=32, mutant=Mutant.SKIP_COMPARE
    )

    assert tally.failures > 0


def test_a_large_registry_answers_as_a_small_one(tmp_path: Path) -> None:
    fill(tmp_path, 1000)

    timings = measure(tmp_path, repeats=3)

    for times in (timings.list_ms, timings.resolve_ms, timings.promote_ms, timings.open_ms):
        assert min(times) < 20 * PATIENCE

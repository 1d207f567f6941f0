"""Negative controls: the check for each planted bug must catch the bug."""

import errno
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

from doubles.drafts import publish_one
from doubles.names import calls_with_name
from torture.concurrency import race
from torture.corruption import corrupt_stores
from torture.fork_server import ForkServer
from torture.hostile_names import try_names
from torture.kills import kill_at_random
from torture.mutants import Mutant, open_registry
from torture.steps import Bench, sampled, strike_every_step, undurable
from torture.tally import Tally

SEED = 3
RACES = 6
PARTS = 6
"""Of a campaign, which ends with the first part that shows the bug."""


def is_caught(mutant: Mutant, folder: Path, forks: ForkServer) -> bool:
    """Return whether a planted bug is caught; `folder` is empty before."""
    return _CHECKS[mutant](mutant, folder, forks)


def _is_undurable(mutant: Mutant, folder: Path, forks: ForkServer) -> bool:
    return bool(undurable(Bench(forks, folder).trace("publish", mutant)))


def _fails_at_some_step(
    mutant: Mutant, folder: Path, forks: ForkServer, *, operation: str, error: int = 0
) -> bool:
    """Strike the steps in random order, up to the first that shows the bug."""
    bench, tally = Bench(forks, folder), Tally(campaign=mutant, seed=SEED)
    steps = list(bench.cases([error], names=[operation]))
    return any(
        strike_every_step(bench, tally, [case], mutant).failures
        for case in sampled(steps, len(steps), SEED)
    )


def _loses_by_kills(mutant: Mutant, folder: Path, forks: ForkServer) -> bool:
    numbers, seeds = count(), range(SEED, SEED + PARTS)

    def new_location() -> str:
        return str(folder / f"registry{next(numbers)}")

    return any(
        kill_at_random(forks, new_location, num_kills=2, seed=seed, mutant=mutant).lost
        for seed in seeds
    )


def _overlooks_damage(mutant: Mutant, folder: Path, _: ForkServer) -> bool:
    return any(
        corrupt_stores(folder / str(seed), num_stores=5, seed=seed, mutant=mutant).failures
        for seed in range(SEED, SEED + PARTS)
    )


def _breaks_the_history(mutant: Mutant, folder: Path, _: ForkServer) -> bool:
    # Only chance decides whether two workers meet between read and write, so several races are run.
    return any(_race_fails(mutant, folder / str(attempt), attempt) for attempt in range(RACES))


def _race_fails(mutant: Mutant, folder: Path, attempt: int) -> bool:
    folder.mkdir()
    location = str(folder / "registry")
    tally = race(location, folder, num_workers=3, operations=40, seed=SEED + attempt, mutant=mutant)
    return tally.failures > 0


def _writes_next_to_the_store(mutant: Mutant, folder: Path, _: ForkServer) -> bool:
    with open_registry(str(folder / "registry"), mutant) as registry:
        publish_one(registry)
        tally, _longest = try_names(["../x"], partial(calls_with_name, registry), folder)
    return tally.wrong > 0


_CHECKS: Mapping[Mutant, Callable[[Mutant, Path, ForkServer], bool]] = {
    Mutant.SKIP_FILE_SYNC: _is_undurable,
    Mutant.SKIP_FOLDER_SYNC: _is_undurable,
    Mutant.SKIP_JOURNAL_SYNC: _is_undurable,
    Mutant.WRITE_IN_PLACE: partial(_fails_at_some_step, operation="publish-again"),
    Mutant.ROW_BEFORE_BLOB: partial(_fails_at_some_step, operation="publish"),
    Mutant.BLOB_GONE_BEFORE_ROW: partial(_fails_at_some_step, operation="delete"),
    Mutant.SWALLOW_ERRORS: partial(_fails_at_some_step, operation="publish", error=errno.EIO),
    Mutant.ACKNOWLEDGE_EARLY: _loses_by_kills,
    Mutant.TRUST_BYTES: _overlooks_damage,
    Mutant.OVERLOOK_STRANGERS: _overlooks_damage,
    Mutant.LEAVE_IN_PLACE: _overlooks_damage,
    Mutant.SKIP_COMPARE: _breaks_the_history,
    Mutant.NAMES_AS_PATHS: _writes_next_to_the_store,
}

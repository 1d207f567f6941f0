"""Fault injection into the registry: the long form of tests/torture, with its figures.

Each campaign prints its seed, the injected faults, the survived faults, and the lost, wrong or
dangling data. Kills and damage run on a file system in memory, if the machine has one: a killed
process loses no page cache, so no disk is needed. Races and timings run on the disk.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.harness.recording import record
from doubles.backbones import tiny_backbone
from doubles.drafts import publish_one
from doubles.names import calls_with_name
from doubles.postgres import find_binaries, private_postgres
from nunatak_registry import Registry
from torture.concurrency import race
from torture.controls import is_caught
from torture.corruption import corrupt_stores
from torture.fork_server import fork_server
from torture.hostile_artifacts import attacks, launch_all
from torture.hostile_names import every_name, try_names
from torture.kills import kill_at_random
from torture.mutants import Mutant
from torture.scale import fill, measure
from torture.steps import ERRORS, Bench, strike_every_step, undurable
from torture.tally import Tally
from torture.upgrades import OldRegistries, kill_upgrades

MEMORY = Path("/dev/shm")  # noqa: S108 - private folders are made below it
SEED = 2026
NUM_KILLS = 2000
NUM_STORES = 1000
NUM_WORKERS, OPERATIONS = 8, 500
NUM_VERSIONS = 10_000
LIMIT_MS = 100
NUM_OLD_VERSIONS, NUM_UPGRADE_KILLS = 500, 30

Campaign = Callable[[], bool]


def main() -> int:
    """Run the requested campaigns; return 1 if a campaign found a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=[*CAMPAIGNS])
    passed = [CAMPAIGNS[name]() for name in parser.parse_args().only]
    return 0 if all(passed) else 1


def kills_on_sqlite() -> bool:
    """Kill -9 at random times, index in SQLite."""
    numbers = itertools.count()
    with scratch(in_memory=True) as folder, fork_server() as forks:
        tally = kill_at_random(
            forks, lambda: str(folder / f"r{next(numbers)}"), num_kills=NUM_KILLS, seed=SEED
        )
    return report(kills_on_sqlite, "registry.torture.kills.sqlite", tally, "kills")


def kills_on_postgresql() -> bool:
    """Kill -9 at random times, index in PostgreSQL."""
    binaries = find_binaries()
    if binaries is None:
        print("no PostgreSQL server programs on this machine: campaign left out")
        return True
    numbers = itertools.count()
    with (
        scratch(in_memory=True) as folder,
        private_postgres(binaries) as server,
        fork_server() as forks,
    ):
        tally = kill_at_random(
            forks,
            lambda: f"{server.create_database()}&blobs={folder / f'b{next(numbers)}'}",
            num_kills=NUM_KILLS,
            seed=SEED + 1,
        )
    return report(kills_on_postgresql, "registry.torture.kills.postgresql", tally, "kills")


def steps() -> bool:
    """Kill at every step, fail every call (once, and from there on), and check durable order."""
    with scratch(in_memory=True) as folder, fork_server(with_faults=True) as forks:
        bench = Bench(forks, folder)
        killed = strike_every_step(
            bench, Tally(campaign="kill at every step", seed=0), list(bench.cases([0]))
        )
        failed = Tally(campaign="an error at every call", seed=0)
        for persistent in (False, True):
            cases = list(bench.cases(list(ERRORS), persistent=persistent))
            strike_every_step(bench, failed, cases)
        order = [*undurable(bench.trace("publish")), *undurable(bench.trace("publish-again"))]
        if order:
            failed.wrong += 1
            failed.note(f"not durable in order: {order}")
    return all(
        [
            report(steps, "registry.torture.kills.every_step", killed, "kills"),
            report(steps, "registry.torture.io_errors", failed, "errors"),
        ]
    )


def controls() -> bool:
    """Plant bugs; the check for each bug must find it."""
    with scratch(in_memory=True) as folder, fork_server(with_faults=True) as forks:
        caught = dict[Mutant, bool]()
        for mutant in Mutant:
            place = folder / mutant
            place.mkdir()
            caught[mutant] = is_caught(mutant, place, forks)
    for mutant, was in caught.items():
        print(f"  {mutant}: {'caught' if was else 'MISSED'}")
    record(
        "registry.torture.controls",
        [sum(caught.values())],
        unit=f"of {len(caught)} planted bugs caught",
        command=command_of(controls),
        goal=f">= {len(caught)}",
    )
    return all(caught.values())


def corruption() -> bool:
    """Stores damaged at random."""
    with scratch(in_memory=True) as folder:
        tally = corrupt_stores(folder, num_stores=NUM_STORES, seed=SEED)
    return report(corruption, "registry.torture.corrupt_stores", tally, "damaged stores")


def hostility() -> bool:
    """Hostile artefacts and names."""
    with scratch(in_memory=True) as folder, Registry.open(folder / "registry") as registry:
        publish_one(registry)
        artifacts, artifact_s = launch_all(list(attacks(registry, tiny_backbone())), folder)
        names, name_s = try_names(every_name(), partial(calls_with_name, registry), folder)
    passed = [
        report(hostility, "registry.torture.hostile_artifacts", artifacts, "hostile artefacts"),
        report(hostility, "registry.torture.hostile_names", names, "hostile names"),
    ]
    longest = {"hostile_artifacts": artifact_s, "hostile_names": name_s}
    for what, seconds in longest.items():
        record(
            f"registry.torture.{what}.longest_ms",
            [1000 * seconds],
            unit="ms of CPU for the slowest refusal",
            command=command_of(hostility),
            goal=f"<= {LIMIT_MS}",
        )
        print(f"  {what}: slowest refusal {1000 * seconds:.1f} ms")
        passed.append(1000 * seconds <= LIMIT_MS)
    return all(passed)


def upgrades() -> bool:
    """Kill -9 during upgrades of 500 versions, index in SQLite and in PostgreSQL."""
    binaries, numbers = find_binaries(), itertools.count()
    if binaries is None:
        print("no PostgreSQL server programs on this machine: campaign left out")
        return True
    with scratch(in_memory=True) as folder, private_postgres(binaries) as server:
        old = OldRegistries(folder, tiny_backbone(), num_versions=NUM_OLD_VERSIONS)
        places = {
            "sqlite": lambda: f"sqlite:///{folder / f'index{next(numbers)}'}?",
            "postgresql": lambda: f"{server.create_database()}&",
        }
        tallies = [
            kill_upgrades(
                old,
                partial(_put_old, old, dialect, place),
                folder / dialect,
                num_kills=NUM_UPGRADE_KILLS,
                seed=SEED,
            )
            for dialect, place in places.items()
        ]
    both = Tally(campaign="kill -9 of upgrades, SQLite and PostgreSQL", seed=SEED)
    for tally in tallies:
        print(tally.line())
        both.injected += tally.injected
        both.survived += tally.survived
        both.lost += tally.lost
        both.wrong += tally.wrong
        both.dangling += tally.dangling
        both.problems += tally.problems
    return report(upgrades, "registry.upgrade.lost", both, "kills")


def _put_old(old: OldRegistries, dialect: str, place: Callable[[], str]) -> str:
    return old.put(f"{place()}blobs={old.blobs}", dialect)


def concurrency() -> bool:
    """Racing processes, index in SQLite and in PostgreSQL."""
    with scratch(in_memory=False) as folder:
        tally = _race(str(folder / "registry"), folder, operations=OPERATIONS)
    passed = [report(concurrency, "registry.concurrency.sqlite", tally, "operations")]
    binaries = find_binaries()
    if binaries is None:
        print("no PostgreSQL server programs on this machine: campaign left out")
        return all(passed)
    with scratch(in_memory=False) as folder, private_postgres(binaries) as server:
        location = f"{server.create_database()}&blobs={folder / 'blobs'}"
        tally = _race(location, folder, operations=OPERATIONS)
    return all(
        [*passed, report(concurrency, "registry.concurrency.postgresql", tally, "operations")]
    )


def scale() -> bool:
    """Compare a registry of 10,000 versions with a registry of 100 versions."""
    with scratch(in_memory=False) as folder:
        fill(folder / "small", 100)
        fill(folder / "large", NUM_VERSIONS)
        small = measure(folder / "small", repeats=51)
        large = measure(folder / "large", repeats=51)
    unit = f"ms with {NUM_VERSIONS} versions"
    figures = {
        "list_ms": (large.list_ms, "<= 20"),
        "resolve_ms": (large.resolve_ms, "<= 20"),
        "promote_ms": (large.promote_ms, "<= 20"),
        "open_ms": (large.open_ms, f"<= {2 * median(small.open_ms):.3g}"),
    }
    met = [
        record(f"registry.scale.{name}", times, unit=unit, command=command_of(scale), goal=goal).met
        for name, (times, goal) in figures.items()
    ]
    record(
        "registry.scale.promote_small_ms",
        small.promote_ms,
        unit="ms with 100 versions",
        command=command_of(scale),
    )
    for name, (times, goal) in figures.items():
        print(f"  {name}: median {median(times):.2f} (goal {goal})")
    return all(met)


def report(campaign: Campaign, identifier: str, tally: Tally, of_what: str) -> bool:
    """Print a tally and record its failures."""
    print(tally.line(), flush=True)
    for problem in tally.problems:
        print(f"  {problem}")
    record(
        identifier,
        [tally.failures],
        unit=f"lost, wrong or dangling after {tally.injected} {of_what} (seed {tally.seed})",
        command=command_of(campaign),
        goal="<= 0",
        reason="; ".join(tally.problems[:2]) or None,
    )
    return tally.is_clean


def scratch(*, in_memory: bool) -> "TemporaryPath":
    """Return a temporary folder, in memory if there is a file system for that."""
    return TemporaryPath(MEMORY if in_memory and os.access(MEMORY, os.W_OK) else None)


class TemporaryPath(TemporaryDirectory[str]):
    """A temporary folder as a path."""

    def __init__(self, parent: Path | None) -> None:
        super().__init__(prefix="nunatak-torture-", dir=parent)

    def __enter__(self) -> Path:  # pyrefly: ignore[bad-override] - a path instead of its text
        return Path(super().__enter__())


def _race(location: str, folder: Path, *, operations: int) -> Tally:
    return race(location, folder, num_workers=NUM_WORKERS, operations=operations, seed=SEED)


def command_of(campaign: Campaign) -> str:
    """Return the command that runs one campaign alone."""
    return f"make torture ONLY={campaign.__name__}"


_EVERY = (
    hostility,
    scale,
    corruption,
    controls,
    steps,
    concurrency,
    upgrades,
    kills_on_sqlite,
    kills_on_postgresql,
)
CAMPAIGNS: Mapping[str, Campaign] = {campaign.__name__: campaign for campaign in _EVERY}


if __name__ == "__main__":
    sys.exit(main())

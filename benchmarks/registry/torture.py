"""Fault injection into the registry: the long form of tests/torture, with its figures.

Each campaign prints its seed, the injected faults, the survived faults, and the lost, wrong or
dangling data. Kills and damage run on a file system in memory, if the machine has one: a killed
process loses no page cache, so no disk is needed. Races and timings run on the disk.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.harness.recording import Figure, Sheet
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

Campaign = Callable[[Sheet], Iterator[Figure]]


def main() -> int:
    """Run the requested campaigns; return 1 if a campaign found a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=[*CAMPAIGNS])
    missed = list[str]()
    for name in parser.parse_args().only:
        sheet = Sheet(command=f"make torture ONLY={name}")
        missed += [it.id for it in CAMPAIGNS[name](sheet) if it.met is False]
    return 1 if missed else 0


def kills_on_sqlite(sheet: Sheet) -> Iterator[Figure]:
    """Kill -9 at random times, index in SQLite."""
    numbers = itertools.count()
    with scratch(in_memory=True) as folder, fork_server() as forks:
        tally = kill_at_random(
            forks, lambda: str(folder / f"r{next(numbers)}"), num_kills=NUM_KILLS, seed=SEED
        )
    yield report(sheet, "registry.torture.kills.sqlite", tally, "kills")


def kills_on_postgresql(sheet: Sheet) -> Iterator[Figure]:
    """Kill -9 at random times, index in PostgreSQL."""
    numbers = itertools.count()
    with scratch(in_memory=True) as folder, databases() as database, fork_server() as forks:
        if database is None:
            return
        tally = kill_at_random(
            forks,
            lambda: f"{database()}&blobs={folder / f'b{next(numbers)}'}",
            num_kills=NUM_KILLS,
            seed=SEED + 1,
        )
    yield report(sheet, "registry.torture.kills.postgresql", tally, "kills")


def steps(sheet: Sheet) -> Iterator[Figure]:
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
    yield report(sheet, "registry.torture.kills.every_step", killed, "kills")
    yield report(sheet, "registry.torture.io_errors", failed, "errors")


def controls(sheet: Sheet) -> Iterator[Figure]:
    """Plant bugs; the check for each bug must find it."""
    caught = dict[Mutant, bool]()
    with scratch(in_memory=True) as folder, fork_server(with_faults=True) as forks:
        for mutant in Mutant:
            place = folder / mutant
            place.mkdir()
            caught[mutant] = is_caught(mutant, place, forks)
            print(f"  {mutant}: {'caught' if caught[mutant] else 'MISSED'}")
    goal, unit = f">= {len(caught)}", f"of {len(caught)} planted bugs caught"
    yield sheet.record("registry.torture.controls", [sum(caught.values())], unit=unit, goal=goal)


def corruption(sheet: Sheet) -> Iterator[Figure]:
    with scratch(in_memory=True) as folder:
        tally = corrupt_stores(folder, num_stores=NUM_STORES, seed=SEED)
    yield report(sheet, "registry.torture.corrupt_stores", tally, "damaged stores")


def hostility(sheet: Sheet) -> Iterator[Figure]:
    with scratch(in_memory=True) as folder, Registry.open(folder / "registry") as registry:
        publish_one(registry)
        found = {
            "artifacts": launch_all(list(attacks(registry, tiny_backbone())), folder),
            "names": try_names(every_name(), partial(calls_with_name, registry), folder),
        }
    for what, (tally, seconds) in found.items():
        name, told = f"registry.torture.hostile_{what}", what.replace("artifacts", "artefacts")
        yield report(sheet, name, tally, f"hostile {told}")
        unit, goal = "ms of CPU for the slowest refusal", f"<= {LIMIT_MS}"
        yield sheet.record(f"{name}.longest_ms", [1000 * seconds], unit=unit, goal=goal)


def upgrades(sheet: Sheet) -> Iterator[Figure]:
    """Kill -9 during upgrades of 500 versions, index in SQLite and in PostgreSQL."""
    numbers = itertools.count()
    both = Tally(campaign="kill -9 of upgrades, SQLite and PostgreSQL", seed=SEED)
    with scratch(in_memory=True) as folder, databases() as database:
        if database is None:
            return
        old = OldRegistries(folder, tiny_backbone(), num_versions=NUM_OLD_VERSIONS)
        places = {
            "sqlite": lambda: f"sqlite:///{folder / f'index{next(numbers)}'}?",
            "postgresql": lambda: f"{database()}&",
        }
        for dialect, place in places.items():

            def put_old(dialect: str = dialect, place: Callable[[], str] = place) -> str:
                return old.put(f"{place()}blobs={old.blobs}", dialect)

            kills, where = NUM_UPGRADE_KILLS, folder / dialect
            tally = kill_upgrades(old, put_old, where, num_kills=kills, seed=SEED)
            print(tally.line())
            for name in ("injected", "survived", "lost", "wrong", "dangling", "problems"):
                setattr(both, name, getattr(both, name) + getattr(tally, name))
    yield report(sheet, "registry.upgrade.lost", both, "kills")


def concurrency(sheet: Sheet) -> Iterator[Figure]:
    """Racing processes, index in SQLite and in PostgreSQL."""
    run = partial(race, num_workers=NUM_WORKERS, operations=OPERATIONS, seed=SEED)
    with scratch(in_memory=False) as folder:
        tally = run(str(folder / "registry"), folder)
    yield report(sheet, "registry.concurrency.sqlite", tally, "operations")
    with scratch(in_memory=False) as folder, databases() as database:
        if database is None:
            return
        tally = run(f"{database()}&blobs={folder / 'blobs'}", folder)
    yield report(sheet, "registry.concurrency.postgresql", tally, "operations")


def scale(sheet: Sheet) -> Iterator[Figure]:
    """Compare a registry of 10,000 versions with a registry of 100 versions."""
    with scratch(in_memory=False) as folder:
        for name, count in (("small", 100), ("large", NUM_VERSIONS)):
            fill(folder / name, count)
        small, large = (measure(folder / name, repeats=51) for name in ("small", "large"))
    goals = dict.fromkeys(("list_ms", "resolve_ms", "promote_ms"), "<= 20")
    goals["open_ms"] = f"<= {2 * median(small.open_ms):.3g}"
    unit, start = f"ms with {NUM_VERSIONS} versions", "registry.scale"
    for name, goal in goals.items():
        yield sheet.record(f"{start}.{name}", getattr(large, name), unit=unit, goal=goal)
    yield sheet.record(f"{start}.promote_small_ms", small.promote_ms, unit="ms with 100 versions")


def report(sheet: Sheet, identifier: str, tally: Tally, of_what: str) -> Figure:
    print(tally.line(), *(f"  {it}" for it in tally.problems), sep="\n", flush=True)
    unit = f"lost, wrong or dangling after {tally.injected} {of_what} (seed {tally.seed})"
    reason = "; ".join(tally.problems[:2]) or None
    failures = tally.failures or tally.injected - tally.survived
    return sheet.record(identifier, [failures], unit=unit, goal="<= 0", reason=reason)


@contextmanager
def scratch(*, in_memory: bool) -> Generator[Path]:
    """Make a temporary folder, in memory if there is a file system for that."""
    parent = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="nunatak-torture-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def databases() -> Generator[Callable[[], str] | None]:
    """Run PostgreSQL; yield a function that makes a database, or None without its programs."""
    binaries = find_binaries()
    if binaries is None:
        print("no PostgreSQL server programs on this machine: campaign left out")
        yield None
        return
    with private_postgres(binaries) as server:
        yield server.create_database


_EVERY = (
    *(hostility, scale, corruption, controls, steps, concurrency),
    *(upgrades, kills_on_sqlite, kills_on_postgresql),
)
CAMPAIGNS: Mapping[str, Campaign] = {campaign.__name__: campaign for campaign in _EVERY}


if __name__ == "__main__":
    sys.exit(main())

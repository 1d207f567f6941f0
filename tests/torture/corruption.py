"""Stores damaged at random: damage must be found, and everything else must be served as before."""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import cycle
from pathlib import Path

from doubles.drafts import make_draft
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Finding, Registry, StoreUnavailableError
from torture.mutants import Mutant, open_registry
from torture.tally import Tally

TASKS = ("a", "b", "c")
VERSIONS_PER_TASK = 3
PROMOTED = 2
INDEX = "index.sqlite3"

Damage = Callable[[random.Random, Path], None]
Answers = dict[str, bytes | str]


def flip(source: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    position = source.randrange(len(data))
    data[position] ^= source.randrange(1, 256)
    rewrite(path, bytes(data))


def truncate(source: random.Random, path: Path) -> None:
    data = path.read_bytes()
    rewrite(path, data[: source.randrange(len(data))])


def lengthen(source: random.Random, path: Path) -> None:
    rewrite(path, path.read_bytes() + source.randbytes(source.randrange(1, 100)))


def garble(source: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    begin = source.randrange(len(data))
    end = min(len(data), begin + source.randrange(1, 512))
    data[begin:end] = bytes(b ^ 0xFF for b in data[begin:end])
    rewrite(path, bytes(data))


def swap(source: random.Random, path: Path) -> None:
    others = [other for other in path.parent.parent.glob("*/*") if other != path]
    other = source.choice(others)
    mine, theirs = path.read_bytes(), other.read_bytes()
    rewrite(path, theirs)
    rewrite(other, mine)


def link(_: random.Random, path: Path) -> None:
    """Put a link to the same bytes elsewhere in the file's place."""
    elsewhere = path.parents[4] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(_: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(_: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def remove(_: random.Random, path: Path) -> None:
    path.unlink()


def add_file(source: random.Random, path: Path) -> None:
    (path.parent / "README").write_bytes(source.randbytes(10))


def add_false_blob(source: random.Random, path: Path) -> None:
    """Put a file among the blobs whose name does not fit its bytes."""
    digest = f"{source.getrandbits(256):064x}"
    place = path.parent.parent / digest[:2]
    place.mkdir(exist_ok=True)
    (place / digest).write_bytes(source.randbytes(100))


def add_link(_: random.Random, path: Path) -> None:
    """Put a link out of the store next to the blobs."""
    (path.parent / "READABLE").symlink_to("/")


class Target(StrEnum):
    BLOBS = "blobs"
    INDEX = "index"


DAMAGES: Mapping[Target, tuple[Damage, ...]] = {
    Target.BLOBS: (
        *(flip, truncate, lengthen, garble, swap, link, pipe, folder, remove),
        *(add_file, add_false_blob, add_link),
    ),
    Target.INDEX: (flip, truncate, garble),
}


def make_store(place: Path) -> Answers:
    """Fill a registry; return all answers that its readers may get."""
    with Registry.open(place) as registry:
        for task in TASKS:
            for version in range(1, VERSIONS_PER_TASK + 1):
                registry.publish(*make_draft(task, seed=10 * TASKS.index(task) + version))
            registry.promote(task, "prod", 1)
            registry.promote(task, "prod", PROMOTED)
        return answers(registry)


def answers(registry: Registry) -> Answers:
    """Ask for everything; a refusal is an answer, recorded as its code."""
    told: Answers = {}
    for task in TASKS:
        for reference in (task, *(f"{task}/{n}" for n in range(1, VERSIONS_PER_TASK + 1))):
            try:
                manifest: TaskManifest = registry.resolve(reference)
                told[reference] = manifest.model_dump_json().encode() + registry.read_blob(manifest)
            except NunatakError as error:
                told[reference] = error.code
        try:
            moves = [event.to_version for event in registry.history(task, "prod")]
            told[f"{task} history"] = repr(moves).encode()
        except NunatakError as error:
            told[f"{task} history"] = error.code
    return told


def corrupt_stores(
    scratch: Path, *, num_stores: int, seed: int, mutant: Mutant | None = None
) -> Tally:
    """Damage stores, one way each, every way in turn; check verification and answers."""
    tally = Tally(campaign="corrupted stores", seed=seed)
    source = random.Random(seed)
    template = scratch / "template"
    expected = make_store(template)
    ways = [(target, damage) for target, damages in DAMAGES.items() for damage in damages]
    in_turn = cycle(source.sample(ways, len(ways)))
    for number in range(num_stores):
        store = scratch / f"store{number}"
        shutil.copytree(template, store)
        target, damage = next(in_turn)
        match target:
            case Target.INDEX:
                damage(source, store / INDEX)
            case Target.BLOBS:
                damage(source, source.choice(sorted((store / "blobs" / "sha256").glob("*/*"))))
        tally.injected += 1
        problem = examine(tally, store, expected, target, mutant)
        if problem is None:
            tally.survived += 1
        else:
            tally.note(f"store {number}, {damage.__name__} of the {target}: {problem}")
        shutil.rmtree(store)
        for leftover in scratch.glob("elsewhere-*"):
            leftover.unlink()
    return tally


def examine(
    tally: Tally, store: Path, expected: Answers, target: Target, mutant: Mutant | None
) -> str | None:
    try:
        with open_registry(str(store), mutant) as registry:
            findings = registry.verify(quarantine=True)
            told = answers(registry)
    except StoreUnavailableError as error:
        if target is Target.INDEX:
            return None
        tally.lost += 1
        return f"the whole store is refused: {error}"
    except Exception as error:  # noqa: BLE001 - the campaign counts every error
        tally.wrong += 1
        return f"{type(error).__name__}: {error}"
    false = [name for name, answer in told.items() if isinstance(answer, bytes)
             and answer != expected[name]]  # fmt: skip
    if false:
        tally.wrong += 1
        return f"false answers to {false}"
    refused = {name for name, answer in told.items() if isinstance(answer, str)}
    match target:
        case Target.INDEX:
            return _law_of_the_index(tally, findings, refused)
        case Target.BLOBS:
            return _law_of_blobs(tally, findings, refused, misplaced(store / "blobs" / "sha256"))


def misplaced(folder: Path) -> list[str]:
    """Return what lies below a folder of blobs and is no plain file named by its own digest."""
    return [
        str(path)
        for path in folder.glob("*/*")
        if path.is_symlink()
        or not path.is_file()
        or hashlib.sha256(path.read_bytes()).hexdigest() != path.name
    ]


def _law_of_the_index(tally: Tally, findings: list[Finding], refused: set[str]) -> str | None:
    # A damaged byte in a free page or in a time changes no answer, so verification may miss it.
    if refused and not findings:
        tally.wrong += 1
        return f"refuses {refused}, finds nothing"
    return None


def _law_of_blobs(
    tally: Tally, findings: list[Finding], refused: set[str], misplaced: list[str]
) -> str | None:
    if not findings:
        tally.wrong += 1
        return "the damage was not found"
    blamed = {finding.subject for finding in findings}
    versions = {name for name in refused if "/" in name}
    tasks = {task for task in TASKS if f"{task}/{PROMOTED}" in versions}
    if not versions <= blamed or refused - versions != tasks:
        tally.lost += 1
        return f"refuses {refused}, blames {blamed}"
    if misplaced:
        tally.wrong += 1
        return f"not all was quarantined: {misplaced}"
    return None


def rewrite(path: Path, data: bytes) -> None:
    """Replace the bytes of a read-only file in place."""
    path.chmod(0o644)
    path.write_bytes(data)

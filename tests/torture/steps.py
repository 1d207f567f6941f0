"""A fault at every step: for each system call on the store, a kill or an error."""

import errno
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nunatak_registry import Registry
from torture.fork_server import Calls, Death, Fault, ForkServer
from torture.kills import fixed, judge
from torture.mutants import Mutant
from torture.operations import Operation, State
from torture.tally import Tally

PRELUDE = fixed(
    Operation(kind="publish", number=0),
    Operation(kind="publish", number=1),
    Operation(kind="publish", task="b", number=0),
    Operation(kind="promote", number=1),
    Operation(kind="promote", number=2),
    Operation(kind="publish", number=2),
    Operation(kind="publish", number=3),
    Operation(kind="delete", number=3),
)
"""The content of every store before the fault, with a deleted version for the collector."""

OPERATIONS: dict[str, Operation] = {
    "publish": Operation(kind="publish", number=5),
    "publish-again": Operation(kind="publish", number=1),
    "promote": Operation(kind="promote", alias="canary", number=1),
    "rollback": Operation(kind="rollback"),
    "delete": Operation(kind="delete", number=4),
    "gc": Operation(kind="gc"),
}

JOURNAL = "index.sqlite3-journal"

KINDS = {"create": Calls.OPEN, **{str(it.name).lower(): it for it in Calls}}
"""The kinds of calls by their names in a trace."""

ERRORS: dict[int, Calls] = {
    errno.ENOSPC: Calls.OPEN | Calls.WRITE | Calls.SYNC | Calls.RENAME | Calls.MKDIR,
    errno.EIO: Calls.ALL,
    errno.EMFILE: Calls.OPEN,
    errno.EACCES: Calls.OPEN | Calls.RENAME | Calls.UNLINK | Calls.MKDIR,
}
"""The errors, and the calls that can give them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation with one fault at one step."""

    name: str
    error: int
    nth: int
    persistent: bool = False


class Bench:
    """Runs cases, each on a fresh copy of one store."""

    def __init__(self, forks: ForkServer, folder: Path) -> None:
        self._forks = forks
        self._folder = folder
        self._template = folder / "template"
        with Registry.open(self._template) as registry:
            for operation, _ in PRELUDE:
                operation.run(registry)
        self._runs = 0
        self._traces = dict[str, list[tuple[str, str]]]()

    def run(self, case: Case, mutant: Mutant | None = None) -> tuple[Path, Death]:
        """Run one case; return its store and how the process ended."""
        store = self._folder / f"store{self._runs}"
        self._runs += 1
        shutil.copytree(self._template, store)
        fault = Fault(
            folder=str(store),
            nth=case.nth,
            error=case.error,
            kinds=int(ERRORS.get(case.error, Calls.ALL)),
            persistent=case.persistent,
        )
        death = self._forks.run(str(store), [OPERATIONS[case.name]], fault=fault, mutant=mutant)
        return store, death

    def cases(
        self, errors: Sequence[int], *, names: Iterable[str] = OPERATIONS, persistent: bool = False
    ) -> Iterator[Case]:
        """Yield every step of the operations, by their traces."""
        for name in names:
            if name not in self._traces:
                self._traces[name] = self.trace(name)
            for error in errors:
                counted = ERRORS.get(error, Calls.ALL)
                num_steps = sum(KINDS[kind] in counted for kind, _ in self._traces[name])
                for nth in range(1, num_steps + 1):
                    yield Case(name=name, error=error, nth=nth, persistent=persistent)

    def trace(self, name: str, mutant: Mutant | None = None) -> list[tuple[str, str]]:
        """Return the calls of an operation, as kind and path below the store, in order."""
        store = self._folder / f"store{self._runs}"
        self._runs += 1
        shutil.copytree(self._template, store)
        path = self._folder / "trace"
        path.unlink(missing_ok=True)
        fault = Fault(folder=str(store), trace=str(path))
        self._forks.run(str(store), [OPERATIONS[name]], fault=fault, mutant=mutant)
        calls = [line.partition(" ") for line in path.read_text().splitlines()]
        return [
            (kind, where.removeprefix(str(store)).removeprefix("/")) for kind, _, where in calls
        ]


def strike_every_step(
    bench: Bench, tally: Tally, cases: Sequence[Case], mutant: Mutant | None = None
) -> Tally:
    """Run cases; each must end refused or killed, in a state before or after its operation.

    Afterwards the operation is repeated without a fault and must lead to the state after it.
    """
    before = PRELUDE[-1][1]
    for case in cases:
        operation = OPERATIONS[case.name]
        after = before.after(operation)
        store, death = bench.run(case, mutant)
        tally.injected += 1
        found = judge(tally, str(store), [before, after, after], death)
        if found is not None and _can_be_repeated(tally, store, operation, found, after):
            tally.survived += 1
        elif tally.problems:
            tally.problems[-1] = f"{case}: {tally.problems[-1]}"
        shutil.rmtree(store, ignore_errors=True)
    return tally


def sampled(cases: Iterable[Case], number: int, seed: int) -> list[Case]:
    every = list(cases)
    return random.Random(seed).sample(every, min(number, len(every)))


def undurable(trace: Sequence[tuple[str, str]]) -> list[str]:
    """Return the files that a power loss could take although the index names them.

    Law: a transaction names a blob only after the blob's bytes were synced, the blob was renamed,
    and its folder was synced. After the transaction, the emptied journal or the journal's folder
    was synced.
    """
    problems, synced, renamed = list[str](), set[str](), dict[str, bool]()
    unsynced_end: str | None = None
    for kind, where in trace:
        match kind:
            case "unlink" | "truncate" if where == JOURNAL:
                unsynced_end = "" if kind == "unlink" else JOURNAL
            case "sync":
                synced.add(where)
                unsynced_end = None if unsynced_end == where else unsynced_end
                renamed |= {blob: True for blob in renamed if str(Path(blob).parent) == where}
            case "rename":
                folder = str(Path(where).parent)
                if not any(path.startswith(f"{folder}/.") for path in synced):
                    problems.append(f"{where} was renamed before its bytes were synced")
                renamed[where] = False
            case "write" if where.startswith("index.sqlite3"):
                problems += [
                    f"{blob} was named before its folder was synced"
                    for blob, is_safe in renamed.items()
                    if not is_safe
                ]
                renamed = dict.fromkeys(renamed, True)
            case _:
                pass
    if unsynced_end is not None:
        problems.append("the journal is gone, but may come back and undo the commit")
    return problems


def _can_be_repeated(
    tally: Tally, store: Path, operation: Operation, found: State, after: State
) -> bool:
    if found.observable() == after.observable() and operation.kind != "publish":
        return True
    with Registry.open(store) as registry:
        operation.run(registry)
    death = Death(acknowledged=1, was_killed=False, refusal=None, breakage=None)
    return judge(tally, str(store), [after, after], death) is not None

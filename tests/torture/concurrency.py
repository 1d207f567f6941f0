"""Processes publish and promote on one store; the replies must fit one history."""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

from doubles.drafts import make_draft
from doubles.processes import forks
from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry
from torture.mutants import Mutant
from torture.tally import Tally

TASKS = ("a", "b")
START_LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to one call. Times come from the clock that all processes of a machine share."""

    worker: int
    kind: str
    task: str
    began: float
    ended: float
    version: int
    expected: int = 0
    seed: int = 0


def race(
    location: str,
    scratch: Path,
    *,
    num_workers: int,
    operations: int,
    seed: int,
    mutant: Mutant | None = None,
) -> Tally:
    """Run workers against one store; compare their replies with the final store."""
    tally = Tally(campaign=f"{num_workers} processes x {operations} operations", seed=seed)
    Registry.open(location).close()
    context = forks()
    start = context.Barrier(num_workers)
    logs = [scratch / f"worker{number}" for number in range(num_workers)]
    workers = [
        context.Process(
            target=work, args=(location, str(log), start, number, operations, seed, mutant)
        )
        for number, log in enumerate(logs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    broken = [worker.exitcode for worker in workers if worker.exitcode]
    replies = [Reply(**json.loads(line)) for log in logs for line in log.read_text().splitlines()]
    tally.injected = num_workers * operations
    if broken:
        tally.wrong += len(broken)
        tally.note(f"workers ended with {broken}")
    check(tally, location, replies)
    tally.survived = max(0, len(replies) - tally.failures)
    return tally


def work(
    location: str,
    log: str,
    start: Barrier,
    worker: int,
    operations: int,
    seed: int,
    mutant: Mutant | None,
) -> None:
    source = random.Random(f"{seed}/{worker}")
    with Registry.open(location) as registry, Path(log).open("w", encoding="utf-8") as file:
        start.wait(START_LIMIT_S)
        for number in range(0, operations, 2):
            task = source.choice(TASKS)
            published = publish(registry, worker, task, seed=worker * operations + number)
            moved = promote(registry, worker, task, published.version, mutant)
            file.writelines(json.dumps(asdict(reply)) + "\n" for reply in (published, moved))


def publish(registry: Registry, worker: int, task: str, *, seed: int) -> Reply:
    """Publish a version that no other process publishes."""
    began = time.monotonic()
    version = registry.publish(*make_draft(task, seed)).version
    return Reply(
        worker=worker,
        kind="publish",
        task=task,
        began=began,
        ended=time.monotonic(),
        version=version,
        seed=seed,
    )


def promote(
    registry: Registry, worker: int, task: str, version: int, mutant: Mutant | None
) -> Reply:
    """Promote a version, unless another process moves the alias between the look and the call."""
    try:
        expected = registry.resolve(f"{task}@prod").version
    except NunatakError as error:
        if error.code != "alias_not_found":
            raise
        expected = 0
    compared = None if mutant is Mutant.SKIP_COMPARE else expected
    kind, began = "promote", time.monotonic()
    try:
        registry.promote(task, "prod", version, expected_version=compared)
    except NunatakError as error:
        if error.code != "alias_conflict":
            raise
        kind = "conflict"
    return Reply(
        worker=worker,
        kind=kind,
        task=task,
        began=began,
        ended=time.monotonic(),
        version=version,
        expected=expected,
    )


def check(tally: Tally, location: str, replies: Sequence[Reply]) -> None:
    """Compare the replies with the store.

    Every version is promoted at most once, so each move of the history belongs to one reply.
    """
    published = [reply for reply in replies if reply.kind == "publish"]
    moves: defaultdict[str, list[Reply]] = defaultdict(list)
    for reply in replies:
        if reply.kind == "promote":
            moves[reply.task].append(reply)
    with Registry.open(location) as registry:
        for task in TASKS:
            stored = {m.version: m.blobs[0].sha256 for m in registry.versions(task)}
            told = {
                reply.version: make_draft(task, reply.seed)[0].blobs[0].sha256
                for reply in published
                if reply.task == task
            }
            if len(told) != sum(reply.task == task for reply in published):
                tally.wrong += 1
                tally.note(f"{task}: a number was given out twice")
            tally.lost += len(told.keys() - stored.keys())
            tally.wrong += sum(
                stored.get(version, digest) != digest for version, digest in told.items()
            )
            if sorted(stored) != list(range(1, len(stored) + 1)):
                tally.wrong += 1
                tally.note(f"{task}: numbers have gaps")
            history = [
                (event.from_version or 0, event.to_version)
                for event in registry.history(task, "prod")
            ]
            _check_history(tally, task, history, moves[task])
        changes = len(published) + sum(map(len, moves.values()))
        if registry.generation().number != changes:
            tally.wrong += 1
            tally.note(f"generation {registry.generation().number} after {changes} changes")
        tally.dangling += len(registry.verify())


def _check_history(
    tally: Tally, task: str, history: Sequence[tuple[int, int]], moves: Sequence[Reply]
) -> None:
    told = Counter((reply.expected, reply.version) for reply in moves)
    missing, unexplained = told - Counter(history), Counter(history) - told
    tally.lost += missing.total()
    tally.wrong += unexplained.total()
    if missing or unexplained:
        tally.note(f"{task}: moves {sorted(missing)[:3]} are not in the history as they were told")
    by_version = {reply.version: reply for reply in moves}
    latest_begin = 0.0
    for _, version in history:
        reply = by_version.get(version)
        if reply is None:
            continue
        # The order respects real time: a move that ended before another move began must come first.
        if reply.ended < latest_begin:
            tally.wrong += 1
            tally.note(f"{task}: version {version} was promoted out of order")
        latest_begin = max(latest_begin, reply.began)

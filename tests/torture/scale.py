"""A registry of many versions: the time to list, resolve, promote and open."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert

from doubles.drafts import make_draft
from doubles.golden import engine_of
from nunatak_contract.manifest import TaskDraft
from nunatak_registry import Registry
from nunatak_registry.blobs.blobs import BlobStore, digest_of
from nunatak_registry.index.schema import BlobRow, TaskRow, VersionRow
from nunatak_registry.store import number_draft

NUM_TASKS = 100
PUBLISHED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def fill(folder: Path, num_versions: int) -> None:
    """Publish versions of `NUM_TASKS` tasks that share one blob."""
    draft, blobs = make_draft()
    tasks = [draft.model_copy(update={"task": f"task{number}"}) for number in range(NUM_TASKS)]
    publish_in_turn(folder, [(it, blobs) for it in tasks], num_versions)


def publish_in_turn(
    folder: Path, drafts: Sequence[tuple[TaskDraft, Mapping[str, bytes]]], num_versions: int
) -> None:
    """Publish as many versions, each of the next draft, with one statement for each table."""
    Registry.open(folder).close()
    store = BlobStore.open(str(folder / "blobs"))
    versions, blobs = list[dict[str, object]](), list[dict[str, object]]()
    for number in range(num_versions):
        turn, place = divmod(number, len(drafts))
        draft, _ = drafts[place]
        noted = draft.model_copy(update={"note": f"version {number}"})
        manifest = number_draft(noted, turn + 1)
        document = manifest.model_dump_json()
        key = {"task": draft.task, "version": manifest.version}
        digests = {
            "content_digest": manifest.content,
            "manifest_digest": digest_of(document.encode()),
        }
        at = PUBLISHED_AT.isoformat()
        versions.append({**key, **digests, "manifest": document, "published_at": at})
        blobs.append({**key, "digest": manifest.blobs[0].sha256})
    for data in {it["parameters"] for _, it in drafts}:
        store.put(data)
    names = Counter(str(it["task"]) for it in versions)
    tasks = [{"name": name, "next_version": count + 1} for name, count in names.items()]
    engine = engine_of(str(folder))
    with engine.begin() as connection:
        for row, values in ((TaskRow, tasks), (VersionRow, versions), (BlobRow, blobs)):
            connection.execute(insert(row), values)
    engine.dispose()


def measure(folder: Path, *, repeats: int) -> dict[str, list[float]]:
    """Return the milliseconds of each kind of call, on tasks spread over the registry."""
    with Registry.open(folder) as registry:
        newest = registry.task("task1").versions[-1]

        def promote(turn: int) -> None:
            registry.promote(f"task{turn % NUM_TASKS}", "prod", 1 + turn % newest)

        def open_anew(_: int) -> None:
            Registry.open(folder).close()

        calls: dict[str, Callable[[int], object]] = {
            "list_ms": lambda _: registry.tasks(),
            "resolve_ms": lambda turn: registry.resolve(f"task{turn % NUM_TASKS}"),
            "promote_ms": promote,
            "open_ms": open_anew,
        }
        return {name: _times(call, repeats) for name, call in calls.items()}


def _times(call: Callable[[int], object], repeats: int) -> list[float]:
    times = list[float]()
    for turn in range(repeats):
        began = time.perf_counter()
        call(turn)
        times.append(1000 * (time.perf_counter() - began))
    return times

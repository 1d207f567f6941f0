"""A registry of many versions: the time to list, resolve, promote and open."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL

from doubles.drafts import make_draft
from nunatak_registry import Registry
from nunatak_registry.blobs.blobs import BlobStore
from nunatak_registry.index.index import Index
from nunatak_registry.publication import number_draft

NUM_TASKS = 100
PUBLISHED_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds of each call."""

    list_ms: list[float]
    resolve_ms: list[float]
    promote_ms: list[float]
    open_ms: list[float]


def fill(folder: Path, num_versions: int) -> None:
    """Publish versions of `NUM_TASKS` tasks that share one blob, all in one transaction."""
    with Registry.open(folder) as registry:
        registry.publish(*make_draft("task0"))
    index = Index.open(URL.create("sqlite", database=str(folder / "index.sqlite3")))
    draft, blobs = make_draft()
    BlobStore.open(str(folder / "blobs")).put(blobs["parameters"])
    with index.writing() as change:
        for number in range(num_versions - 1):
            task = f"task{number % NUM_TASKS}"
            named = draft.model_copy(update={"task": task, "note": f"version {number}"})
            manifest = number_draft(named, change.take_version(task))
            change.add_version(manifest, PUBLISHED_AT)
    index.close()


def measure(folder: Path, *, repeats: int) -> Timings:
    """Time each call, on tasks spread over the registry."""
    with Registry.open(folder) as registry:
        newest = registry.task("task1").latest

        def promote(turn: int) -> None:
            registry.promote(f"task{turn % NUM_TASKS}", "prod", 1 + turn % newest)

        def open_anew(_: int) -> None:
            Registry.open(folder).close()

        return Timings(
            list_ms=_times(lambda _: registry.tasks(), repeats),
            resolve_ms=_times(lambda turn: registry.resolve(f"task{turn % NUM_TASKS}"), repeats),
            promote_ms=_times(promote, repeats),
            open_ms=_times(open_anew, repeats),
        )


def _times(call: Callable[[int], object], repeats: int) -> list[float]:
    times = list[float]()
    for turn in range(repeats):
        began = time.perf_counter()
        call(turn)
        times.append(1000 * (time.perf_counter() - began))
    return times

"""Planned rows: what a request is to compute, before its versions are in memory."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nunatak_artifact import LoadedTask
from nunatak_model import Encoding
from nunatak_registry import TaskManifest
from nunatak_server.batching.rows import PendingRow, RowOutcome
from nunatak_server.batching.senders import ANONYMOUS, Priority
from nunatak_server.batching.work import work_added

Companion = Callable[[Sequence[PendingRow]], Sequence[PendingRow]]
"""Given the rows of a version, returns rows to compute beside them, which nobody here waits for."""
Report = Callable[[list[RowOutcome]], None]
"""Is given what became of the rows of a version, as soon as the last of them is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row before its version is in memory."""

    encoding: Encoding
    group: int
    trunk_tokens: int
    branch_tokens: int
    trunk_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRows:
    """The rows of one request for one version."""

    manifest: TaskManifest
    rows: tuple[PlannedRow, ...]
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    companion: Companion | None = None
    report: Report | None = None


def work_by_task(asked: Sequence[VersionRows]) -> dict[str, float]:
    """Return the tokens through all layers of each task's rows; a text's trunk counts once.

    Its first task pays for it, up to its own split depth, and a deeper one for what is above.
    """
    found, shares = dict[str, float](), dict[int, float]()
    for each in asked:
        work = 0.0
        for row in each.rows:
            paid = shares.get(row.group, 0.0)
            work += work_added(row, paid_share=paid)
            shares[row.group] = max(paid, row.trunk_share)
        task = each.manifest.task
        found[task] = found.get(task, 0.0) + work
    return found


def pending_row(  # noqa: PLR0913 - a row, and what its request says of it
    row: PlannedRow,
    task: LoadedTask,
    *,
    deadline: float,
    now: float,
    load_s: float = 0.0,
    caller: str = ANONYMOUS,
    priority: Priority = Priority.NORMAL,
    is_shadow: bool = False,
) -> PendingRow:
    """Return a planned row as the engine takes it, with a future of its own.

    `task` is its version, which stays in memory until the row is answered.
    """
    manifest = task.manifest
    return PendingRow(
        task=manifest.task,
        version=manifest.version,
        branch=task.branch,
        encoding=row.encoding,
        group=row.group,
        trunk_tokens=row.trunk_tokens,
        branch_tokens=row.branch_tokens,
        deadline=deadline,
        submitted_at=now,
        load_s=load_s,
        future=asyncio.get_running_loop().create_future(),
        trunk_share=row.trunk_share,
        caller=caller,
        priority=priority,
        is_shadow=is_shadow,
    )

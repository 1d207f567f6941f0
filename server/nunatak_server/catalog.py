"""The registry as the event loop sees it: each call runs on a small thread pool.

`Catalog` gives access to all tasks. `VisibleCatalog` shows one caller the tasks on the list of that
caller; every other task does not exist for the caller.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import NoReturn, ParamSpec, TypeVar
from uuid import uuid4

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_contract.wire import ReplicaListing
from nunatak_registry import (
    AliasEvent,
    Beat,
    Candidate,
    CandidateEvent,
    CandidateRole,
    Generation,
    ListedTask,
    Registry,
    StoreUnavailableError,
    TaskNotFoundError,
    Traffic,
    replicas_behind,
)
from nunatak_server.access.keys import TaskList
from nunatak_server.residency.resident_set import key_of
from nunatak_server.telemetry.records import note_task

LOOK_S = 0.05
"""Time between two looks at the replicas during a wait."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
History = tuple[list[AliasEvent], list[CandidateEvent]]
"""All moves of aliases and all changes of their candidates, both oldest first."""


class Catalog:
    """Awaitable access to a registry; the methods raise the errors of the registry."""

    def __init__(self, registry: Registry, *, num_threads: int = 3) -> None:
        self._registry = registry
        # Two containers may have the same host name and process number.
        self.reader = f"{socket.gethostname()[:64]}:{os.getpid()}:{uuid4().hex[:8]}"
        """The name of this process in the registry; no two processes have the same."""
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-registry")

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        """Return the manifest of the version that a reference means now."""
        return await self._call(self._resolve, reference)

    async def traffic(self, reference: TaskReference) -> Traffic:
        """Return the version that a reference means now, with its canary and shadow."""
        return await self._call(self._traffic, reference)

    async def generation(self) -> Generation:
        """Return the generation, which changes with every change of the registry."""
        return await self._call(self._registry.generation)

    async def tasks(self) -> list[ListedTask]:
        """Return all tasks."""
        return await self._call(self._registry.tasks)

    async def task(self, name: str) -> ListedTask:
        """Return one task."""
        return await self._call(self._registry.task, name)

    async def history(self, reference: TaskReference) -> History:
        """Return the history of a task, or of the one alias that the reference names."""
        return await self._call(self._history, reference)

    async def promote(
        self, task: str, alias: str, version: int, *, expected_version: int | None, by: str
    ) -> AliasEvent:
        """Point an alias to a version, if the alias points to the expected version."""
        return await self._call(
            self._registry.promote, task, alias, version, expected_version=expected_version, by=by
        )

    async def rollback(
        self, task: str, alias: str, *, expected_version: int | None, by: str
    ) -> AliasEvent:
        """Point an alias to the version that it pointed to before."""
        return await self._call(
            self._registry.rollback, task, alias, expected_version=expected_version, by=by
        )

    async def next_rollback(
        self, task: str, alias: str, *, expected_version: int | None
    ) -> tuple[int, int]:
        """Return the present version of an alias, and the version after a rollback."""
        return await self._call(
            self._registry.next_rollback, task, alias, expected_version=expected_version
        )

    async def set_candidate(
        self, candidate: Candidate, *, expected_version: int | None, by: str
    ) -> CandidateEvent:
        """Make a version the canary or shadow, in place of the expected version."""
        return await self._call(
            self._registry.rollouts.set, candidate, expected_version=expected_version, by=by
        )

    async def end_candidate(
        self, task: str, alias: str, role: CandidateRole, *, expected_version: int | None, by: str
    ) -> CandidateEvent:
        """End the canary or shadow of an alias."""
        return await self._call(
            self._registry.rollouts.end,
            task,
            alias,
            role,
            expected_version=expected_version,
            by=by,
        )

    async def hold(
        self, versions: Collection[tuple[str, int]], *, seconds: float
    ) -> frozenset[tuple[str, int]]:
        """Protect these versions, and no others, from deletion; return the protected ones."""
        return await self._call(self._registry.hold, self.reader, versions, seconds=seconds)

    async def held(self) -> set[tuple[str, int]]:
        """Return the versions that this process protects from deletion now."""
        return await self._call(self._registry.held, self.reader)

    async def beat(self, beat: Beat) -> int:
        """Write the row of a replica, and return the number of the others."""
        return await self._call(self._registry.replicas.beat, beat)

    async def leave(self, key: str) -> None:
        """Remove the row of a replica."""
        await self._call(self._registry.replicas.leave, key)

    async def replicas(self) -> ReplicaListing:
        """Return the live replicas."""
        return await self._call(self._registry.replicas.listing)

    async def wait_for_replicas(self, seconds: float) -> None:
        """Return once every live replica has confirmed the present generation.

        Raises:
            NunatakError: `replicas_behind`, some replicas have not confirmed within `seconds`.
        """
        ends_at = time.monotonic() + seconds
        revision = (await self.generation()).number
        while behind := await self._call(self._registry.replicas.behind, revision):
            if time.monotonic() >= ends_at:
                raise replicas_behind(behind, seconds)
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """End the threads after their calls; the registry stays open."""
        self._pool.shutdown()

    def _resolve(self, reference: TaskReference) -> TaskManifest:
        manifest = self._registry.resolve(reference)
        _make_keys(manifest)
        return manifest

    def _traffic(self, reference: TaskReference) -> Traffic:
        traffic = self._registry.traffic(reference)
        candidates = (it.manifest for it in (traffic.canary, traffic.shadow) if it is not None)
        _make_keys(traffic.manifest, *candidates)
        return traffic

    def _history(self, reference: TaskReference) -> History:
        name, registry = reference.task, self._registry
        aliases = registry.task(name).aliases if reference.alias is None else (reference.alias,)
        moves = [it for alias in aliases for it in registry.history(name, alias)]
        changes = [it for alias in aliases for it in registry.rollouts.history(name, alias)]
        return sorted(moves, key=_time), sorted(changes, key=_time)

    async def _call(
        self,
        function: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args, **kwargs))


def _time(event: AliasEvent | CandidateEvent) -> datetime:
    return event.at


def _make_keys(*manifests: TaskManifest) -> None:
    """Compute the digests of manifests on this thread; manifests cache their digests."""
    for manifest in manifests:
        key_of(manifest)


Found = TypeVar("Found")


class VisibleCatalog:
    """The registry with only the tasks of one caller.

    A name from a request may be anything, so the log gets only names that a look-up has found.
    """

    def __init__(self, catalog: Catalog, tasks: TaskList) -> None:
        self._catalog = catalog
        self._tasks = tasks

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        """Return the manifest of the version that a reference means now."""
        lookup = self._catalog.resolve(reference)
        manifest = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(manifest.reference)
        return manifest

    async def traffic(self, reference: TaskReference) -> Traffic:
        """Return the version that a reference means now, with its canary and shadow."""
        lookup = self._catalog.traffic(reference)
        traffic = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(traffic.manifest.reference)
        return traffic

    async def task(self, name: str) -> ListedTask:
        """Return one task."""
        summary = await visible(name, self._catalog.task(name), tasks=self._tasks)
        note_task(summary.name)
        return summary

    async def history(self, reference: TaskReference) -> History:
        """Return the history of a task, or of the one alias that the reference names."""
        lookup = self._catalog.history(reference)
        found = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(reference.task)
        return found

    async def tasks(self) -> list[ListedTask]:
        """Return the caller's tasks."""
        return [task for task in await self._catalog.tasks() if self._tasks.allows(task.name)]


async def visible(task: str, lookup: Awaitable[Found], *, tasks: TaskList) -> Found:
    """Return the result of a look-up, if the task is on the list.

    A task that is not on the list is looked up as well, so that the time of the answer does not
    reveal whether the task exists.

    Raises:
        TaskNotFoundError: the task does not exist, or is not on the list.
    """
    if not tasks.allows(task):
        await deny(task, lookup)
    return await lookup


async def deny(task: str, lookup: Awaitable[object]) -> NoReturn:
    """Look up a task that is not on the list, and answer as if the task did not exist.

    Raises:
        TaskNotFoundError: always, unless the store cannot be read.
    """
    try:
        await lookup
    except StoreUnavailableError:
        raise
    except NunatakError:
        pass
    raise TaskNotFoundError(task)

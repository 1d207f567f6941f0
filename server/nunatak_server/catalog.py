"""The catalog: the registry as the event loop sees it, every call on a small thread pool.

The catalog as one caller sees it: tasks that are not on the caller's list do not exist.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn, ParamSpec, TypeVar
from uuid import uuid4

from nunatak_contract.errors import ContractError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import (
    AliasEvent,
    Candidate,
    CandidateEvent,
    CandidateRole,
    Generation,
    Registry,
    RegistryError,
    StoreUnavailableError,
    TaskNotFoundError,
    TaskSummary,
    Traffic,
)
from nunatak_server.access.keys import TaskList
from nunatak_server.residency.resident_set import key_of
from nunatak_server.telemetry.records import note_task

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Catalog:
    """Awaitable access to a registry; raises what the registry raises."""

    def __init__(self, registry: Registry, *, num_threads: int = 2) -> None:
        self._registry = registry
        # Containers may share both a host name and a process number.
        self._reader = f"{socket.gethostname()[:64]}:{os.getpid()}:{uuid4().hex[:8]}"
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-registry")

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        """Return the manifest of the version that a reference means now."""
        return await self._call(self._resolve, reference)

    async def traffic(self, reference: TaskReference) -> Traffic:
        """Return what runs for requests by a reference now."""
        return await self._call(self._traffic, reference)

    async def generation(self) -> Generation:
        """Return what changes with every change of the registry."""
        return await self._call(self._registry.generation)

    async def tasks(self) -> list[TaskSummary]:
        """Return all tasks."""
        return await self._call(self._registry.tasks)

    async def task(self, name: str) -> TaskSummary:
        """Return one task."""
        return await self._call(self._registry.task, name)

    async def promote(
        self, task: str, alias: str, version: int, *, expected_version: int | None
    ) -> AliasEvent:
        """Point an alias to a version, if it points to the expected one."""
        return await self._call(
            self._registry.promote, task, alias, version, expected_version=expected_version
        )

    async def rollback(self, task: str, alias: str, *, expected_version: int | None) -> AliasEvent:
        """Point an alias to the version it was promoted from."""
        return await self._call(
            self._registry.rollback, task, alias, expected_version=expected_version
        )

    async def next_rollback(
        self, task: str, alias: str, *, expected_version: int | None
    ) -> tuple[int, int]:
        """Return where an alias points, and where a rollback would let it point."""
        return await self._call(
            self._registry.next_rollback, task, alias, expected_version=expected_version
        )

    async def set_candidate(
        self, candidate: Candidate, *, expected_version: int | None
    ) -> CandidateEvent:
        """Let a version run beside an alias, if the expected one does now."""
        return await self._call(
            self._registry.rollouts.set, candidate, expected_version=expected_version
        )

    async def end_candidate(
        self, task: str, alias: str, role: CandidateRole, *, expected_version: int | None
    ) -> CandidateEvent:
        """Let no version of this role run beside an alias."""
        return await self._call(
            self._registry.rollouts.end, task, alias, role, expected_version=expected_version
        )

    async def hold(
        self, versions: Collection[tuple[str, int]], *, seconds: float
    ) -> frozenset[tuple[str, int]]:
        """Keep these versions, and no others, from being deleted for a while; return those held."""
        return await self._call(self._registry.hold, self._reader, versions, seconds=seconds)

    async def held(self) -> set[tuple[str, int]]:
        """Return the versions that this process keeps from being deleted now."""
        return await self._call(self._registry.held, self._reader)

    def close(self) -> None:
        """End the threads once their calls are done; the registry stays open."""
        self._pool.shutdown()

    def _resolve(self, reference: TaskReference) -> TaskManifest:
        manifest = self._registry.resolve(reference)
        _make_keys(manifest)
        return manifest

    def _traffic(self, reference: TaskReference) -> Traffic:
        traffic = self._registry.traffic(reference)
        beside = (it.manifest for it in (traffic.canary, traffic.shadow) if it is not None)
        _make_keys(traffic.manifest, *beside)
        return traffic

    async def _call(
        self,
        function: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args, **kwargs))


def _make_keys(*manifests: TaskManifest) -> None:
    """Digest manifests here, where the event loop does not wait for it; they keep their digest."""
    for manifest in manifests:
        key_of(manifest)


Found = TypeVar("Found")


class VisibleCatalog:
    """Answers questions about tasks as if the registry held only the caller's.

    What is found is noted for the log: it is no longer just a word of the caller's.
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
        """Return the version that a reference means now, and what runs beside it."""
        lookup = self._catalog.traffic(reference)
        traffic = await visible(reference.task, lookup, tasks=self._tasks)
        note_task(traffic.manifest.reference)
        return traffic

    async def task(self, name: str) -> TaskSummary:
        """Return one task."""
        summary = await visible(name, self._catalog.task(name), tasks=self._tasks)
        note_task(summary.name)
        return summary

    async def tasks(self) -> list[TaskSummary]:
        """Return the caller's tasks."""
        return [task for task in await self._catalog.tasks() if self._tasks.allows(task.name)]


async def visible(task: str, lookup: Awaitable[Found], *, tasks: TaskList) -> Found:
    """Return what a look-up of a task finds, if the task is on the list.

    One that is not is looked up all the same, so that the time does not tell it from one that
    is not there.

    Raises:
        TaskNotFoundError: there is no such task, or it is not on the list.
    """
    if not tasks.allows(task):
        await deny(task, lookup)
    return await lookup


async def deny(task: str, lookup: Awaitable[object]) -> NoReturn:
    """Look a task up that is not on the list, and answer as if it did not exist.

    Raises:
        TaskNotFoundError: always, unless the store cannot be read.
    """
    try:
        await lookup
    except StoreUnavailableError:
        raise
    except (ContractError, RegistryError):
        pass
    raise TaskNotFoundError(task)

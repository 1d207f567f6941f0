"""The catalog: the registry as the event loop sees it, every call on a small thread pool."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from uuid import uuid4

from nunatak_registry import (
    AliasEvent,
    Candidate,
    CandidateEvent,
    CandidateRole,
    Generation,
    Registry,
    TaskManifest,
    TaskReference,
    TaskSummary,
    Traffic,
)
from nunatak_server.residency.keys import key_of

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

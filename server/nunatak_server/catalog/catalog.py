"""The registry as the event loop sees it; only the event loop thread may use these classes."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import (
    LOOK_S,
    AliasEvent,
    CandidateEvent,
    Cards,
    ListedTask,
    PublishedPolicy,
    Registry,
    StoreUnavailableError,
    TaskNotFoundError,
    Traffic,
    replicas_behind,
)
from nunatak_server.access.keys import Caller, TaskList
from nunatak_server.residency.resident_set import key_of
from nunatak_server.scheduler.turns import FairSemaphore
from nunatak_server.telemetry.metrics import note_task

NUM_LOOKS: Final = 3
"""Number of look-ups for requests at once."""
LOOK_UP_S: Final = 10.0
"""Longest wait of a request for the registry, its turn included."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Key = TypeVar("Key")
Fact = TypeVar("Fact")
Found: TypeAlias = Mapping[Key, Fact | NunatakError]
"""Each fact by its key, or why there is none."""
History = tuple[list[AliasEvent], list[CandidateEvent]]
"""All moves of aliases and all changes of their candidates, both oldest first."""


class CallThreads:
    def __init__(self, kind: str, *, num_threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=f"nunatak-registry_{kind}")

    async def __call__(
        self,
        call: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(call, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown()


class Catalog:
    """Awaitable calls of a registry; they raise the errors of the registry.

    Each kind of call has threads of its own, so that no kind waits for another. A note (a beat or a
    hold) and a change of an operator may wait for the lock of the writers.
    """

    def __init__(self, registry: Registry, *, look_up_s: float = LOOK_UP_S) -> None:
        self.registry = registry
        self._look_up_s = look_up_s
        # Two containers may have the same host name and process number.
        self.reader = f"{socket.gethostname()[:64]}:{os.getpid()}:{uuid4().hex[:8]}"
        """The name of this process in the registry; no two processes have the same."""
        self.poll = CallThreads("poll")
        self.note = CallThreads("note")
        """Writes and reads the rows of this process: its beats and its holds."""
        self.change = CallThreads("change")
        self._look = CallThreads("look", num_threads=NUM_LOOKS)
        self._turns = FairSemaphore(num_slots=NUM_LOOKS)
        self.traffic = partial(self._find, _traffic)
        """What references mean now: versions, with their canaries and shadows."""
        self.policies = partial(self._find, _policy)
        self.cards = partial(self._find, _cards)
        self.names = partial(self._find, _visible_names)

    async def look_up(
        self,
        caller: str,
        read: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        try:
            async with asyncio.timeout(self._look_up_s), self._turns.slot(caller):
                return await self._look(read, *args, **kwargs)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the registry has not answered within {self._look_up_s:g} s; try again"
            ) from error

    async def hold(
        self, versions: Collection[tuple[str, int]], seconds: float
    ) -> frozenset[tuple[str, int]]:
        """Protect these versions, and no others, from deletion; return the protected ones."""
        return await self.note(self.registry.hold, self.reader, versions, seconds=seconds)

    async def wait_for_replicas(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        revision = (await self.poll(self.registry.generation)).number
        while behind := await self.poll(self.registry.replicas.behind, revision):
            if time.monotonic() >= ends_at:
                raise replicas_behind(behind, seconds)
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        for threads in (self.poll, self.note, self.change, self._look):
            threads.close()

    async def _find(
        self,
        read: Callable[[Registry, Key], Fact],
        keys: Collection[Key],
        caller: str | None = None,
    ) -> Found[Key, Fact]:
        if caller is None:
            return await self.poll(_each, self.registry, read, keys)
        return await self.look_up(caller, _each, self.registry, read, keys)


def _each(
    registry: Registry, read: Callable[[Registry, Key], Fact], keys: Collection[Key]
) -> Found[Key, Fact]:
    found = dict[Key, Fact | NunatakError]()
    for key in keys:
        try:
            found[key] = read(registry, key)
        except NunatakError as error:
            if isinstance(error, StoreUnavailableError):
                # Raises if this is an outage. A damaged row keeps nothing else from being found.
                registry.generation()
            found[key] = error.with_traceback(None)
    return found


def _policy(registry: Registry, name: str) -> PublishedPolicy:
    return registry.policies.get(name)


def _cards(registry: Registry, _all: str) -> Cards:
    return registry.questions.cards()


def _traffic(registry: Registry, reference: TaskReference) -> Traffic:
    traffic = registry.traffic(reference)
    for each in (traffic, traffic.canary, traffic.shadow):
        if each is not None:
            # A manifest keeps its digest, so the digest is computed on this thread.
            key_of(each.manifest)
    return traffic


def _visible_names(registry: Registry, tasks: TaskList) -> tuple[str, ...]:
    return tuple(filter(tasks.allows, registry.names()))


def _history(registry: Registry, reference: TaskReference) -> History:
    name = reference.task
    aliases = registry.task(name).aliases if reference.alias is None else (reference.alias,)
    moves = [it for alias in aliases for it in registry.history(name, alias)]
    changes = [it for alias in aliases for it in registry.rollouts.history(name, alias)]
    return sorted(moves, key=lambda it: it.at), sorted(changes, key=lambda it: it.at)


class VisibleCatalog:
    """The registry with the tasks of one caller; the log gets only names that were found."""

    def __init__(self, catalog: Catalog, caller: Caller) -> None:
        self._catalog = catalog
        self._registry = catalog.registry
        self._caller = caller

    async def resolve(self, reference: TaskReference) -> TaskManifest:
        return (await self.traffic(reference)).manifest

    async def traffic(self, reference: TaskReference) -> Traffic:
        traffic = await self._look(reference.task, _traffic, reference)
        note_task(traffic.manifest.reference)
        return traffic

    async def task(self, name: str) -> ListedTask:
        listed = await self._look(name, Registry.task, name)
        note_task(name)
        return listed

    async def history(self, reference: TaskReference) -> History:
        found = await self._look(reference.task, _history, reference)
        note_task(reference.task)
        return found

    async def _look(self, task: str, read: Callable[[Registry, Key], Fact], key: Key) -> Fact:
        # No look-up for an unlisted task, so no time reveals whether it exists.
        if not self._caller.tasks.allows(task):
            raise TaskNotFoundError(task)
        return await self._catalog.look_up(self._caller.name, read, self._registry, key)

    async def tasks(self) -> list[ListedTask]:
        listed = await self._catalog.look_up(self._caller.name, self._registry.tasks)
        return [it for it in listed if self._caller.tasks.allows(it.name)]

    async def policies(self) -> list[PublishedPolicy]:
        newest = await self._catalog.look_up(self._caller.name, self._registry.policies.newest)
        return [it for it in newest if may_ask(it, self._caller.tasks)]


def may_ask(published: PublishedPolicy, tasks: TaskList) -> bool:
    return all(map(tasks.allows, published.document.tasks))

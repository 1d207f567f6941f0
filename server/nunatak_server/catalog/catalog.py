"""The registry as the event loop sees it, and what a process remembers until the registry changes.

Only the event loop thread may use these classes.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, Generic, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

from cachetools import LRUCache

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
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.scheduler.turns import FairSemaphore, within
from nunatak_server.telemetry.metrics import notes

NUM_LOOKS: Final = 3
"""Number of look-ups for requests at once."""
MAX_READS: Final = 3
"""Most reads of facts that belong to one moment."""
LOOK_UP_S: Final = 10.0
"""Longest wait of a request for the registry, its turn included."""
UNKNOWN: Final = "all, as far as known, because the registry does not answer"

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Key = TypeVar("Key")
Fact = TypeVar("Fact")
Found: TypeAlias = Mapping[Key, Fact | NunatakError]
"""Each fact by its key, or why there is none."""
LookUp: TypeAlias = Callable[[Collection[Key], str | None], Awaitable[Found[Key, Fact]]]
"""Looks up facts for a caller, or with None for this process itself."""
History = tuple[list[AliasEvent], list[CandidateEvent]]
"""All moves of aliases and all changes of their candidates, both oldest first."""


THREADS: Final = "nunatak-registry"
"""Begins the names of the threads that wait for the registry."""


class CallThreads:
    def __init__(self, kind: str, *, num_threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=f"{THREADS}_{kind}")

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
        self.traffic: LookUp[TaskReference, Traffic] = partial(self._find, _traffic)
        """What references mean now: versions, with their canaries and shadows."""
        self.policies: LookUp[str, PublishedPolicy] = partial(self._find, _policy)
        self.cards: LookUp[str, Cards] = partial(self._find, _cards)
        self.names: LookUp[str, tuple[str, ...]] = partial(self._find, _names)

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
        """Wait until each replica follows the change before; a registry out of reach is waited for.

        Raises:
            NunatakError: `replicas_behind`.
        """
        revision, behind = None, [UNKNOWN]

        async def wait() -> None:
            nonlocal revision, behind
            while True:
                with suppress(StoreUnavailableError):
                    revision = revision or (await self.poll(self.registry.generation)).number
                    behind = await self.poll(self.registry.replicas.behind, revision)
                    if not behind:
                        return
                await asyncio.sleep(LOOK_S)

        await within(seconds, wait(), late=lambda: replicas_behind(behind, seconds))

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
    """Read all keys at one moment, unless the registry keeps changing."""
    found, seen = dict[Key, Fact | NunatakError](), None
    for _ in range(MAX_READS):
        before, seen = seen, registry.generation() if len(keys) > 1 else None
        if found and seen == before:
            break
        for key in keys:
            try:
                found[key] = read(registry, key)
            except NunatakError as error:
                if isinstance(error, StoreUnavailableError):
                    # Raises in an outage. A damaged row keeps nothing else from being found.
                    registry.generation()
                found[key] = error.with_traceback(None)
    return found


def _policy(registry: Registry, name: str) -> PublishedPolicy:
    return registry.policies.get(name)


def _cards(registry: Registry, _all: str) -> Cards:
    return registry.questions.cards()


def _names(registry: Registry, _all: str) -> tuple[str, ...]:
    # The order of a database may be another one.
    return tuple(sorted(registry.names()))


def _traffic(registry: Registry, reference: TaskReference) -> Traffic:
    traffic = registry.traffic(reference)
    for each in (traffic, traffic.canary, traffic.shadow):
        if each is not None:
            # A manifest keeps its digest, so the digest is computed on this thread.
            key_of(each.manifest)
    return traffic


def _history(registry: Registry, reference: TaskReference) -> History:
    name = reference.task
    aliases = registry.aliases(name) if reference.alias is None else (reference.alias,)
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
        notes().task = traffic.manifest.reference
        return traffic

    async def task(self, name: str) -> ListedTask:
        listed = await self._look(name, Registry.task, name)
        notes().task = name
        return listed

    async def history(self, reference: TaskReference) -> History:
        found = await self._look(reference.task, _history, reference)
        notes().task = reference.task
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


MAX_KNOWN: Final = 10_000
"""Most facts of one kind: far above real use, but a bound for a hostile stream of names."""
MAX_UNASKED: Final = 8
"""Changes of the registry after which a fact is forgotten if no request has asked for it. One
promotion is two changes for the process that makes it, and a quiet task must outlast several."""

ALL: Final = ""
"""The key of the one fact of its kind."""


class _Facts(Generic[Key, Fact]):
    """Facts of one kind. Each is looked up once until the registry changes, and so is its absence.

    Requests of one caller for one fact share a look-up. Requests of two callers do not, because
    the look-up waits for the caller's turn.
    """

    def __init__(
        self,
        look_up: LookUp[Key, Fact],
        *,
        max_known: int,
        note: Callable[[Key, Fact, int], None] = lambda _key, _fact, _epoch: None,
    ) -> None:
        """`note` gets each fact that is found, with the number of changes before its look-up."""
        self._look_up = look_up
        self._note = note
        self._max_known = max_known
        self._known: dict[Key, Fact] = {}
        self._aside: dict[Key, Fact] = {}
        """Facts that no request has asked for since the last change, or since `_known` was full."""
        self._unasked: dict[Key, int] = {}
        """For facts in `_aside`, the changes since a request has asked for them."""
        self._refused: LRUCache[Key, NunatakError] = LRUCache(max_known)
        self._asked: dict[tuple[str, Key], asyncio.Future[Found[Key, Fact]]] = {}
        """The look-ups under way, by caller and key."""
        self._epoch = 0

    def known(self, key: Key) -> Fact | None:
        fact = self._known.get(key)
        if fact is None and key in self._aside:
            fact = self._aside.pop(key)
            self._remember(key, fact)
        return fact

    async def get(self, key: Key, caller: str) -> Fact:
        found = (await self.find((key,), caller))[key]
        if isinstance(found, NunatakError):
            # Each raise extends the traceback, so the traceback would grow with every request.
            raise found.with_traceback(None)
        return found

    async def find(self, keys: Collection[Key], caller: str) -> Found[Key, Fact]:
        known = ((key, self.known(key)) for key in keys)
        remembered = ((key, self._refused.get(key) if it is None else it) for key, it in known)
        found = {key: it for key, it in remembered if it is not None}
        while missing := [key for key in keys if key not in found]:
            under_way = {it for key in missing if (it := self._asked.get((caller, key)))}
            if not under_way:
                found |= await self._ask(missing, caller)
                continue
            await asyncio.wait(under_way)
            for asked in under_way:
                if not asked.cancelled():
                    found |= asked.result()
        return found

    async def again(self) -> Callable[[], None]:
        """Look up every fact again that was asked for since the last changes, for `replace`."""
        quiet = {key: self._unasked.get(key, 0) + 1 for key in self._aside}
        kept = dict.fromkeys(self._known, 0) | {k: n for k, n in quiet.items() if n < MAX_UNASKED}
        unasked = dict(islice(kept.items(), self._max_known))
        found: Found[Key, Fact] = {}
        if unasked:
            found = await self._look_up(tuple(unasked), None)
        facts = {key: it for key, it in found.items() if not isinstance(it, NunatakError)}
        return partial(self.replace, facts, unasked)

    def replace(self, facts: dict[Key, Fact], unasked: dict[Key, int]) -> None:
        self._epoch += 1
        self._known.clear()
        self._refused.clear()
        self._asked.clear()
        self._aside, self._unasked = facts, unasked
        for key, fact in facts.items():
            self._note(key, fact, self._epoch)

    async def _ask(self, keys: Collection[Key], caller: str) -> Found[Key, Fact]:
        epoch, asked = self._epoch, asyncio.get_running_loop().create_future()
        self._asked.update(dict.fromkeys(((caller, key) for key in keys), asked))
        try:
            found = await self._look_up(keys, caller)
        except StoreUnavailableError as error:
            asked.set_exception(error)
            # Marks the error as read: asyncio warns about an error that no request reads.
            asked.exception()
            raise
        else:
            asked.set_result(found)
            for key, it in found.items():
                if not isinstance(it, NunatakError):
                    self._note(key, it, epoch)
            # A result from before a change of the registry must not be kept after the change.
            if epoch == self._epoch:
                self._keep(found)
            return found
        finally:
            asked.cancel()
            for key in keys:
                if self._asked.get((caller, key)) is asked:
                    del self._asked[caller, key]

    def _keep(self, found: Found[Key, Fact]) -> None:
        for key, it in found.items():
            if not isinstance(it, NunatakError):
                self._remember(key, it)
            elif not isinstance(it, StoreUnavailableError):
                self._refused[key] = it

    def _remember(self, key: Key, fact: Fact) -> None:
        if len(self._known) >= self._max_known:
            # What is asked for comes back from aside, so a stream of new names displaces no fact
            # in use. A least recently used cache would cost each request more.
            self._aside, self._known = self._known, {}
        self._known[key] = fact


class KnownFacts:
    """What this process knows of its registry: what references mean, policies, and names of tasks.

    After a change of the registry, `renew` looks up what is in use. Until all of it was looked up,
    requests get what was known before, so a registry that cannot be read delays no request. The
    process confirms the change only then.
    """

    def __init__(
        self, catalog: Catalog, *, on_move: Callable[[str], None], max_known: int = MAX_KNOWN
    ) -> None:
        """`on_move` gets the task of a reference whose version has changed."""
        self._traffic = _Facts(catalog.traffic, max_known=max_known, note=self._note_meaning)
        self._policies = _Facts(catalog.policies, max_known=max_known)
        self._cards = _Facts(catalog.cards, max_known=max_known)
        self._names = _Facts(catalog.names, max_known=max_known)
        self._all = (self._traffic, self._policies, self._cards, self._names)
        self.known, self.traffic = self._traffic.known, self._traffic.find
        self._on_move = on_move
        self._last_meant: LRUCache[TaskReference, tuple[int, VersionKey]] = LRUCache(max_known)
        self._renewing = asyncio.Lock()
        self._num_lapses = 0

    async def policy(self, name: str, caller: str, *, tasks: TaskList) -> PublishedPolicy:
        found = await self._policies.get(name, caller)
        if not may_ask(found, tasks):
            raise NunatakError("policy_not_found", policy=name)
        return found

    async def cards(self, caller: str) -> Cards:
        return await self._cards.get(ALL, caller)

    async def names(self, caller: str, *, tasks: TaskList) -> frozenset[str]:
        return tasks.among(await self._names.get(ALL, caller))

    async def renew(self) -> None:
        """Look up again what is in use, because the registry has changed, and forget the rest."""
        async with self._renewing:
            lapses = self._num_lapses
            renewals = [await facts.again() for facts in self._all]
            # A fact from before a lapse may be older than a change that this process has missed.
            if lapses != self._num_lapses:
                renewals = [partial(facts.replace, {}, {}) for facts in self._all]
            for renew in renewals:
                renew()

    def invalidate(self) -> None:
        """Forget everything, because what was read before may not be answered any more."""
        self._num_lapses += 1
        for facts in self._all:
            facts.replace({}, {})

    def _note_meaning(self, reference: TaskReference, traffic: Traffic, epoch: int) -> None:
        """Report a move; a look-up that began before the last one says nothing new."""
        version = key_of(traffic.manifest)
        last_epoch, last = self._last_meant.setdefault(reference, (epoch, version))
        if epoch >= last_epoch:
            self._last_meant[reference] = epoch, version
            if last != version:
                self._on_move(reference.task)

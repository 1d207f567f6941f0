"""`KnownFacts`: what a process remembers of its registry until the registry changes.

Only the event loop thread may use the classes here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeAlias, TypeVar

from cachetools import LRUCache

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_registry import PublishedPolicy, StoreUnavailableError, Traffic
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog import may_ask
from nunatak_server.residency.resident_set import VersionKey, key_of

MAX_KNOWN: Final = 10_000
"""Most facts of one kind: far above real use, but a bound for a hostile stream of names."""

Key = TypeVar("Key")
Fact = TypeVar("Fact")


LookUp: TypeAlias = Callable[[Key, str | None], Awaitable[Fact]]
"""Looks up a fact for a caller, or with None for this process itself."""


class _Facts(Generic[Key, Fact]):
    """Facts of one kind. Each is looked up once until the registry changes, and so is its refusal.

    Requests of one caller for one fact share a look-up. Requests of two callers do not, because
    the look-up waits for the caller's turn.
    """

    def __init__(
        self,
        look_up: LookUp[Key, Fact],
        *,
        note: Callable[[Key, Fact], None] = lambda _key, _fact: None,
    ) -> None:
        """`note` gets each fact that is remembered."""
        self._look_up = look_up
        self._note = note
        self._known: LRUCache[Key, Fact] = LRUCache(MAX_KNOWN)
        self._renewed: dict[Key, Fact] = {}
        """Facts that were looked up again, and that no request has asked for since."""
        self._refused: LRUCache[Key, NunatakError] = LRUCache(MAX_KNOWN)
        self._asked: dict[tuple[str, Key], asyncio.Future[Fact]] = {}
        self._epoch = 0

    def known(self, key: Key) -> Fact | None:
        """Return a remembered fact, or None; never waits."""
        fact = self._known.get(key)
        if fact is None and self._renewed:
            fact = self._renewed.pop(key, None)
            if fact is not None:
                self._known[key] = fact
        return fact

    async def get(self, key: Key, caller: str) -> Fact:
        """Return a fact, looked up unless it is remembered."""
        while True:
            known, refusal = self.known(key), self._refused.get(key)
            if known is not None:
                return known
            if refusal is not None:
                # Each raise extends the traceback, so the traceback would grow with every request.
                raise refusal.with_traceback(None)
            asked = self._asked.get((caller, key))
            if asked is None:
                return await self._ask(key, caller)
            await asyncio.wait([asked])
            if not asked.cancelled():
                return asked.result()

    async def again(self) -> dict[Key, Fact]:
        """Look up every fact again that was asked for since the last change.

        Raises:
            StoreUnavailableError: the store cannot be read.
        """
        found = dict[Key, Fact]()
        for key in tuple(self._known):
            try:
                found[key] = await self._look_up(key, None)
            except StoreUnavailableError:
                raise
            except NunatakError:
                continue
        return found

    def replace(self, facts: dict[Key, Fact]) -> None:
        """Remember these facts and no others; what was asked before is not remembered."""
        self._epoch += 1
        self._known.clear()
        self._refused.clear()
        self._asked.clear()
        self._renewed = facts
        for key, fact in facts.items():
            self._note(key, fact)

    async def _ask(self, key: Key, caller: str) -> Fact:
        epoch, place = self._epoch, (caller, key)
        asked = self._asked[place] = asyncio.get_running_loop().create_future()
        try:
            fact = await self._look_up(key, caller)
        except NunatakError as error:
            asked.set_exception(error)
            # Marks the error as read: asyncio warns about an error that no request reads.
            asked.exception()
            if epoch == self._epoch and not isinstance(error, StoreUnavailableError):
                self._refused[key] = error
            raise
        else:
            asked.set_result(fact)
            # A result from before a change of the registry must not be kept after the change.
            if epoch == self._epoch:
                self._known[key] = fact
                self._note(key, fact)
            return fact
        finally:
            asked.cancel()
            if self._asked.get(place) is asked:
                del self._asked[place]


class KnownFacts:
    """What this process knows of its registry: what references mean, policies, and names of tasks.

    After a change of the registry, `renew` looks up what is in use. Until all of it was looked up,
    requests get what was known before, so a registry that cannot be read delays no request. The
    process confirms the change only then.
    """

    def __init__(
        self,
        *,
        traffic: LookUp[TaskReference, Traffic],
        policy: LookUp[str, PublishedPolicy],
        names: LookUp[TaskList, tuple[str, ...]],
        on_move: Callable[[str], None],
    ) -> None:
        """`on_move` gets the task of a reference whose version has changed."""
        self._traffic = _Facts(traffic, note=self._note_meaning)
        self._policies = _Facts(policy)
        self._names = _Facts(names)
        self._on_move = on_move
        self._last_meant: LRUCache[TaskReference, VersionKey] = LRUCache(MAX_KNOWN)
        self._renewing = asyncio.Lock()

    def known(self, reference: TaskReference) -> Traffic | None:
        """Return the remembered meaning of a reference, or None; never waits."""
        return self._traffic.known(reference)

    async def traffic(self, reference: TaskReference, caller: str) -> Traffic:
        """Return the meaning of a reference.

        Raises:
            NunatakError: the task, version or alias does not exist, or the store cannot be read.
        """
        return await self._traffic.get(reference, caller)

    async def policy(self, name: str, caller: str, *, tasks: TaskList) -> PublishedPolicy:
        """Return the newest version of a policy, if the caller may ask all of its tasks.

        Raises:
            NunatakError: `policy_not_found`, there is no such policy for this caller.
            NunatakError: `invalid_policy`, the stored document is damaged.
            StoreUnavailableError: the policy is not known yet, and the store cannot be read.
        """
        found = await self._policies.get(name, caller)
        if not may_ask(found, tasks):
            raise NunatakError("policy_not_found", policy=name)
        return found

    async def names(self, tasks: TaskList, caller: str) -> tuple[str, ...]:
        """Return the names of the tasks that are on a list."""
        return await self._names.get(tasks, caller)

    async def renew(self) -> None:
        """Look up again what is in use, because the registry has changed, and forget the rest.

        Raises:
            StoreUnavailableError: the store cannot be read, and nothing was forgotten.
        """
        async with self._renewing:
            traffic = await self._traffic.again()
            policies, names = await self._policies.again(), await self._names.again()
            self._traffic.replace(traffic)
            self._policies.replace(policies)
            self._names.replace(names)

    def invalidate(self) -> None:
        """Forget everything, because what was read before may not be answered any more."""
        for facts in (self._traffic, self._policies, self._names):
            facts.replace({})

    def _note_meaning(self, reference: TaskReference, traffic: Traffic) -> None:
        version = key_of(traffic.manifest)
        if self._last_meant.setdefault(reference, version) != version:
            self._last_meant[reference] = version
            self._on_move(reference.task)

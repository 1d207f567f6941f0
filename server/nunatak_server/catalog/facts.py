"""What a process remembers of its registry until the registry changes; for the event loop alone."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

from cachetools import LRUCache

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_registry import Cards, PublishedPolicy, StoreUnavailableError, Traffic
from nunatak_server.access.keys import TaskList
from nunatak_server.catalog.catalog import Found, may_ask
from nunatak_server.residency.resident_set import VersionKey, key_of

Key = TypeVar("Key")
Fact = TypeVar("Fact")
MAX_KNOWN: Final = 10_000
"""Most facts of one kind: far above real use, but a bound for a hostile stream of names."""

ALL_CARDS: Final = ""

LookUp: TypeAlias = Callable[[Collection[Key], str | None], Awaitable[Found[Key, Fact]]]
"""Looks up facts for a caller, or with None for this process itself."""


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
        """Look up every fact again that was asked for since the last change, for `replace`."""
        found: Found[Key, Fact] = {}
        if self._known:
            found = await self._look_up(tuple(self._known), None)
        facts = {key: it for key, it in found.items() if not isinstance(it, NunatakError)}
        return partial(self.replace, facts)

    def replace(self, facts: dict[Key, Fact]) -> None:
        self._epoch += 1
        self._known.clear()
        self._refused.clear()
        self._asked.clear()
        self._aside = facts
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
        self,
        *,
        traffic: LookUp[TaskReference, Traffic],
        policies: LookUp[str, PublishedPolicy],
        cards: LookUp[str, Cards],
        names: LookUp[TaskList, tuple[str, ...]],
        on_move: Callable[[str], None],
        max_known: int = MAX_KNOWN,
    ) -> None:
        """`on_move` gets the task of a reference whose version has changed."""
        self._traffic = _Facts(traffic, max_known=max_known, note=self._note_meaning)
        self._policies = _Facts(policies, max_known=max_known)
        self._cards = _Facts(cards, max_known=max_known)
        self._names = _Facts(names, max_known=max_known)
        self._all = (self._traffic, self._policies, self._cards, self._names)
        self.known, self.traffic = self._traffic.known, self._traffic.find
        self.names = self._names.get
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
        return await self._cards.get(ALL_CARDS, caller)

    async def renew(self) -> None:
        """Look up again what is in use, because the registry has changed, and forget the rest."""
        async with self._renewing:
            lapses = self._num_lapses
            renewals = [await facts.again() for facts in self._all]
            # A fact from before a lapse may be older than a change that this process has missed.
            if lapses != self._num_lapses:
                renewals = [partial(facts.replace, {}) for facts in self._all]
            for renew in renewals:
                renew()

    def invalidate(self) -> None:
        """Forget everything, because what was read before may not be answered any more."""
        self._num_lapses += 1
        for facts in self._all:
            facts.replace({})

    def _note_meaning(self, reference: TaskReference, traffic: Traffic, epoch: int) -> None:
        """Report a move; a look-up that began before the last one says nothing new."""
        version = key_of(traffic.manifest)
        last_epoch, last = self._last_meant.setdefault(reference, (epoch, version))
        if epoch >= last_epoch:
            self._last_meant[reference] = epoch, version
            if last != version:
                self._on_move(reference.task)

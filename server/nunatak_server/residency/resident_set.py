"""`ResidentSet`: the task versions in memory under a budget of bytes; no threads, no waiting.

Each byte is of one of four kinds: leased (a request uses the version), pinned (an operator wants
the version to stay), claimed (a running load needs the bytes), or free to evict. A load may start
when leased, pinned and claimed bytes leave it space. Evictions for the load happen only after it
has succeeded. The version with the least worth goes first: recent uses x seconds to load / bytes.

The set can exceed the budget when a load ends while versions that were free at its start are leased
again. The end of these leases brings the set back under the budget.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.memory import DeviceTierMemory
from nunatak_server.errors import TaskDoesNotFitError
from nunatak_versions import LoadedTask


class VersionKey(NamedTuple):
    """A version and its content. A restored registry may use a version number a second time."""

    task: str
    version: int
    content: str


def key_of(manifest: TaskManifest) -> VersionKey:
    return VersionKey(manifest.task, manifest.version, manifest.content)


USES_PER_HALF_LIFE = 8
"""Average number of uses of each version until a count has halved. Decision 7 gives the reason."""
MIN_HALF_LIFE = 256
MAX_VERSIONS = 4096


class UseHistory:
    """Decaying counts of uses, for versions in memory or not.

    A count halves after a number of uses of all versions together. So there is no clock, and the
    counts follow changes of the traffic. An evicted version that returns has the rank of its past
    uses. The number of counts is bounded; the least used versions are forgotten first.
    """

    def __init__(self, *, max_versions: int = MAX_VERSIONS) -> None:
        self._max_versions = max_versions
        self._now = 0
        self._counts: dict[VersionKey, tuple[float, int]] = {}

    def record(self, key: VersionKey) -> None:
        self._now += 1
        self._counts[key] = (self.count(key) + 1, self._now)
        if len(self._counts) > self._max_versions:
            kept = sorted(self._counts, key=self.count, reverse=True)[: self._max_versions // 2]
            self._counts = {it: self._counts[it] for it in kept}

    def count(self, key: VersionKey) -> float:
        count, at = self._counts.get(key, (0.0, self._now))
        half_life = max(MIN_HALF_LIFE, USES_PER_HALF_LIFE * len(self._counts))
        return count * 0.5 ** ((self._now - at) / half_life)


MIN_LOAD_S = 0.001
"""Least seconds of a load. A coarse clock must not make a version worthless."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    task: LoadedTask
    load_s: float
    num_leases: int = 0
    is_pinned: bool = False
    goes_when_free: bool = False
    """Whether the end of the last lease evicts the version."""

    @property
    def may_go(self) -> bool:
        return not self.num_leases and not self.is_pinned


class ResidentSet:
    def __init__(self, *, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._history = UseHistory()
        self._entries: dict[VersionKey, _Entry] = {}
        self._claims: dict[VersionKey, int] = {}
        self._resident_bytes = 0
        self._task_bytes = Counter[str]()

    def stats(self) -> DeviceTierMemory:
        pinned = [entry.task for entry in self._entries.values() if entry.is_pinned]
        return DeviceTierMemory(
            budget_bytes=self._budget,
            bytes=self._resident_bytes,
            pinned_bytes=sum(task.num_bytes for task in pinned),
            loading_bytes=sum(self._claims.values()),
            versions=len(self._entries),
        )

    def task_bytes(self) -> Mapping[str, int]:
        return dict(self._task_bytes)

    def resident(self) -> tuple[LoadedTask, ...]:
        return tuple(self._entries[key].task for key in sorted(self._entries))

    def get(self, key: VersionKey) -> LoadedTask | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.task

    def is_pinned(self, key: VersionKey) -> bool:
        return key in self._entries and self._entries[key].is_pinned

    def record_use(self, key: VersionKey) -> None:
        self._history.record(key)

    def lease(self, key: VersionKey) -> LoadedTask | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.num_leases += 1
        return entry.task

    def release(self, key: VersionKey) -> tuple[VersionKey, ...]:
        entry = self._entries[key]
        entry.num_leases -= 1
        return (*self._drop_unwanted(key), *self._shrink())

    def discard(self, key: VersionKey) -> tuple[VersionKey, ...]:
        """Evict a version, even if pinned, once its leases end; return the key if evicted now."""
        entry = self._entries.get(key)
        if entry is None:
            return ()
        entry.is_pinned, entry.goes_when_free = False, True
        return self._drop_unwanted(key)

    def _drop_unwanted(self, key: VersionKey) -> tuple[VersionKey, ...]:
        entry = self._entries[key]
        if not entry.goes_when_free or entry.num_leases:
            return ()
        self._drop(key)
        return (key,)

    def check_fits(self, key: VersionKey, num_bytes: int) -> None:
        pinned = sum(
            entry.task.num_bytes
            for other, entry in self._entries.items()
            if entry.is_pinned and other != key
        )
        if num_bytes + pinned > self._budget:
            raise TaskDoesNotFitError(
                key.task,
                key.version,
                needed_bytes=num_bytes,
                budget_bytes=self._budget,
                pinned_bytes=pinned,
            )

    def claim(self, key: VersionKey, num_bytes: int) -> bool:
        """Claim bytes for a load until `add` or `abandon`; return False without space for it."""
        fixed = sum(entry.task.num_bytes for entry in self._entries.values() if not entry.may_go)
        if fixed + sum(self._claims.values()) + num_bytes > self._budget:
            return False
        self._claims[key] = num_bytes
        return True

    def abandon(self, key: VersionKey) -> None:
        del self._claims[key]

    def add(self, task: LoadedTask, *, load_s: float) -> tuple[VersionKey, ...]:
        """Add a loaded version with one lease for the waiting; return those evicted for it."""
        key = key_of(task.manifest)
        del self._claims[key]
        self._entries[key] = _Entry(task=task, load_s=load_s, num_leases=1)
        self._resident_bytes += task.num_bytes
        self._task_bytes[task.manifest.task] += task.num_bytes
        return self._shrink()

    def pin(self, key: VersionKey) -> None:
        entry = self._entries[key]
        # Whoever pins a version that was to go has found its name again.
        entry.is_pinned, entry.goes_when_free = True, False

    def unpin(
        self, task: str, version: int | None
    ) -> tuple[tuple[int, ...], tuple[VersionKey, ...]]:
        keys = [key for key in self._matching(task, version) if self._entries[key].is_pinned]
        for key in keys:
            self._entries[key].is_pinned = False
        return versions_of(keys), self._shrink()

    def evict(self, task: str, version: int | None) -> tuple[VersionKey, ...]:
        keys = self._matching(task, version)
        for key in keys:
            entry = self._entries[key]
            if entry.is_pinned:
                raise NunatakError("task_pinned", task=key.task, version=key.version)
            if entry.num_leases:
                raise NunatakError(
                    "task_in_use", task=key.task, version=key.version, num_leases=entry.num_leases
                )
        for key in keys:
            self._drop(key)
        return tuple(keys)

    def evict_free(self) -> tuple[VersionKey, ...]:
        keys = tuple(key for key, entry in self._entries.items() if entry.may_go)
        for key in keys:
            self._drop(key)
        return keys

    def _matching(self, task: str, version: int | None) -> list[VersionKey]:
        return [key for key in self._entries if key.task == task and version in (None, key.version)]

    def _shrink(self) -> tuple[VersionKey, ...]:
        if self._resident_bytes <= self._budget:
            return ()
        free = sorted((key for key, it in self._entries.items() if it.may_go), key=self._worth)
        dropped: list[VersionKey] = []
        for key in free:
            if self._resident_bytes <= self._budget:
                break
            self._drop(key)
            dropped.append(key)
        return tuple(dropped)

    def _worth(self, key: VersionKey) -> float:
        entry = self._entries[key]
        load_s = max(MIN_LOAD_S, entry.load_s)
        return self._history.count(key) * load_s / max(1, entry.task.num_bytes)

    def _drop(self, key: VersionKey) -> None:
        task = self._entries.pop(key).task
        name = task.manifest.task
        self._resident_bytes -= task.num_bytes
        self._task_bytes[name] -= task.num_bytes
        if not self._task_bytes[name]:
            del self._task_bytes[name]


def versions_of(keys: Iterable[VersionKey]) -> tuple[int, ...]:
    return tuple(sorted({key.version for key in keys}))

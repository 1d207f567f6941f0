"""`ResidentSet`: the task versions in memory under a budget of bytes; budgets, and freed memory.

Each byte is of one of four kinds: leased (a request uses the version), pinned (an operator wants
the version to stay), claimed (a running load needs the bytes), or free to evict. A load may start
when leased, pinned and claimed bytes leave it space. Evictions for the load happen only after it
has succeeded. The version with the least worth goes first: recent uses x seconds to load / bytes.

The set can exceed the budget when a load ends while versions that were free at its start are leased
again. The end of these leases brings the set back under the budget.

The allocator of glibc keeps freed memory: after many evictions about as much as the versions took,
and after batches of many sizes several times their activations. It returns memory on request in
about 20 ms, so the request runs off the event loop, and not after every load or answer. Other
allocators get no request.

The host tier holds stored bytes that were checked against their digest, so a load needs no store.
If the device is the CPU, the version itself is the better use of the memory.
"""

import asyncio
import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from cachetools import LRUCache, cached

from nunatak_contract.enums import TensorDtype
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.memory import DeviceTierMemory, HostTierMemory
from nunatak_server.errors import TaskDoesNotFitError
from nunatak_versions import PARAMETERS_ROLE, LoadedTask


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
    def __init__(
        self, *, budget_bytes: int, on_evict: Callable[[VersionKey], None] = lambda _: None
    ) -> None:
        self._budget = budget_bytes
        self._on_evict = on_evict
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

    def release(self, key: VersionKey) -> None:
        self._entries[key].num_leases -= 1
        self._drop_unwanted(key)
        self._shrink()

    def discard(self, key: VersionKey) -> None:
        """Evict a version, even if pinned, once its leases end."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_pinned, entry.goes_when_free = False, True
            self._drop_unwanted(key)

    def _drop_unwanted(self, key: VersionKey) -> None:
        entry = self._entries[key]
        if entry.goes_when_free and not entry.num_leases:
            self._drop(key)

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

    def add(self, task: LoadedTask, *, load_s: float) -> None:
        """Add a loaded version with one lease for the waiting."""
        key = key_of(task.manifest)
        del self._claims[key]
        self._entries[key] = _Entry(task=task, load_s=load_s, num_leases=1)
        self._resident_bytes += task.num_bytes
        self._task_bytes[task.manifest.task] += task.num_bytes
        self._shrink()

    def pin(self, key: VersionKey) -> None:
        entry = self._entries[key]
        # Whoever pins a version that was to go has found its name again.
        entry.is_pinned, entry.goes_when_free = True, False

    def unpin(self, task: str, version: int | None) -> tuple[int, ...]:
        keys = [key for key in self._matching(task, version) if self._entries[key].is_pinned]
        for key in keys:
            self._entries[key].is_pinned = False
        self._shrink()
        return _versions_of(keys)

    def evict(self, task: str, version: int | None) -> tuple[int, ...]:
        """Evict one version of a task, or all, unless one is in use; return the evicted ones."""
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
        return _versions_of(keys)

    def evict_free(self) -> int:
        keys = [key for key, entry in self._entries.items() if entry.may_go]
        for key in keys:
            self._drop(key)
        return len(keys)

    def _matching(self, task: str, version: int | None) -> list[VersionKey]:
        return [key for key in self._entries if key.task == task and version in (None, key.version)]

    def _shrink(self) -> None:
        if self._resident_bytes <= self._budget:
            return
        free = (key for key, it in self._entries.items() if it.may_go)
        for key in sorted(free, key=self._worth):
            if self._resident_bytes > self._budget:
                self._drop(key)

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
        self._on_evict(key)


def _versions_of(keys: Iterable[VersionKey]) -> tuple[int, ...]:
    return tuple(sorted({key.version for key in keys}))


def return_memory() -> None:
    """Release freed memory to the operating system, in milliseconds; nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


INTERVAL_S, CHECKS = 1.0, 10
"""Time from work to a check of the memory, and the checks up to a return whatever has grown."""
MOST_GROWTH_BYTES = 2**26
"""Growth since the last return that a check lets be. Its return takes about 10 ms of a core."""


class MemoryReturn:
    """Returns freed memory a while after loads and batches, and earlier if the process grows.

    Small objects that live on lie between the freed tensors of a batch. So the C library reuses
    only a part of that memory, and a busy process would grow to several times what it needs.
    """

    def __init__(self, give_back: Callable[[], None], measure: Callable[[], int]) -> None:
        self._give_back = give_back
        self._measure = measure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._kept_bytes = 0

    async def start(self) -> None:
        """Return what the start has freed; batches count from now on."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._return)

    def after_batch(self, _report: object) -> None:
        """Any thread may call this."""
        if self._loop is not None and self._timer is None:
            self._loop.call_soon_threadsafe(self.soon)

    def soon(self) -> None:
        if self._timer is None:
            self._wait(CHECKS)

    def _wait(self, checks: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._check, checks - 1)

    def _check(self, left: int) -> None:
        self._timer = None
        if left:
            self._wait(left)
        if not left or self._measure() > self._kept_bytes + MOST_GROWTH_BYTES:
            asyncio.get_running_loop().run_in_executor(None, self._return)

    def _return(self) -> None:
        self._give_back()
        self._kept_bytes = self._measure()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


TRUNK_SHARE, LEAST_TRUNK_BYTES = 0.25, 2**24
# The rest is for activations, the trunk cache, and loads. A load holds a version up to three times:
# as stored bytes, as tensors, and in the layout for serving.
DEFAULT_SHARE = 0.5

STORED_ITEMSIZE = {TensorDtype.FLOAT32: 4, TensorDtype.FLOAT16: 2, TensorDtype.BFLOAT16: 2}
CGROUP = Path("/sys/fs/cgroup")


def size_in_memory(
    manifest: TaskManifest, *, dtype: torch.dtype, quantized: Collection[str] = ()
) -> int:
    """Return the bytes of a version in `dtype` before it is read, too high by the blob's header.

    The blob's size decides: a load checks it, and nothing checks the parameter counts. On the
    `quantized` backbones, by digest, own layers in int8 stay as they are stored.
    """
    blob = manifest.blob(PARAMETERS_ROLE)
    stored_bytes = 0 if blob is None else blob.size_bytes
    in_dtype = stored_bytes * dtype.itemsize // STORED_ITEMSIZE[manifest.dtype]
    return max(stored_bytes, in_dtype) if manifest.backbone.digest in quantized else in_dtype


def trunk_cache_budget(chosen_bytes: int | None, backbone_bytes: int, *, processes: int) -> int:
    """Return the operator's budget, or the process's part of a share of the backbones."""
    if chosen_bytes is not None:
        return chosen_bytes
    return max(LEAST_TRUNK_BYTES, int(TRUNK_SHARE * backbone_bytes)) // processes


def task_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    return chosen_bytes or int(DEFAULT_SHARE * free_memory(device))


def host_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the operator's budget of the host tier, or half of the free memory; 0 on a CPU."""
    if chosen_bytes is not None:
        return chosen_bytes
    return 0 if device.type == "cpu" else int(DEFAULT_SHARE * free_memory(torch.device("cpu")))


def free_memory(device: torch.device) -> int:
    """Return the free bytes on a device; on a CPU, within the limit of the process."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    available = psutil.virtual_memory().available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return available if limit is None else max(1, min(available, limit - (used or 0)))


def _cgroup_bytes(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


class HostTier:
    """Reads blobs, and keeps the most recently read blobs; threads may share it."""

    def __init__(self, read: Callable[[TaskManifest], bytes], *, budget_bytes: int) -> None:
        self._lock = threading.Lock()
        self._blobs = LRUCache[str, bytes](budget_bytes, len)
        # Reads run outside the lock, so that other threads can read other versions.
        self.read = cached(self._blobs, key=_digest, lock=self._lock, info=True)(read)

    def stats(self) -> HostTierMemory:
        reads = self.read.cache_info()
        with self._lock:
            return HostTierMemory(
                budget_bytes=int(self._blobs.maxsize),
                bytes=int(self._blobs.currsize),
                blobs=len(self._blobs),
                hits=reads.hits,
                misses=reads.misses,
            )


def _digest(manifest: TaskManifest) -> str:
    blob = manifest.blob(PARAMETERS_ROLE)
    return "" if blob is None else blob.sha256

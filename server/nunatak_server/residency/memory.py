"""Memory return: what loads and evicted versions have freed goes back to the operating system.

The allocator of glibc keeps freed memory for itself: after a while of loads and evictions about as
much as the versions took, and after loads alone what they held for a moment. It gives it back when
asked, in some 20 ms, so it is asked off the event loop, and not for every one. Other allocators are
left alone.

Sizes: what a version will take in memory, and how much there is for all of them.

The host tier: stored bytes in main memory, already checked against their digest.

It spares a load the store and the digest, never a check of what the bytes say: those run on every
load. Where the device is the processor, a byte here is better spent on the version itself.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from cachetools import LRUCache, cached

from nunatak_artifact import PARAMETERS_ROLE
from nunatak_contract.enums import TensorDtype
from nunatak_contract.manifest import TaskManifest

INTERVAL_S = 5.0
"""At least this long between two returns: they cost well below a percent of a core."""


def find_memory_return() -> Callable[[], None] | None:
    """Return what gives freed memory back, blocking for milliseconds; None if nothing can."""
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None

    def give_back() -> None:
        trim(0)

    return give_back


# The rest is for activations, the trunk cache, and loads, which hold a version up to three times:
# as stored, as tensors, and in the layout that serves.
DEFAULT_SHARE = 0.5

STORED_ITEMSIZE = {TensorDtype.FLOAT32: 4, TensorDtype.FLOAT16: 2, TensorDtype.BFLOAT16: 2}
CGROUP = Path("/sys/fs/cgroup")


def size_in_memory(manifest: TaskManifest, *, dtype: torch.dtype) -> int:
    """Return the bytes that a version takes in `dtype`, before anything of it is read.

    From the size of its blob, which is checked when it is read, rather than from its parameter
    counts, which only inform; too high by the blob's header.
    """
    blob = manifest.blob(PARAMETERS_ROLE)
    stored_bytes = 0 if blob is None else blob.size_bytes
    return stored_bytes * dtype.itemsize // STORED_ITEMSIZE[manifest.dtype]


def task_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of task versions: the operator's, or half of what is free now."""
    return chosen_bytes or int(DEFAULT_SHARE * free_memory(device))


def host_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of the host tier: the operator's, or half of what is free now.

    On a processor none, for there the device tier is in the same memory.
    """
    if chosen_bytes is not None:
        return chosen_bytes
    return 0 if device.type == "cpu" else int(DEFAULT_SHARE * free_memory(torch.device("cpu")))


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a processor, within the process's limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    available = psutil.virtual_memory().available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return available if limit is None else max(1, min(available, limit - (used or 0)))


def _cgroup_bytes(name: str) -> int | None:
    """Return a number of the process's control group; None where there is none."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """What is held now, and what became of the reads so far."""

    budget_bytes: int
    num_bytes: int
    num_blobs: int
    hits: int
    misses: int


class HostTier:
    """Reads blobs, and keeps the least recently read ones last; safe to share between threads."""

    def __init__(self, read: Callable[[TaskManifest], bytes], *, budget_bytes: int) -> None:
        self._lock = threading.Lock()
        self._blobs = LRUCache[str, bytes](budget_bytes, len)
        # Reads run outside the lock: others may read other versions meanwhile.
        self._read = cached(self._blobs, key=_digest, lock=self._lock, info=True)(read)

    def read(self, manifest: TaskManifest) -> bytes:
        """Return the parameters of a version as stored.

        Raises:
            NunatakError: they are not held, and cannot be read or trusted.
        """
        return self._read(manifest)

    def stats(self) -> HostStats:
        """Return what is held, and what became of the reads."""
        reads = self._read.cache_info()
        with self._lock:
            return HostStats(
                budget_bytes=int(self._blobs.maxsize),
                num_bytes=int(self._blobs.currsize),
                num_blobs=len(self._blobs),
                hits=reads.hits,
                misses=reads.misses,
            )


def _digest(manifest: TaskManifest) -> str:
    blob = manifest.blob(PARAMETERS_ROLE)
    return "" if blob is None else blob.sha256

"""Bytes: the return of freed memory, the sizes and the budgets of versions, and the host tier.

The allocator of glibc keeps freed memory: after many evictions about as much as the versions took,
and after batches of many sizes several times their activations. It returns memory on request in
about 20 ms, so the request runs off the event loop, and not after every load or answer. Other
allocators get no request.

The host tier holds stored bytes that were checked against their digest, so a load needs no store.
If the device is the CPU, the version itself is the better use of the memory.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from cachetools import LRUCache, cached

from nunatak_contract.enums import TensorDtype
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.memory import HostTierMemory
from nunatak_versions import PARAMETERS_ROLE


def find_memory_return() -> Callable[[], None] | None:
    """Return the function that releases freed memory, in milliseconds; None without glibc."""
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None

    def give_back() -> None:
        trim(0)

    return give_back


TRUNK_SHARE, LEAST_TRUNK_BYTES = 0.25, 2**24
# The rest is for activations, the trunk cache, and loads. A load holds a version up to three times:
# as stored bytes, as tensors, and in the layout for serving.
DEFAULT_SHARE = 0.5

STORED_ITEMSIZE = {TensorDtype.FLOAT32: 4, TensorDtype.FLOAT16: 2, TensorDtype.BFLOAT16: 2}
CGROUP = Path("/sys/fs/cgroup")


def size_in_memory(manifest: TaskManifest, *, dtype: torch.dtype) -> int:
    """Return the bytes of a version in `dtype` before it is read, too high by the blob's header.

    The blob's size decides: a load checks it, and nothing checks the parameter counts.
    """
    blob = manifest.blob(PARAMETERS_ROLE)
    stored_bytes = 0 if blob is None else blob.size_bytes
    return stored_bytes * dtype.itemsize // STORED_ITEMSIZE[manifest.dtype]


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

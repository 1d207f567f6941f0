"""Memory for task versions: budgets, the host tier, and the return of freed memory.

- `size_in_memory` and the budgets say how much memory versions need and may take.
- `HostTier` caches the stored bytes of versions in main memory.
- `find_memory_return` finds the function that returns freed memory to the operating system.
"""

import ctypes
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from nunatak_artifact import PARAMETERS_ROLE
from nunatak_registry import TaskManifest, TensorDtype

DEFAULT_SHARE = 0.5
"""Share of the free memory for task versions. The rest is for activations, the trunk cache, and
loads, which need a version up to three times: as stored, as tensors, and in the serving layout."""

STORED_ITEMSIZE = {TensorDtype.FLOAT32: 4, TensorDtype.FLOAT16: 2, TensorDtype.BFLOAT16: 2}
CGROUP = Path("/sys/fs/cgroup")


def size_in_memory(manifest: TaskManifest, *, dtype: torch.dtype) -> int:
    """Return the bytes that a version takes in `dtype`, before its blob is read.

    The size of the blob decides, because the load checks it. Parameter counts in the manifest only
    inform. The result is too high by the header of the blob.
    """
    blob = manifest.blob(PARAMETERS_ROLE)
    stored_bytes = 0 if blob is None else blob.size_bytes
    return stored_bytes * dtype.itemsize // STORED_ITEMSIZE[manifest.dtype]


def task_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of task versions: as chosen, or half of the free memory."""
    return chosen_bytes or int(DEFAULT_SHARE * free_memory(device))


def host_memory_budget(chosen_bytes: int | None, device: torch.device) -> int:
    """Return the budget of the host tier: as chosen, or half of the free main memory.

    On a CPU the default is 0, because the versions themselves are in main memory.
    """
    if chosen_bytes is not None:
        return chosen_bytes
    return 0 if device.type == "cpu" else int(DEFAULT_SHARE * free_memory(torch.device("cpu")))


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device; on a CPU, within the control group of the process."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    available = psutil.virtual_memory().available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return available if limit is None else max(1, min(available, limit - (used or 0)))


def _cgroup_bytes(name: str) -> int | None:
    """Return a number of the control group of the process, or None without a number."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """The content of the host tier now, and its hits and misses so far."""

    budget_bytes: int
    num_bytes: int
    num_blobs: int
    hits: int
    misses: int


class HostTier:
    """A cache of stored bytes, checked against their digest; safe to use from several threads.

    A hit spares a load the read and the digest. Every load still checks the content. The least
    recently read bytes are dropped first.
    """

    def __init__(self, read: Callable[[TaskManifest], bytes], *, budget_bytes: int) -> None:
        self._read = read
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0

    def read(self, manifest: TaskManifest) -> bytes:
        """Return the parameters of a version as stored.

        Raises:
            RegistryError: the bytes are not cached, and cannot be read or trusted.
        """
        blob = manifest.blob(PARAMETERS_ROLE)
        digest = "" if blob is None else blob.sha256
        with self._lock:
            held = self._blobs.get(digest)
            if held is not None:
                self._blobs.move_to_end(digest)
                self._hits += 1
                return held
            self._misses += 1
        # Outside the lock, so that other threads can read other versions.
        data = self._read(manifest)
        self._keep(digest, data)
        return data

    def stats(self) -> HostStats:
        """Return the content, hits and misses as of now."""
        with self._lock:
            return HostStats(
                budget_bytes=self._budget,
                num_bytes=self._num_bytes,
                num_blobs=len(self._blobs),
                hits=self._hits,
                misses=self._misses,
            )

    def _keep(self, digest: str, data: bytes) -> None:
        with self._lock:
            if len(data) > self._budget or digest in self._blobs:
                return
            self._blobs[digest] = data
            self._num_bytes += len(data)
            while self._num_bytes > self._budget:
                _, dropped = self._blobs.popitem(last=False)
                self._num_bytes -= len(dropped)


INTERVAL_S = 5.0
"""Least time between two returns, so that returns cost well below a percent of a core."""


def find_memory_return() -> Callable[[], None] | None:
    """Return the function that returns freed memory to the operating system, or None.

    The allocator of glibc keeps freed memory: after loads and evictions about as much as the
    versions took. `malloc_trim` returns it in about 20 ms, so the caller runs it on a thread, and
    not after every load. Other allocators need no such call.
    """
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None

    def give_back() -> None:
        trim(0)

    return give_back

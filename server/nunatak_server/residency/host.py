"""The host tier: stored bytes in main memory, already checked against their digest.

It spares a load the store and the digest, never a check of what the bytes say: those run on every
load. Where the device is the processor, a byte here is better spent on the version itself.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from nunatak_artifact import PARAMETERS_ROLE
from nunatak_registry import TaskManifest


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
            RegistryError: they are not held, and cannot be read or trusted.
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
        # Not under the lock: others may read other versions meanwhile.
        data = self._read(manifest)
        self._keep(digest, data)
        return data

    def stats(self) -> HostStats:
        """Return what is held, and what became of the reads."""
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

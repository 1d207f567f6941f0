"""What versions have answered to policies about windows of texts.

A gateway sends a whole conversation in each call, and a stream looks at its windows several times.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from cachetools import LRUCache

from nunatak_contract.manifest import TaskManifest
from nunatak_model import Encoding
from nunatak_server.residency.resident_set import VersionKey, key_of
from nunatak_server.scheduler.rows import RowAnswer, RowOutcome

BYTES_PER_TOKEN: Final = 48
"""Bytes of a token in the key of an answer, about."""
BYTES_PER_ANSWER: Final = 832
"""Bytes of an answer apart from its tokens and logits, about."""


class _Kept(NamedTuple):
    # Logits of tokens are many, and a list would need four times the memory.
    logits: "array[float]"
    num_bytes: int


class KnownRows:
    """The least recently used answers go first; only the event loop thread may use it.

    An answer is known to the caller alone who has asked, so that its time tells other callers
    nothing.
    """

    def __init__(self, max_bytes: float = math.inf) -> None:
        self._kept = LRUCache[tuple[str, VersionKey, Encoding], _Kept](
            max_bytes, getsizeof=lambda it: it.num_bytes
        )

    def find(
        self, caller: str, manifest: TaskManifest, windows: Iterable[Encoding]
    ) -> Mapping[Encoding, RowAnswer]:
        version = key_of(manifest)
        found = ((it, self._kept.get((caller, version, it))) for it in dict.fromkeys(windows))
        return {
            it: RowAnswer(logits=list(kept.logits), queue_s=0.0, compute_s=0.0, batch_rows=0)
            for it, kept in found
            if kept is not None
        }

    def keep(
        self, caller: str, manifest: TaskManifest, window: Encoding, outcome: RowOutcome
    ) -> None:
        if not isinstance(outcome, RowAnswer):
            return
        logits = array("d", outcome.logits)
        num_bytes = logits.itemsize * len(logits) + BYTES_PER_TOKEN * window.num_tokens
        num_bytes += BYTES_PER_ANSWER
        if num_bytes <= self._kept.maxsize:
            # The places of tokens take most of the memory of a window.
            key = caller, key_of(manifest), replace(window, alignment=None)
            self._kept[key] = _Kept(logits, num_bytes)

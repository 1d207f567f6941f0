"""Trunk states: the trunk's result for an input, which may outlive the batch that computed it.

A state depends on frozen parts only, so every task and every version can use it. The trunk cache
holds the states read last, as many as a budget of bytes allows.

Axes: tokens = tokens of one input, width = hidden width.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.text.encoding import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkSource:
    """Everything that an input's trunk state depends on, except its depth."""

    backbone: str
    """Digest over weights, configuration and tokenizer; the same at any dtype."""
    dtype: torch.dtype
    device: torch.device
    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]


def trunk_source(backbone: Backbone, encoding: Encoding) -> TrunkSource:
    """Return the source of this input's states on this backbone."""
    return TrunkSource(
        backbone=backbone.digest,
        dtype=backbone.dtype,
        device=backbone.device,
        token_ids=encoding.token_ids,
        type_ids=encoding.type_ids,
    )


@runtime_checkable
class TrunkStates(Protocol):
    """States held from one batch to the next, by source and depth."""

    def depths(self, source: TrunkSource) -> Collection[int]:
        """Return the depths at which the state of this source is held."""
        ...

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """Return a state that is held; the caller does not write into it."""
        ...

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Take note of a computed state; the cache may hold a copy of it from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkActivations:
    """Hidden states that the trunk gives some inputs at one depth."""

    depth: int
    """Index of the layer that reads them."""
    hidden: Mapping[Encoding, Float[Tensor, "tokens width"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkCacheStats:
    """The content of a cache now, and its counts since it was made."""

    num_states: int
    num_bytes: int
    max_bytes: int
    hits: int
    """States that were read."""
    misses: int
    """Number of states that had to be computed."""
    evictions: int
    """States dropped to keep the budget."""
    saved_tokens: int
    """Tokens of the states that were read."""


class TrunkCache:
    """The states read last, under a budget of bytes; the least recently used are dropped first.

    Used by one thread at a time; `stats` may be read from any.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Not cachetools' LRUCache: it hashes the long key several times more, so that `offer` takes
        # twice as long on the engine thread.
        self._states: OrderedDict[tuple[TrunkSource, int], Tensor] = OrderedDict()
        """Ordered from the least to the most recently used."""
        self._depths: dict[TrunkSource, set[int]] = {}
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._saved_tokens = 0

    @property
    def stats(self) -> TrunkCacheStats:
        """Counts that are right one by one; a batch that runs now may be in some, not in others."""
        return TrunkCacheStats(
            num_states=len(self._states),
            num_bytes=self._num_bytes,
            max_bytes=self._max_bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            saved_tokens=self._saved_tokens,
        )

    def depths(self, source: TrunkSource) -> Collection[int]:
        """Return the depths at which the state of this source is held."""
        return self._depths.get(source, ())

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """Return a state that is held, not to be written into, and count a hit.

        Raises:
            KeyError: it is not held.
        """
        state = self._states[source, depth]
        self._states.move_to_end((source, depth))
        self._hits += 1
        self._saved_tokens += len(state)
        return state

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Count a miss, and hold a copy of the state unless it alone is above the budget."""
        self._misses += 1
        if state.nbytes > self._max_bytes or (source, depth) in self._states:
            return
        # A copy, since a view would keep the whole batch in memory.
        self._states[source, depth] = state.detach().clone()
        self._depths.setdefault(source, set()).add(depth)
        self._num_bytes += state.nbytes
        while self._num_bytes > self._max_bytes:
            self._evict()

    def _evict(self) -> None:
        (source, depth), state = self._states.popitem(last=False)
        self._num_bytes -= state.nbytes
        self._evictions += 1
        depths = self._depths[source]
        depths.remove(depth)
        if not depths:
            del self._depths[source]

"""Trunk states: the trunk's results for inputs, which may outlive the batch that computed them.

A state depends on frozen parts only, so every task and every version can use it. The trunk cache
holds the most recently read states, within a budget of bytes.

Axes: tokens = tokens of one input, width = hidden width.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.memory import TrunkCacheMemory
from nunatak_model.backbone import Backbone
from nunatak_model.text.encoding import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkSource:
    """Everything that an input's trunk state depends on, except its depth."""

    backbone: str
    """Digest over weights, configuration and tokenizer; the same at any dtype."""
    dtype: torch.dtype
    device: torch.device
    encoding: Encoding


def trunk_source(backbone: Backbone, encoding: Encoding) -> TrunkSource:
    return TrunkSource(
        backbone=backbone.digest, dtype=backbone.dtype, device=backbone.device, encoding=encoding
    )


@runtime_checkable
class TrunkStates(Protocol):
    """States held from one batch to the next, by source and depth."""

    def depths(self, source: TrunkSource) -> Collection[int]: ...

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """The caller must not write into the state."""
        ...

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """The cache may hold a copy from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkActivations:
    """The trunk's hidden states for some inputs at one depth."""

    depth: int
    """Index of the layer that reads the states."""
    hidden: Mapping[Encoding, Float[Tensor, "tokens width"]]


class TrunkCache:
    """The most recently read states, within a budget of bytes; the least recently used go first.

    A cache that was filled and replaced without one read rests: it holds no states, until a text
    comes a second time. One thread at a time uses the cache. Any thread may read `stats`.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # cachetools' LRUCache would hash the long key several times more, and `offer` would take
        # twice as long on the engine thread.
        self._states: OrderedDict[tuple[TrunkSource, int], Tensor] = OrderedDict()
        self._depths: dict[TrunkSource, set[int]] = {}
        self._num_bytes = 0
        self._unread_bytes = 0
        """Of states dropped since the last read."""
        self._passing: _PassingStates | None = None
        """None unless the cache rests."""
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._saved_tokens = 0

    @property
    def stats(self) -> TrunkCacheMemory:
        """Each count is right. A running batch may be in some counts and not in others."""
        return TrunkCacheMemory(
            states=len(self._states),
            bytes=self._num_bytes,
            max_bytes=self._max_bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            saved_tokens=self._saved_tokens,
        )

    def depths(self, source: TrunkSource) -> Collection[int]:
        return self._depths.get(source, ())

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        state = self._states[source, depth]
        self._states.move_to_end((source, depth))
        self._unread_bytes = 0
        self._hits += 1
        self._saved_tokens += len(state)
        return state

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Count a miss; a state that alone exceeds the budget is not held."""
        self._misses += 1
        if state.nbytes > self._max_bytes or (source, depth) in self._states:
            return
        if self._passing and not self._passing.comes_again(hash((source, depth)), state.nbytes):
            return
        self._passing = None
        if source.encoding.alignment is not None:
            # The budget counts states only, so the cache keeps no places of tokens.
            source = replace(source, encoding=replace(source.encoding, alignment=None))
        # A copy, since a view would keep the whole batch in memory.
        self._states[source, depth] = state.detach().clone()
        self._depths.setdefault(source, set()).add(depth)
        self._num_bytes += state.nbytes
        while self._num_bytes > self._max_bytes:
            self._evict()
        if self._unread_bytes >= self._max_bytes:
            while self._states:
                self._evict()
            self._unread_bytes = 0
            self._passing = _PassingStates(self._max_bytes)

    def _evict(self) -> None:
        (source, depth), state = self._states.popitem(last=False)
        self._num_bytes -= state.nbytes
        self._unread_bytes += state.nbytes
        self._evictions += 1
        depths = self._depths[source]
        depths.remove(depth)
        if not depths:
            del self._depths[source]


class _PassingStates:
    """The keys of the states that a full cache would hold now, and their sizes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._num_bytes = 0

    def comes_again(self, key: int, num_bytes: int) -> bool:
        if key in self._sizes:
            return True
        self._sizes[key] = num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._sizes.popitem(last=False)[1]
        return False

"""Trunk states in memory, for the time of a process."""

from collections import OrderedDict
from collections.abc import Iterable

import torch

from nunatak_model import Backbone, Encoding, TrunkCache, TrunkStates
from nunatak_training.trunk.inputs import InputSet
from nunatak_training.trunk.states import Progress, SetStates, compute_states
from nunatak_training.trunk.store import states_key

MAX_MEMORY_BYTES = 2 * 1024**3


class MemoryTrunkStore:
    """Holds the sets read last, as many as a budget of bytes allows.

    Of a set that alone is above it the states read last are held, by batches: they may then differ
    in the last bit from those of a whole pass.
    """

    def __init__(self, *, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sets: OrderedDict[str, SetStates] = OrderedDict()

    def states(
        self,
        backbone: Backbone,
        encodings: Iterable[Encoding],
        *,
        depth: int,
        progress: Progress,
    ) -> TrunkStates:
        """Return the states of all encodings at a depth of at least 1."""
        inputs = InputSet.of(encodings)
        shape = (inputs.num_tokens, backbone.config.hidden_width)
        if shape[0] * shape[1] * backbone.dtype.itemsize > self._max_bytes:
            return TrunkCache(max_bytes=self._max_bytes)
        key = states_key(backbone, inputs, depth)
        if key not in self._sets:
            packed = torch.empty(shape, dtype=backbone.dtype)
            below = self._below(backbone, inputs, depth)
            begin = 0
            for part in compute_states(backbone, inputs, depth, below=below, progress=progress):
                packed[begin : begin + len(part)] = part
                begin += len(part)
            self._sets[key] = SetStates(backbone, inputs, depth, packed)
        self._sets.move_to_end(key)
        while sum(held.num_bytes for held in self._sets.values()) > self._max_bytes:
            self._sets.popitem(last=False)
        return self._sets[key]

    def _below(self, backbone: Backbone, inputs: InputSet, depth: int) -> SetStates | None:
        keys = (states_key(backbone, inputs, lower) for lower in range(depth - 1, 0, -1))
        return next((self._sets[key] for key in keys if key in self._sets), None)

"""A device that computes when it is told to."""

import threading
from typing import SupportsIndex, overload

from nunatak_model.weights import LayerWeights


class HeldLayers(tuple[LayerWeights, ...]):
    """The layers of a backbone on a device that waits until it may compute."""

    __slots__ = ()
    may_compute = threading.Event()

    @overload
    def __getitem__(self, index: SupportsIndex) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerWeights, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> LayerWeights | tuple[LayerWeights, ...]:
        HeldLayers.may_compute.wait(timeout=60)
        return super().__getitem__(index)

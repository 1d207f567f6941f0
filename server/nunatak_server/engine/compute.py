"""Compute: runs one mixed batch on the device and brings its logits back."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from nunatak_model import (
    Backbone,
    BetweenLayers,
    Encoding,
    Row,
    TrunkGraphs,
    TrunkStates,
    forward,
    trunk_source,
)
from nunatak_server.failures import device_failure


class BatchCompute:
    """The forward pass of one backbone, as the engine calls it: on its thread alone.

    With `trunk`, what is frozen is read from there where it was computed before; with `graphs`,
    what has to be computed is replayed.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        trunk: TrunkStates | None = None,
        graphs: TrunkGraphs | None = None,
    ) -> None:
        self._backbone = backbone
        self._trunk = trunk
        self._graphs = graphs
        # An accelerator is given the kernels of a whole batch ahead, so that nothing goes before.
        self.stops_between_layers = backbone.device.type == "cpu"
        """Whether a batch that has begun can be preempted."""

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        """Return the logits of each row, in order; those of tokens one after another.

        `between_layers` may call this again; it needs `stops_between_layers`.

        Raises:
            EngineFailedError: the device is lost: no later batch can succeed in this process.
            OutOfMemoryError: there is no memory for this batch; a smaller one may succeed.
        """
        try:
            with torch.inference_mode():
                outputs = forward(
                    self._backbone,
                    rows,
                    trunk=self._trunk,
                    graphs=self._graphs,
                    between_layers=between_layers,
                )
                # One transfer for the batch: a copy per row would wait for the device each time.
                flat = logits_to_floats(torch.cat([output.flatten() for output in outputs]))
        except (RuntimeError, MemoryError) as error:
            failure = device_failure(error)
            if failure is None:
                raise
            raise failure from error
        return _split(flat, [output.numel() for output in outputs])

    def holds_trunk(self, encoding: Encoding, split_depth: int | None) -> bool:
        """Tell whether the state that a branch starts from was computed before and is held."""
        if self._trunk is None or not split_depth:
            return False
        return split_depth in self._trunk.depths(trunk_source(self._backbone, encoding))


def logits_to_floats(logits: Tensor) -> list[float]:
    """Return a vector of logits as numbers; waits for the device."""
    return cast("list[float]", logits.float().tolist())  # pyright: ignore[reportUnknownMemberType] - torch leaves it open


def _split(flat: list[float], sizes: Sequence[int]) -> list[list[float]]:
    rows: list[list[float]] = []
    begin = 0
    for size in sizes:
        rows.append(flat[begin : begin + size])
        begin += size
    return rows

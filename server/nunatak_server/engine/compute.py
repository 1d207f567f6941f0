"""`BatchCompute`: runs one mixed batch on the device and returns its logits."""

import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from nunatak_model import (
    Backbone,
    BetweenLayers,
    Encoding,
    Row,
    TrunkStates,
    forward,
    on_device,
    trunk_source,
    without_fast_kernels,
)
from nunatak_server.failures import device_failure

logger = logging.getLogger(__name__)


class BatchCompute:
    """The forward pass of one backbone; only the engine thread may call it.

    With `trunk`, trunk states of earlier batches are read from that cache. If a batch fails,
    and succeeds by torch's own operations, no fast kernel of the device is used any more.
    """

    def __init__(self, backbone: Backbone, *, trunk: TrunkStates | None = None) -> None:
        self._backbone = backbone
        self._trunk = trunk
        # An accelerator gets the kernels of a whole batch ahead, so nothing can preempt the batch.
        self.stops_between_layers = backbone.device.type == "cpu"
        """Whether other rows can preempt a batch that has begun."""

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        """Return the logits of each row, in order; token after token for heads that read tokens.

        `between_layers` needs `stops_between_layers`, and may call this again.

        Raises:
            EngineFailedError: the device is lost, so no later batch can succeed in this process.
            OutOfMemoryError: there is no memory for this batch; a smaller batch may succeed.
        """
        try:
            return self._answers(self._backbone, rows, between_layers)
        except (RuntimeError, MemoryError) as error:
            failure = device_failure(error)
            if failure is not None:
                raise failure from error
            plain = without_fast_kernels(self._backbone)
            if plain.ops == self._backbone.ops:
                raise
            return self._try_plainly(plain, rows, error)

    @property
    def fast_kernels(self) -> tuple[str, ...]:
        """The names of the fast kernels in use."""
        return self._backbone.fast_kernels

    def _try_plainly(
        self, plain: Backbone, rows: Sequence[Row], error: Exception
    ) -> list[list[float]]:
        """Run rows that failed by torch's own operations, which serve from now on if they can."""
        try:
            answers = self._answers(plain, rows, None)
        except (RuntimeError, MemoryError) as again:
            # The rows are at fault, or the device, and no kernel.
            failure = device_failure(again)
            if failure is not None:
                raise failure from again
            raise
        logger.warning(
            "a fast kernel failed in a batch (%s); torch's own operations serve from now on, "
            "slower and right. Start the server with NUNATAK_KERNELS=plain, and report the failure",
            error,
        )
        self._backbone = plain
        return answers

    def _answers(
        self,
        backbone: Backbone,
        rows: Sequence[Row],
        between_layers: BetweenLayers | None,
    ) -> list[list[float]]:
        with on_device(backbone.device), torch.inference_mode():
            outputs = forward(backbone, rows, trunk=self._trunk, between_layers=between_layers)
            # One transfer for the batch, because a copy for each row would wait for the device.
            flat = logits_to_floats(torch.cat([output.flatten() for output in outputs]))
        return _split(flat, [output.numel() for output in outputs])

    def holds_trunk(self, encoding: Encoding, split_depth: int | None) -> bool:
        """Tell whether the trunk state of a text at a split depth is cached."""
        if self._trunk is None or not split_depth:
            return False
        return split_depth in self._trunk.depths(trunk_source(self._backbone, encoding))


def logits_to_floats(logits: Tensor) -> list[float]:
    """Return a vector of logits as numbers, once the device has computed them."""
    return cast("list[float]", logits.float().tolist())  # pyright: ignore[reportUnknownMemberType] - torch leaves it open


def _split(flat: list[float], sizes: Sequence[int]) -> list[list[float]]:
    rows: list[list[float]] = []
    begin = 0
    for size in sizes:
        rows.append(flat[begin : begin + size])
        begin += size
    return rows

"""The forward pass: `BatchCompute` runs one mixed batch on the device and returns its logits.

`BackboneInUse` is the fact with which operations batches and loads compute.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

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

AnswerT = TypeVar("AnswerT")


class BackboneInUse:
    """A backbone with its fast kernels, or without them once one of them has failed.

    Batches and loads compute on it, on several threads.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def run(
        self,
        compute: Callable[[Backbone], AnswerT],
        *,
        again: Callable[[Backbone], AnswerT] | None = None,
    ) -> AnswerT:
        """Compute; if that fails, compute by torch's own operations.

        If these succeed, a fast kernel is at fault, and none of them is used any more.

        Args:
            compute: the work, on the backbone that serves.
            again: the work of the second attempt, if it differs.
        """
        backbone = self.backbone
        try:
            return compute(backbone)
        except (RuntimeError, MemoryError) as error:
            plain = without_fast_kernels(backbone)
            if device_failure(error) is not None or plain.ops == backbone.ops:
                raise
            # If this fails as well, the work or the device is at fault, and no kernel.
            answer = (again or compute)(plain)
            logger.warning(
                "a fast kernel failed (%s); torch's own operations serve from now on, slower and "
                "right. Start the server with NUNATAK_KERNELS=plain, and report the failure",
                error,
            )
        self.backbone = plain
        return answer


class BatchCompute:
    """The forward pass of one backbone; only the engine thread may call it.

    With `trunk`, trunk states of earlier batches are read from that cache. `in_use` is the fact
    which operations serve, if loads share it.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        trunk: TrunkStates | None = None,
        in_use: BackboneInUse | None = None,
    ) -> None:
        self._in_use = in_use or BackboneInUse(backbone)
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
            return self._in_use.run(
                partial(self._answers, rows=rows, between_layers=between_layers),
                again=partial(self._answers, rows=rows, between_layers=None),
            )
        except (RuntimeError, MemoryError) as error:
            failure = device_failure(error)
            if failure is not None:
                raise failure from error
            raise

    @property
    def fast_kernels(self) -> tuple[str, ...]:
        return self._in_use.backbone.fast_kernels

    def _answers(
        self, backbone: Backbone, *, rows: Sequence[Row], between_layers: BetweenLayers | None
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
        return split_depth in self._trunk.depths(trunk_source(self._in_use.backbone, encoding))


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

"""Gradient dropout of every batch: GradDrop and Layer-GradDrop, annealed or not.

O'Neill and Dutta 2023, sec. III-A: after backpropagation the gradients of layer l are multiplied
by a mask, `theta_l - alpha * g_l * m_l` (eq. 3), with `m ~ Bernoulli(1 - p) / (1 - p)` (eq. 4).

The mask is on the gradient, as the paper writes, and not on the update: under Adam a dropped
entry still moves by its moments. A mask that changes with every batch is noise on the gradient,
unbiased through its scale, which Adam's averages are there to smooth; to stop the update as well
would be another method.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nunatak_training.regularizers.base import Unregularized, tensors_by_layer

RateOfEpoch = Callable[[int], float]


def constant_rate(rate: float) -> RateOfEpoch:
    """The same rate in every epoch."""
    return lambda _: rate


def annealed_rate(first: float, *, num_epochs: int) -> RateOfEpoch:
    """A rate that falls linearly from `first` in epoch 1 to 0 in the last one.

    The paper (sec. III-C) begins at 0.9, goes down by 1/T an epoch and ends at 0 in epoch T, which
    agree for T = 10 only; the two ends are kept here for every number of epochs.
    """
    return lambda epoch: first * (num_epochs - epoch) / max(1, num_epochs - 1)


class GradDrop(Unregularized):
    """Drops single gradient entries of all layers, and scales up the others."""

    def __init__(
        self, parameters: Mapping[str, Tensor], rate: RateOfEpoch, generator: torch.Generator
    ) -> None:
        self._tensors = [
            tensor for layer in tensors_by_layer(parameters).values() for tensor in layer.values()
        ]
        self._rate_of = rate
        self._rate = rate(1)
        self._generator = generator

    def begin_epoch(self, epoch: int) -> None:
        """Take the rate of this epoch."""
        self._rate = self._rate_of(epoch)

    def after_backward(self) -> None:
        """Multiply each entry by a fresh `Bernoulli(1 - p) / (1 - p)`."""
        for tensor in self._tensors:
            if tensor.grad is not None:
                mask = torch.empty_like(tensor.grad)
                mask.bernoulli_(1 - self._rate, generator=self._generator)
                tensor.grad.mul_(mask.div_(1 - self._rate))


class LayerGradDrop(Unregularized):
    """Drops the gradients of whole layers: one bit a layer, and no scale (sec. III-A)."""

    def __init__(
        self, parameters: Mapping[str, Tensor], rate: RateOfEpoch, generator: torch.Generator
    ) -> None:
        self._layers = [list(layer.values()) for layer in tensors_by_layer(parameters).values()]
        self._rate_of = rate
        self._rate = rate(1)
        self._generator = generator

    def begin_epoch(self, epoch: int) -> None:
        """Take the rate of this epoch."""
        self._rate = self._rate_of(epoch)

    def after_backward(self) -> None:
        """Multiply all gradients of a layer by one fresh `Bernoulli(1 - p)`."""
        for layer in self._layers:
            bit = torch.empty((), device=layer[0].device)
            bit.bernoulli_(1 - self._rate, generator=self._generator)
            for tensor in layer:
                if tensor.grad is not None:
                    tensor.grad.mul_(bit)

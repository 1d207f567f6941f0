"""Freezing by epoch: GradDrop-Epoch, its toggled form, and gradual unfreezing of layers.

What is frozen for a whole epoch is frozen: neither Adam's moments nor weight decay move it. That
goes beyond a mask on the gradient, which under Adam would let the entries of the toggled form
drift on when they are meant to rest, and would let decay move what no epoch has freed yet.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nunatak_training.regularizers.base import Unregularized, tensors_by_layer

IsFree = Callable[[Int[Tensor, "*shape"], int], Bool[Tensor, "*shape"]]
"""Which entries an epoch frees, from the epochs that the entries were drawn for."""


def free_from_then_on(drawn: Int[Tensor, "*shape"], epoch: int) -> Bool[Tensor, "*shape"]:
    """GradDrop-Epoch: what an epoch frees stays free; in the last one all is."""
    return drawn <= epoch


def free_once(drawn: Int[Tensor, "*shape"], epoch: int) -> Bool[Tensor, "*shape"]:
    """GradDrop-Epoch-Toggle: what an epoch frees is frozen again when the next one begins."""
    return drawn == epoch


Layers = list[list[Tensor]]
OrderOfLayers = Callable[[Layers], Layers]


def top_down(layers: Layers) -> Layers:
    """GradFreeze top-down: the last layer comes free first."""
    return layers[::-1]


def bottom_up(layers: Layers) -> Layers:
    """GradFreeze bottom-up: the first layer comes free first."""
    return layers


class EpochGradDrop(Unregularized):
    """Draws for each entry of all layers, without replacement, the epoch that frees it.

    O'Neill and Dutta 2023, sec. III-B and fig. 1. Every epoch frees an equal part of every tensor,
    so that the whole is free once in the last epoch; the paper leaves the parts open. Free entries
    get their gradient unscaled, as in gradual unfreezing.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        is_free: IsFree,
        generator: torch.Generator,
        *,
        num_epochs: int,
    ) -> None:
        self._tensors = [
            tensor for layer in tensors_by_layer(parameters).values() for tensor in layer.values()
        ]
        self._drawn = [draw_epochs(tensor, num_epochs, generator) for tensor in self._tensors]
        self._is_free = is_free
        self._free: list[Tensor] = []
        self._kept: list[Tensor] = []

    def begin_epoch(self, epoch: int) -> None:
        """Draw the line between free and frozen, and keep what is frozen as it stands."""
        self._free = [self._is_free(drawn, epoch) for drawn in self._drawn]
        self._kept = [tensor.detach().clone() for tensor in self._tensors]

    def after_backward(self) -> None:
        """Zero the gradients of frozen entries: they count neither in the norm nor in moments."""
        for tensor, free in zip(self._tensors, self._free, strict=True):
            if tensor.grad is not None:
                tensor.grad.mul_(free)

    def after_step(self) -> None:
        """Put frozen entries back to where they were."""
        with torch.no_grad():
            for tensor, free, kept in zip(self._tensors, self._free, self._kept, strict=True):
                tensor.copy_(torch.where(free, tensor, kept))


def draw_epochs(
    tensor: Tensor, num_epochs: int, generator: torch.Generator
) -> Int[Tensor, "*shape"]:
    """Draw an epoch (from 1) for each entry: equally many for each epoch, in random places."""
    order = torch.randperm(tensor.numel(), generator=generator, device=tensor.device)
    # Which epochs the remainder goes to is drawn too, or small tensors would all move early.
    first = torch.randint(num_epochs, (), generator=generator, device=tensor.device)
    return ((order + first) % num_epochs + 1).to(torch.int16).reshape(tensor.shape)


class GradFreeze(Unregularized):
    """Frees one group of layers more in each epoch, from the top or from the bottom.

    The groups are as equal as can be, and all layers are free in the last epoch.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], order: OrderOfLayers, *, num_epochs: int
    ) -> None:
        layers = [list(layer.values()) for layer in tensors_by_layer(parameters).values()]
        self._in_order = order(layers)
        self._num_epochs = num_epochs

    def begin_epoch(self, epoch: int) -> None:
        """Free the layers of this epoch; the others get no gradient at all."""
        num_free = math.ceil(epoch * len(self._in_order) / self._num_epochs)
        for position, layer in enumerate(self._in_order):
            for tensor in layer:
                tensor.requires_grad_(position < num_free)
                # A gradient left over from an epoch before would still be applied.
                tensor.grad = None

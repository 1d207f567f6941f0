"""Mixout: a random part of the weights is read as it was before training.

Lee, Cho and Kang 2020, "Mixout: Effective Regularization to Finetune Large-scale Pretrained
Language Models" (arXiv:1909.11299): in every forward pass a weight w is replaced with probability
p by its pretrained value u, and the rest is scaled so that the mean stays w:
`w' = u + M / (1 - p) * (w - u)`, M ~ Bernoulli(1 - p). Its gradient is M / (1 - p) times that of
w'. As in the authors' code the matrices of all layers are mixed, and biases and norms are not. Here
the head is not mixed either, for it has no pretrained value; adapters go back to their initial one.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping

import torch
from torch import Tensor

from nunatak_training.regularizers.base import Unregularized, tensors_by_layer


class Mixout(Unregularized):
    """Mixes weights in place for the time of a forward and backward pass."""

    def __init__(
        self, parameters: Mapping[str, Tensor], rate: float, generator: torch.Generator
    ) -> None:
        self._tensors = [
            tensor
            for layer in tensors_by_layer(parameters).values()
            for tensor in layer.values()
            if tensor.ndim > 1
        ]
        self._initial = [tensor.detach().clone() for tensor in self._tensors]
        self._rate = rate
        self._generator = generator
        self._own: list[Tensor] = []
        self._masks: list[Tensor] = []

    def before_forward(self) -> None:
        """Set the weights to a fresh mixture."""
        self._own = [tensor.detach().clone() for tensor in self._tensors]
        self._masks = [self._mask(tensor) for tensor in self._tensors]
        with torch.no_grad():
            for tensor, initial, mask in zip(
                self._tensors, self._initial, self._masks, strict=True
            ):
                tensor.copy_(initial + mask * (tensor - initial))

    def after_backward(self) -> None:
        """Set the weights back, and turn gradients of the mixture into theirs."""
        with torch.no_grad():
            for tensor, own, mask in zip(self._tensors, self._own, self._masks, strict=True):
                tensor.copy_(own)
                if tensor.grad is not None:
                    tensor.grad.mul_(mask)

    def _mask(self, tensor: Tensor) -> Tensor:
        mask = torch.empty_like(tensor, requires_grad=False)
        return mask.bernoulli_(1 - self._rate, generator=self._generator).div_(1 - self._rate)

"""Regularizers: they keep tuned weights near the pretrained ones, or free the weights gradually.

GradDrop and Layer-GradDrop, O'Neill and Dutta 2023, sec. III-A: after backpropagation the gradients
of layer l are multiplied by a mask, `theta_l - alpha * g_l * m_l` (eq. 3), with
`m ~ Bernoulli(1 - p) / (1 - p)` (eq. 4). As in the paper, the mask is on the gradient and not on
the update: under Adam a dropped entry still moves by its moments. A mask that changes with every
batch is unbiased noise on the gradient, and Adam's averages smooth it.

GradDrop-Epoch, its toggled form, and GradFreeze freeze entries for a whole epoch. No moment of Adam
and no weight decay may move a frozen entry, so a mask on the gradient is not enough. Adam would
move resting entries of the toggled form, and decay would move entries that are not free yet.

Mixout, Lee, Cho and Kang 2020, "Mixout: Effective Regularization to Finetune Large-scale Pretrained
Language Models" (arXiv:1909.11299): every forward pass replaces a weight w by its pretrained value
u with probability p. The rest is scaled so that the mean stays w: `w' = u + M / (1 - p) * (w - u)`,
M ~ Bernoulli(1 - p). The gradient of w is M / (1 - p) times the gradient of w'. As in the authors'
code the matrices of all layers are mixed; biases and norms are not. The head is not mixed here,
because it has no pretrained value. Adapters go back to their initial values.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nunatak_contract.methods import Method, TopK
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.recipes import GOES_BY_EPOCHS, RegularizerName, RegularizerSettings

LAYER_PREFIX = "layers."
LAYERWISE = {RegularizerName.LAYER_GRADDROP, RegularizerName.ANNEAL_LAYER_GRADDROP}
ANNEALED = {RegularizerName.ANNEAL_GRADDROP, RegularizerName.ANNEAL_LAYER_GRADDROP}
FREEZING = {RegularizerName.GRADFREEZE_TOPDOWN, RegularizerName.GRADFREEZE_BOTTOMUP}
RateOfEpoch = Callable[[int], float]
IsFree = Callable[[Int[Tensor, "*shape"], int], Bool[Tensor, "*shape"]]
Layers = list[list[Tensor]]
OrderOfLayers = Callable[[Layers], Iterator[list[Tensor]]]


class Regularizer:
    """Called at four places of the loop; this one changes nothing.

    A regularizer holds the trained tensors.
    """

    def begin_epoch(self, epoch: int) -> None:
        """An epoch (from 1) begins."""

    def before_forward(self) -> None:
        """Change the parameters."""

    def after_backward(self) -> None:
        """Change the gradients."""

    def after_step(self) -> None:
        """The optimizer has moved the parameters."""


def layers_of(parameters: Mapping[str, Tensor]) -> Layers:
    """The tensors that masks apply to, from the lowest layer up.

    "Every layer apart from the input embedding layers and the task-specific classification layer"
    (O'Neill and Dutta 2023, sec. IV).
    """
    layers = defaultdict[int, list[Tensor]](list)
    for name, tensor in parameters.items():
        if name.startswith(LAYER_PREFIX):
            layers[int(name.split(".")[1])].append(tensor)
    return [layers[number] for number in sorted(layers)]


def annealed_rate(first: float, *, num_epochs: int) -> RateOfEpoch:
    """Falls linearly from `first` in epoch 1 to 0 in the last one.

    The paper (sec. III-C) begins at 0.9, falls by 1/T per epoch and ends at 0 in epoch T, which
    agrees only for T = 10. Here the first and the last rate hold for every number of epochs.
    """
    return lambda epoch: first * (num_epochs - epoch) / max(1, num_epochs - 1)


class _Dropping(Regularizer):
    def __init__(
        self, parameters: Mapping[str, Tensor], rate: RateOfEpoch, generator: torch.Generator
    ) -> None:
        self._layers = layers_of(parameters)
        self._rate_of = rate
        self._rate = rate(1)
        self._generator = generator

    def begin_epoch(self, epoch: int) -> None:
        self._rate = self._rate_of(epoch)


class GradDrop(_Dropping):
    """Drops single gradient entries of all layers, and scales up the other entries."""

    def after_backward(self) -> None:
        for tensor in chain.from_iterable(self._layers):
            if tensor.grad is not None:
                mask = torch.empty_like(tensor.grad)
                mask.bernoulli_(1 - self._rate, generator=self._generator)
                tensor.grad.mul_(mask.div_(1 - self._rate))


class LayerGradDrop(_Dropping):
    """Drops the gradients of whole layers: one bit a layer, and no scale (sec. III-A)."""

    def after_backward(self) -> None:
        for layer in self._layers:
            bit = torch.empty((), device=layer[0].device)
            bit.bernoulli_(1 - self._rate, generator=self._generator)
            for tensor in layer:
                if tensor.grad is not None:
                    tensor.grad.mul_(bit)


class EpochGradDrop(Regularizer):
    """Draws, without replacement, the epoch that frees each entry of all layers.

    O'Neill and Dutta 2023, sec. III-B and fig. 1. Every epoch frees an equal part of every tensor,
    so that the last epoch frees the last part. The paper does not define the parts. Free entries
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
        self._tensors = list(chain.from_iterable(layers_of(parameters)))
        self._drawn = [draw_epochs(tensor, num_epochs, generator) for tensor in self._tensors]
        self._is_free = is_free
        self._free: list[Tensor] = []
        self._kept: list[Tensor] = []

    def begin_epoch(self, epoch: int) -> None:
        self._free = [self._is_free(drawn, epoch) for drawn in self._drawn]
        self._kept = [tensor.detach().clone() for tensor in self._tensors]

    def after_backward(self) -> None:
        """Norm and moments ignore frozen entries."""
        for tensor, free in zip(self._tensors, self._free, strict=True):
            if tensor.grad is not None:
                tensor.grad.mul_(free)

    def after_step(self) -> None:
        with torch.no_grad():
            for tensor, free, kept in zip(self._tensors, self._free, self._kept, strict=True):
                tensor.copy_(torch.where(free, tensor, kept))


def draw_epochs(
    tensor: Tensor, num_epochs: int, generator: torch.Generator
) -> Int[Tensor, "*shape"]:
    """An epoch (from 1) for each entry: the same number for each epoch, at random places."""
    order = torch.randperm(tensor.numel(), generator=generator, device=tensor.device)
    # The epochs of the remainder are drawn too. Otherwise all small tensors would move early.
    first = torch.randint(num_epochs, (), generator=generator, device=tensor.device)
    return ((order + first) % num_epochs + 1).to(torch.int16).reshape(tensor.shape)


class GradFreeze(Regularizer):
    """Frees one more group of layers in each epoch, in sizes that differ by at most one layer."""

    def __init__(
        self, parameters: Mapping[str, Tensor], order: OrderOfLayers, *, num_epochs: int
    ) -> None:
        self._in_order = list(order(layers_of(parameters)))
        self._num_epochs = num_epochs

    def begin_epoch(self, epoch: int) -> None:
        num_free = math.ceil(epoch * len(self._in_order) / self._num_epochs)
        for position, layer in enumerate(self._in_order):
            for tensor in layer:
                tensor.requires_grad_(position < num_free)
                # The optimizer would still apply a gradient from the previous epoch.
                tensor.grad = None


class Mixout(Regularizer):
    """Mixes weights in place during a forward and backward pass."""

    def __init__(
        self, parameters: Mapping[str, Tensor], rate: float, generator: torch.Generator
    ) -> None:
        self._tensors = [it for it in chain.from_iterable(layers_of(parameters)) if it.ndim > 1]
        if not self._tensors:
            raise InvalidRecipeError(
                "regularizer mixout mixes matrices, and the method tunes none; choose another "
                "method, or another regularizer"
            )
        self._initial = [tensor.detach().clone() for tensor in self._tensors]
        self._rate = rate
        self._generator = generator
        self._own: list[Tensor] = []
        self._masks: list[Tensor] = []

    def before_forward(self) -> None:
        self._own = [tensor.detach().clone() for tensor in self._tensors]
        kept = 1 - self._rate
        self._masks = [
            torch.empty_like(it, requires_grad=False)
            .bernoulli_(kept, generator=self._generator)
            .div_(kept)
            for it in self._tensors
        ]
        with torch.no_grad():
            for tensor, initial, mask in zip(
                self._tensors, self._initial, self._masks, strict=True
            ):
                tensor.copy_(initial + mask * (tensor - initial))

    def after_backward(self) -> None:
        with torch.no_grad():
            for tensor, own, mask in zip(self._tensors, self._own, self._masks, strict=True):
                tensor.copy_(own)
                if tensor.grad is not None:
                    tensor.grad.mul_(mask)


def build_regularizer(
    settings: RegularizerSettings,
    parameters: Mapping[str, Tensor],
    *,
    num_epochs: int,
    generator: torch.Generator,
) -> Regularizer:
    """The regularizer of a run that is about to train `parameters`; draws come from `generator`.

    To resume a run, build it again on the initial parameters and a new generator of the same seed.
    Then set the parameters and the generator's state, and begin the epoch again.
    """
    name, rate = settings.name, settings.rate or 0.0
    match name:
        case RegularizerName.NONE:
            return Regularizer()
        case RegularizerName.GRADDROP_EPOCH | RegularizerName.GRADDROP_EPOCH_TOGGLE:
            # A freed entry stays free to the end, or (toggled) is frozen again in the next epoch.
            is_free = operator.le if name is RegularizerName.GRADDROP_EPOCH else operator.eq
            return EpochGradDrop(parameters, is_free, generator, num_epochs=num_epochs)
        case RegularizerName.GRADFREEZE_TOPDOWN | RegularizerName.GRADFREEZE_BOTTOMUP:
            order = reversed if name is RegularizerName.GRADFREEZE_TOPDOWN else iter
            return GradFreeze(parameters, order, num_epochs=num_epochs)
        case RegularizerName.MIXOUT:
            return Mixout(parameters, rate, generator)
        case _:
            annealed = annealed_rate(rate, num_epochs=num_epochs)
            rates = annealed if name in ANNEALED else lambda _: rate
            return (LayerGradDrop if name in LAYERWISE else GradDrop)(parameters, rates, generator)


def random_source(parameters: Mapping[str, Tensor], *, seed: int) -> torch.Generator:
    """For the regularizer alone, so that other draws do not change."""
    return torch.Generator(next(iter(parameters.values())).device).manual_seed(seed)


def check_method(settings: RegularizerSettings, method: Method) -> None:
    name = settings.name
    if method.kind == "head" and name is not RegularizerName.NONE:
        raise InvalidRecipeError(
            f"regularizer {name!s} is for layers, and method head tunes none; choose another "
            "method, or no regularizer"
        )
    if name in FREEZING and method == TopK(num_layers=1):
        raise InvalidRecipeError(
            f"regularizer {name!s} frees one layer after another and needs at least 2 tuned "
            "layers, got 1"
        )


def check_course(settings: RegularizerSettings, *, num_epochs: int) -> None:
    if settings.name in GOES_BY_EPOCHS and num_epochs < 2:
        raise InvalidRecipeError(
            f"regularizer {settings.name!s} changes from epoch to epoch and needs at least 2, got 1"
        )

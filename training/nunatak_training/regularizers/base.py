"""Where a regularizer may step in, and the parameters it may touch."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

LAYER_PREFIX = "layers."


class Regularizer(Protocol):
    """Is called at four places of the loop; it keeps hold of the tensors that are trained."""

    def begin_epoch(self, epoch: int) -> None:
        """An epoch (from 1) begins."""
        ...

    def before_forward(self) -> None:
        """The next forward pass reads the parameters as they are after this."""
        ...

    def after_backward(self) -> None:
        """Gradients are there; the optimizer reads them as they are after this."""
        ...

    def after_step(self) -> None:
        """The optimizer has moved the parameters."""
        ...


class Unregularized:
    """Does nothing, anywhere."""

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def before_forward(self) -> None:
        """Do nothing."""

    def after_backward(self) -> None:
        """Do nothing."""

    def after_step(self) -> None:
        """Do nothing."""


def tensors_by_layer(parameters: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The tensors of each layer, from the lowest layer up; neither embeddings nor head.

    Those are what masks apply to: "every layer apart from the input embedding layers and the
    task-specific classification layer" (O'Neill and Dutta 2023, sec. IV).
    """
    layers = defaultdict[int, dict[str, Tensor]](dict)
    for name, tensor in parameters.items():
        if name.startswith(LAYER_PREFIX):
            layers[int(name.split(".")[1])][name] = tensor
    return dict(sorted(layers.items()))

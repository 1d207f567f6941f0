"""The interface of a method's maths."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import InvalidMethodError
from nunatak_model.layer import LayerOverride
from nunatak_model.weights import Shapes


class MethodMaths(Protocol):
    """The layers of a backbone under a method: one class for each member of `Method`."""

    def check(self, config: BackboneConfig) -> None:
        """Raise `InvalidMethodError` unless the settings fit this backbone."""
        ...

    def split_depth(self, config: BackboneConfig) -> int | None:
        """Index of the first layer that differs; None for own embeddings too."""
        ...

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """The exact set of tensors of the branch, without the head."""
        ...

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Fresh tensors to train, in float32: copies of the backbone's, or random ones."""
        ...

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The override at layer `index`, which is at or above the split depth."""
        ...


def check_first_layer(first_layer: int, config: BackboneConfig) -> None:
    """Raise `InvalidMethodError` unless `first_layer` is a layer of the backbone."""
    if not 0 <= first_layer < config.num_layers:
        raise InvalidMethodError(
            f"first_layer must be in [0, {config.num_layers - 1}], got {first_layer} "
            f"(the backbone has {config.num_layers} layers)"
        )


def copies(backbone: Backbone, names: Shapes) -> dict[str, Tensor]:
    """Float32 copies of backbone tensors, which a task then trains."""
    return {name: _float32_copy(backbone, name) for name in names}


def _float32_copy(backbone: Backbone, name: str) -> Tensor:
    tensor = backbone.floating(name)
    if tensor is None:
        raise KeyError(name)
    return tensor.detach().to(torch.float32, copy=True)


def normal(
    shape: tuple[int, ...], *, deviation: float, backbone: Backbone, generator: torch.Generator
) -> Tensor:
    """Random normal tensor in float32 on the backbone's device; drawn on the CPU."""
    return (torch.randn(shape, generator=generator) * deviation).to(backbone.device)

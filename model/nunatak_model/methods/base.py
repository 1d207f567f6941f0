"""The base of a method's maths.

A method stores tensors of its own names under `layers.N.`, and returns for each layer one of the
overrides of `layer.py`, which the mixed forward runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from nunatak_contract.enums import LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_model.architectures import layer_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import QKV, BackboneConfig
from nunatak_model.layer import LayerOverride
from nunatak_model.weights import Shapes

MethodT_co = TypeVar("MethodT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodMaths(ABC, Generic[MethodT_co]):
    """The maths of one member of `Method`."""

    method: MethodT_co
    has_own_layers: ClassVar[bool] = False

    def check(self, config: BackboneConfig) -> None:
        """Raise `invalid_method` unless the settings fit this backbone."""

    @abstractmethod
    def split_depth(self, config: BackboneConfig) -> int | None:
        """Index of the first layer that differs; None for own embeddings too."""

    @abstractmethod
    def shapes_in(self, layer: int, config: BackboneConfig) -> Shapes:
        """The tensors of one layer at or above the split depth."""

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """The exact set of tensors of the branch, without the head."""
        shapes: Shapes = {}
        for layer in range(self.split_depth(config) or 0, config.num_layers):
            shapes |= self.shapes_in(layer, config)
        return shapes

    @abstractmethod
    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Fresh tensors to train, in float32: copies of the backbone's, or random ones."""

    @abstractmethod
    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The override at layer `index`, which is at or above the split depth."""

    def padded(self, alignment: int) -> MethodT_co:
        """Widths rounded up; tasks with equal padded methods share a page of slots."""
        del alignment
        return self.method

    def in_slot(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor `name` as a slot holds it, before the tensor is padded and rounded."""
        del name
        return tensor


def invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_method", problem=problem)


def check_first_layer(first_layer: int, config: BackboneConfig) -> None:
    if not 0 <= first_layer < config.num_layers:
        raise invalid(
            f"first_layer must be in [0, {config.num_layers - 1}], got {first_layer} "
            f"(the backbone has {config.num_layers} layers)"
        )


def map_widths(target: LinearMap, layer: int, config: BackboneConfig) -> tuple[int, int]:
    shapes = layer_shapes(layer, config)
    match target:
        case LinearMap.QUERY | LinearMap.KEY | LinearMap.VALUE:
            return config.qkv_widths[QKV.index(target)], shapes[f"layers.{layer}.qkv.weight"][1]
        case _:
            out, into = shapes[f"layers.{layer}.{target}.weight"]
            return out, into


def copies(backbone: Backbone, names: Shapes) -> dict[str, Tensor]:
    found = dict[str, Tensor]()
    for name in names:
        tensor = backbone.floating(name)
        if tensor is None:
            raise KeyError(name)
        found[name] = tensor.detach().to(torch.float32, copy=True)
    return found


def normal(
    shape: tuple[int, ...], *, deviation: float, backbone: Backbone, generator: torch.Generator
) -> Tensor:
    """In float32 on the backbone's device; drawn on the CPU."""
    return (torch.randn(shape, generator=generator, dtype=torch.float32) * deviation).to(
        backbone.device
    )

"""Low-rank updates of linear maps.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685), sec. 4.1,
eq. 3: `h = W0 x + (alpha / r) B A x`. Here `down` is A and `up` is B, initialised as in peft:
A by Kaiming's uniform rule, B zero.

Query, key and value are separate targets, even if the architecture stores them as one map: an
update B A of that map is three updates with the same A and a third of B's rows each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Lora
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import ChangedMaps, LayerOverride
from nunatak_model.methods.base import MethodMaths, check_first_layer, invalid, map_widths
from nunatak_model.ops.grouped import rounded_up
from nunatak_model.ops.low_rank import LoraUpdate
from nunatak_model.weights import Shapes

MAX_RANK: Final = 1024
"""A limit on memory, not the width: an import writes every map with the adapter's largest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraMaths(MethodMaths[Lora]):
    """Rank-`rank` updates of `targets` in every layer from `first_layer` up."""

    def check(self, config: BackboneConfig) -> None:
        check_first_layer(self.method.first_layer, config)
        check_rank(self.method.rank)
        if len(set(self.method.targets)) != len(self.method.targets):
            raise invalid(
                f"lora targets must be one or more different ones of {', '.join(LinearMap)}, "
                f"got {', '.join(self.method.targets)}"
            )

    def split_depth(self, config: BackboneConfig) -> int:
        return self.method.first_layer

    def shapes_in(self, layer: int, config: BackboneConfig) -> Shapes:
        """Two tensors for each target: `down` [rank, in] and `up` [out, rank]."""
        shapes: Shapes = {}
        for target in self.method.targets:
            out, into = map_widths(target, layer, config)
            shapes[f"layers.{layer}.lora.{target}.down"] = (self.method.rank, into)
            shapes[f"layers.{layer}.lora.{target}.up"] = (out, self.method.rank)
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """`down` uniform in +-1/sqrt(in), `up` zero: the first step starts from the backbone."""
        parameters: dict[str, Tensor] = {}
        for name, shape in self.parameter_shapes(backbone.config).items():
            tensor = torch.zeros(shape, dtype=torch.float32)
            if name.endswith(".down"):
                tensor.uniform_(-1.0, 1.0, generator=generator).div_(math.sqrt(shape[1]))
            parameters[name] = tensor.to(backbone.device)
        return parameters

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        prefix = f"layers.{index}.lora"
        return ChangedMaps(
            inputs={},
            outputs={
                target: LoraUpdate(
                    down=parameters[f"{prefix}.{target}.down"],
                    up=parameters[f"{prefix}.{target}.up"],
                    scale=self.method.scale,
                )
                for target in self.method.targets
            },
        )

    def padded(self, alignment: int) -> Lora:
        """Scale 1, so that updates of all scales share a form."""
        rank = rounded_up(self.method.rank, alignment)
        return self.method.model_copy(update={"rank": rank, "alpha": float(rank)})

    def in_slot(self, name: str, tensor: Tensor) -> Tensor:
        """`up` is scaled in float32, because rounding first costs accuracy."""
        if ".lora." in name and name.endswith(".up"):
            return tensor.float() * self.method.scale
        return tensor


def check_rank(rank: int) -> None:
    if not 1 <= rank <= MAX_RANK:
        raise invalid(f"lora rank must be in [1, {MAX_RANK}], got {rank}")

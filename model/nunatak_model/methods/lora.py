"""Low-rank updates of linear maps.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685), sec. 4.1,
eq. 3: `h = W0 x + (alpha / r) B A x`. Here `down` is A and `up` is B, initialised as in peft:
A by Kaiming's uniform rule, B zero.

Query, key and value are separate targets, even if the architecture stores them as one map. An
update B A of that map is three updates with the same A and a third of B's rows each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nunatak_contract.enums import LoraTarget
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import Lora
from nunatak_model.architectures import layer_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import LayerOverride, LoraLayer, LoraUpdate
from nunatak_model.methods.base import check_first_layer
from nunatak_model.weights import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraMaths:
    """Rank-`rank` updates of `targets` in every layer from `first_layer` up."""

    method: Lora

    def check(self, config: BackboneConfig) -> None:
        """Raise `invalid_method` unless rank, targets and first layer make sense."""
        check_first_layer(self.method.first_layer, config)
        check_rank(self.method.rank, config)
        if len(set(self.method.targets)) != len(self.method.targets):
            raise NunatakError(
                "invalid_method",
                problem="lora targets must be one or more different ones of "
                f"{', '.join(LoraTarget)}, "
                f"got {', '.join(self.method.targets)}",
            )

    def split_depth(self, config: BackboneConfig) -> int:
        """The lowest adapted layer."""
        return self.method.first_layer

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """Two tensors per layer and target: `down` [rank, in] and `up` [out, rank]."""
        shapes: Shapes = {}
        for layer in range(self.method.first_layer, config.num_layers):
            for target in self.method.targets:
                out, into = _widths(target, layer, config)
                shapes[f"layers.{layer}.lora.{target}.down"] = (self.method.rank, into)
                shapes[f"layers.{layer}.lora.{target}.up"] = (out, self.method.rank)
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """`down` uniform in +-1/sqrt(in), `up` zero: the first step starts from the backbone."""
        parameters: dict[str, Tensor] = {}
        for name, shape in self.parameter_shapes(backbone.config).items():
            tensor = torch.zeros(shape)
            if name.endswith(".down"):
                tensor.uniform_(-1.0, 1.0, generator=generator).div_(math.sqrt(shape[1]))
            parameters[name] = tensor.to(backbone.device)
        return parameters

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The frozen layer with this task's updates."""
        prefix = f"layers.{index}.lora"
        return LoraLayer(
            updates={
                target: LoraUpdate(
                    down=parameters[f"{prefix}.{target}.down"],
                    up=parameters[f"{prefix}.{target}.up"],
                    scale=self.method.scale,
                )
                for target in self.method.targets
            }
        )


def check_rank(rank: int, config: BackboneConfig) -> None:
    """Raise `invalid_method` unless updates of this rank are no wider than the backbone."""
    if not 1 <= rank <= config.hidden_width:
        raise NunatakError(
            "invalid_method", problem=f"lora rank must be in [1, {config.hidden_width}], got {rank}"
        )


def _widths(target: LoraTarget, layer: int, config: BackboneConfig) -> tuple[int, int]:
    shapes = layer_shapes(layer, config)
    match target:
        case LoraTarget.QUERY | LoraTarget.KEY | LoraTarget.VALUE:
            out, into = shapes[f"layers.{layer}.qkv.weight"]
            return out // 3, into
        case _:
            out, into = shapes[f"layers.{layer}.{target}.weight"]
            return out, into

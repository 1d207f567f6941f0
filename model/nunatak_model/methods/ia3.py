"""IA3: learned scales of the outputs and inputs of linear maps.

Liu et al. 2022, "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context
Learning" (arXiv:2205.05638), sec. 3.3: keys become `l_k * K`, values `l_v * V`, and the inner
activations of the feed-forward block `l_ff * gamma(W1 x)`, which are the input of its second map.
All scales begin as ones, so that the first step starts from the backbone.

Other maps may be scaled too, as peft's `IA3Config` has it. An output is scaled with its bias.
Query, key and value read one input, which one product serves, so their inputs are never scaled.

Axes: tokens = packed tokens, in, out = widths of the map, slots = places of a page.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Ia3
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import ChangedMaps, LayerOverride
from nunatak_model.methods.base import MethodMaths, check_first_layer, invalid, map_widths
from nunatak_model.ops.grouped import SlotGroups
from nunatak_model.weights import Shapes

SCALABLE_INPUTS = (LinearMap.ATTENTION_OUTPUT, LinearMap.FEEDFORWARD_IN, LinearMap.FEEDFORWARD_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    scale: Float[Tensor, "*slots width"]

    def has_effect(self) -> bool:
        return bool((self.scale != 1).any())

    def apply(
        self,
        changed: Float[Tensor, "tokens width"],
        x: Float[Tensor, "tokens in"],
        groups: SlotGroups | None,
    ) -> None:
        scale = self.scale.to(changed.dtype)
        changed.mul_(scale if groups is None else scale.index_select(0, groups.slot_of))


class OutputScale(_Scale):
    """`y *= scale`, bias included."""

    def merge(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        weight.mul_(self.scale.to(weight.dtype).unsqueeze(1))
        if bias is not None:
            bias.mul_(self.scale.to(bias.dtype))


class InputScale(_Scale):
    """`x *= scale`."""

    def merge(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        del bias
        weight.mul_(self.scale.to(weight.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ia3Maths(MethodMaths[Ia3]):
    """Scales of some maps in every layer from `first_layer` up."""

    def check(self, config: BackboneConfig) -> None:
        check_first_layer(self.method.first_layer, config)
        outputs, inputs = self.method.scaled_outputs, self.method.scaled_inputs
        named = (*outputs, *inputs)
        if not named or len(set(named)) != len(named):
            raise invalid(
                "ia3 scales one or more different maps, each on one side, got scaled_outputs="
                f"{','.join(outputs)} and scaled_inputs={','.join(inputs)}"
            )
        if not set(inputs) <= set(SCALABLE_INPUTS):
            raise invalid(
                f"ia3 scaled_inputs must be of {', '.join(SCALABLE_INPUTS)}, got "
                f"{','.join(inputs)} (query, key and value share one input)"
            )

    def split_depth(self, config: BackboneConfig) -> int:
        return self.method.first_layer

    def shapes_in(self, layer: int, config: BackboneConfig) -> Shapes:
        """One vector for each map: `output` [out] or `input` [in]."""
        prefix, shapes = f"layers.{layer}.ia3", Shapes()
        for target in self.method.scaled_outputs:
            shapes[f"{prefix}.{target}.output"] = map_widths(target, layer, config)[:1]
        for target in self.method.scaled_inputs:
            shapes[f"{prefix}.{target}.input"] = map_widths(target, layer, config)[1:]
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        shapes = self.parameter_shapes(backbone.config)
        return {
            name: torch.ones(shape, dtype=torch.float32, device=backbone.device)
            for name, shape in shapes.items()
        }

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        prefix = f"layers.{index}.ia3"
        return ChangedMaps(
            inputs={
                target: InputScale(scale=parameters[f"{prefix}.{target}.input"])
                for target in self.method.scaled_inputs
            },
            outputs={
                target: OutputScale(scale=parameters[f"{prefix}.{target}.output"])
                for target in self.method.scaled_outputs
            },
        )

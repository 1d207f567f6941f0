"""Bottleneck adapters after both blocks of a layer, with the task's own layer norms.

He et al. 2021, "On the Effectiveness of Adapter-based Tuning for Pretrained Language Model
Adaptation" (arXiv:2106.03164), sec. 2.1, eq. 1: `h' = f2(tanh(f1(h))) + h`, after the
self-attention block and after the feed-forward block, each before the residual addition and the
layer norm; adapters, layer norms and head are trained (placement as in Houlsby et al. 2019,
arXiv:1902.00751, whose near-identity initialisation is used too). `first_layer` above 0 keeps a
trunk below the adapters (AdapterDrop, Rueckle et al. 2021, arXiv:2010.11918).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import InvalidMethodError
from nunatak_model.methods.base import MethodKind, check_first_layer, copies, normal
from nunatak_model.overrides import Adapter, BottleneckLayer, LayerOverride
from nunatak_model.weights import Shapes, linear_from, linear_shapes, norm_from, norm_shapes

INITIAL_DEVIATION = 0.01
"""Houlsby et al. 2019, sec. 3.6: results hold up to about 1e-2 and degrade above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Adapters of width `size` in every layer from `first_layer` up."""

    kind: ClassVar[MethodKind] = MethodKind.BOTTLENECK
    size: int = 64
    first_layer: int = 0

    def check(self, config: BackboneConfig) -> None:
        """Raise `InvalidMethodError` unless size and first layer make sense."""
        check_first_layer(self.first_layer, config)
        if not 1 <= self.size <= config.intermediate_width:
            raise InvalidMethodError(
                f"bottleneck size must be in [1, {config.intermediate_width}], got {self.size}"
            )

    def split_depth(self, config: BackboneConfig) -> int:
        """The lowest adapted layer."""
        return self.first_layer

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """Two adapters and two norms per layer."""
        shapes: Shapes = {}
        for layer in range(self.first_layer, config.num_layers):
            shapes |= self._adapter_shapes(f"layers.{layer}.attention_adapter", config)
            shapes |= norm_shapes(f"layers.{layer}.attention_norm", config.hidden_width)
            shapes |= self._adapter_shapes(f"layers.{layer}.feedforward_adapter", config)
            shapes |= norm_shapes(f"layers.{layer}.output_norm", config.hidden_width)
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Near-identity adapters; copies of the backbone's norms."""
        shapes = self.parameter_shapes(backbone.config)
        norms = {name: shape for name, shape in shapes.items() if "_norm." in name}
        parameters = copies(backbone, norms)
        for name, shape in shapes.items():
            if name not in norms:
                deviation = INITIAL_DEVIATION if name.endswith(".weight") else 0.0
                parameters[name] = normal(
                    shape, deviation=deviation, backbone=backbone, generator=generator
                )
        return parameters

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The frozen layer with this task's adapters and norms."""
        prefix = f"layers.{index}"
        return BottleneckLayer(
            attention_adapter=_adapter_from(parameters, f"{prefix}.attention_adapter"),
            attention_norm=norm_from(parameters, f"{prefix}.attention_norm"),
            feedforward_adapter=_adapter_from(parameters, f"{prefix}.feedforward_adapter"),
            output_norm=norm_from(parameters, f"{prefix}.output_norm"),
        )

    def _adapter_shapes(self, prefix: str, config: BackboneConfig) -> Shapes:
        width = config.hidden_width
        return {
            **linear_shapes(f"{prefix}.down", out=self.size, into=width),
            **linear_shapes(f"{prefix}.up", out=width, into=self.size),
        }


def _adapter_from(parameters: Mapping[str, Tensor], prefix: str) -> Adapter:
    return Adapter(
        down=linear_from(parameters, f"{prefix}.down"), up=linear_from(parameters, f"{prefix}.up")
    )

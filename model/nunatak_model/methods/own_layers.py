"""Own copies of the top k layers.

Lee, Tang, Lin 2019, "What Would Elsa Do? Freezing Layers During Transformer Fine-Tuning"
(arXiv:1911.03090), sec. 3: embeddings and the first N of L layers stay frozen, k = L - N. A norm
over the encoder's output (ModernBERT) belongs to the last layer, so it is the task's own too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nunatak_model.architectures import layer_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import InvalidMethodError
from nunatak_model.methods.base import MethodKind, copies
from nunatak_model.overrides import LayerOverride, OwnLayer
from nunatak_model.weights import Shapes, layer_from


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """The top `num_layers` layers are the task's own."""

    kind: ClassVar[MethodKind] = MethodKind.TOPK
    num_layers: int = 2

    def check(self, config: BackboneConfig) -> None:
        """Raise `InvalidMethodError` unless the backbone has that many layers."""
        if not 1 <= self.num_layers <= config.num_layers:
            raise InvalidMethodError(
                f"topk layers must be in [1, {config.num_layers}], got {self.num_layers} "
                f"(the backbone has {config.num_layers} layers)"
            )

    def split_depth(self, config: BackboneConfig) -> int:
        """The lowest own layer."""
        return config.num_layers - self.num_layers

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """All tensors of the top layers."""
        shapes: Shapes = {}
        for layer in range(self.split_depth(config), config.num_layers):
            shapes |= layer_shapes(layer, config)
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Copies of the backbone's top layers."""
        return copies(backbone, self.parameter_shapes(backbone.config))

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The task's own layer."""
        return OwnLayer(weights=layer_from(parameters, index))

"""A full copy: embeddings and every layer are the task's own (full fine-tuning, the baseline)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nunatak_model.architectures import encoder_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.methods.base import MethodKind, copies
from nunatak_model.overrides import LayerOverride, OwnLayer
from nunatak_model.weights import Shapes, layer_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """Nothing is shared."""

    kind: ClassVar[MethodKind] = MethodKind.FULL

    def check(self, config: BackboneConfig) -> None:
        """Accept every backbone."""

    def split_depth(self, config: BackboneConfig) -> None:
        """None: the task owns its embeddings too."""

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """All tensors of the encoder."""
        return encoder_shapes(config)

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """A copy of the whole backbone."""
        return copies(backbone, self.parameter_shapes(backbone.config))

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """The task's own layer."""
        return OwnLayer(weights=layer_from(parameters, index))

"""Methods whose tasks own whole layers: the top k, all of them, or none.

Lee, Tang, Lin 2019, "What Would Elsa Do? Freezing Layers During Transformer Fine-Tuning"
(arXiv:1911.03090), sec. 3: embeddings and the first N of L layers stay frozen, k = L - N; N = L is
a head alone. A norm over the encoder's output (ModernBERT) belongs to the last layer, so it is the
task's own too. Full fine-tuning, the baseline, owns the embeddings as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nunatak_contract.methods import Full, HeadOnly, TopK
from nunatak_model.architectures import encoder_shapes, layer_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import LayerOverride, OwnLayer
from nunatak_model.methods.base import MethodMaths, MethodT_co, copies, invalid
from nunatak_model.weights import Shapes, layer_from


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayersMaths(MethodMaths[MethodT_co]):
    """Each layer from the split depth up is the task's own, and begins as the backbone's."""

    has_own_layers = True

    def shapes_in(self, layer: int, config: BackboneConfig) -> Shapes:
        return layer_shapes(layer, config)

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        return copies(backbone, self.parameter_shapes(backbone.config))

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        return OwnLayer(weights=layer_from(parameters, index))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKMaths(OwnLayersMaths[TopK]):
    """The top `num_layers` layers are the task's own."""

    def check(self, config: BackboneConfig) -> None:
        if self.method.num_layers > config.num_layers:
            raise invalid(
                f"topk layers must be in [1, {config.num_layers}], got {self.method.num_layers} "
                f"(the backbone has {config.num_layers} layers)"
            )

    def split_depth(self, config: BackboneConfig) -> int:
        return config.num_layers - self.method.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class FullMaths(OwnLayersMaths[Full]):
    """Embeddings and every layer are the task's own; nothing is shared."""

    def split_depth(self, config: BackboneConfig) -> None:
        """None: the task owns its embeddings too."""

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        return encoder_shapes(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOnlyMaths(OwnLayersMaths[HeadOnly]):
    """Nothing but a head on the frozen backbone; the branch has no layers."""

    def split_depth(self, config: BackboneConfig) -> int:
        return config.num_layers

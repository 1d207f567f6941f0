"""Bottleneck adapters after the blocks of a layer, by default with the task's own layer norms.

He et al. 2021, "On the Effectiveness of Adapter-based Tuning for Pretrained Language Model
Adaptation" (arXiv:2106.03164), sec. 2.1, eq. 1: `h' = f2(tanh(f1(h))) + h`, after the
self-attention block and after the feed-forward block, each before the residual addition and the
layer norm. Adapters, layer norms and head are trained. The placement and the near-identity
initialisation are from Houlsby et al. 2019 (arXiv:1902.00751). `first_layer` above 0 keeps a trunk
below the adapters (AdapterDrop, Rueckle et al. 2021, arXiv:2010.11918).

In ModernBERT, norms stand before the blocks. Adapters stand in the same place, after the block and
before the residual addition. The trained norms are the one or two norms of the layer. The norm over
the encoder's output stays frozen.

The other settings describe adapters from other programs, which run here unchanged: frozen norms,
other non-linearities, and the placement of Pfeiffer et al. 2020 (MAD-X, arXiv:2005.00052, sec.
3.2.1). There, only the feed-forward block has an adapter, which reads the norm of the residual sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nunatak_contract.enums import AdaptedBlocks, AdapterInput, Norms
from nunatak_contract.methods import Bottleneck
from nunatak_model.architectures import POST_NORM, layer_shapes
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import Adapter, BottleneckLayer, LayerOverride
from nunatak_model.methods.base import MethodMaths, check_first_layer, copies, invalid, normal
from nunatak_model.ops.grouped import rounded_up
from nunatak_model.weights import Norm, Shapes, linear_from, linear_shapes, norm_if_any

INITIAL_DEVIATION = 0.01
"""Houlsby et al. 2019, sec. 3.6: results are stable up to about 1e-2 and worse above."""

ATTENTION = ("attention_adapter", "attention_norm")
FEEDFORWARD = ("feedforward_adapter", "output_norm")
"""Our names of a block's adapter and of the norm after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckMaths(MethodMaths[Bottleneck]):
    """Adapters of width `size` in every layer from `first_layer` up."""

    def check(self, config: BackboneConfig) -> None:
        check_first_layer(self.method.first_layer, config)
        size = self.method.size
        if not 1 <= size <= config.intermediate_width:
            raise invalid(
                f"bottleneck size must be in [1, {config.intermediate_width}], got {size}"
            )
        if self.method.reads is AdapterInput.NORMED_SUM:
            if self.method.norms is not Norms.FROZEN:
                raise invalid(
                    f"adapters that read {self.method.reads} run its norm twice and need norms="
                    f"{Norms.FROZEN}, got norms={self.method.norms}"
                )
            if config.model_type not in POST_NORM:
                raise invalid(
                    f"adapters read {self.method.reads} only where norms follow the blocks "
                    f"({', '.join(POST_NORM)}), got a {config.model_type} backbone"
                )

    def split_depth(self, config: BackboneConfig) -> int:
        return self.method.first_layer

    def shapes_in(self, layer: int, config: BackboneConfig) -> Shapes:
        prefix, frozen = f"layers.{layer}", layer_shapes(layer, config)
        shapes: Shapes = {}
        for adapter, norm in self._places():
            shapes |= self._adapter_shapes(f"{prefix}.{adapter}", config)
            if self.method.norms is Norms.OWN:
                own = f"{prefix}.{norm}."
                shapes |= {name: it for name, it in frozen.items() if name.startswith(own)}
        return shapes

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
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
        prefix = f"layers.{index}"
        adapters, norms = dict[str, Adapter](), dict[str, Norm | None]()
        for adapter, norm in self._places():
            adapters[adapter] = Adapter(
                down=linear_from(parameters, f"{prefix}.{adapter}.down"),
                up=linear_from(parameters, f"{prefix}.{adapter}.up"),
                activation=self.method.activation,
                reads=self.method.reads,
            )
            if self.method.norms is Norms.OWN:
                norms[norm] = norm_if_any(parameters, f"{prefix}.{norm}")
        return BottleneckLayer(
            attention_adapter=adapters.get(ATTENTION[0]),
            attention_norm=norms.get(ATTENTION[1]),
            feedforward_adapter=adapters.get(FEEDFORWARD[0]),
            output_norm=norms.get(FEEDFORWARD[1]),
        )

    def padded(self, alignment: int) -> Bottleneck:
        return self.method.model_copy(update={"size": rounded_up(self.method.size, alignment)})

    def _places(self) -> tuple[tuple[str, str], ...]:
        match self.method.blocks:
            case AdaptedBlocks.BOTH:
                return ATTENTION, FEEDFORWARD
            case AdaptedBlocks.ATTENTION:
                return (ATTENTION,)
            case AdaptedBlocks.FEEDFORWARD:
                return (FEEDFORWARD,)

    def _adapter_shapes(self, prefix: str, config: BackboneConfig) -> Shapes:
        width = config.hidden_width
        return {
            **linear_shapes(f"{prefix}.down", out=self.method.size, into=width),
            **linear_shapes(f"{prefix}.up", out=width, into=self.method.size),
        }

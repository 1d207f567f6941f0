"""Nothing but a head on the frozen backbone (N = L in the tables of arXiv:1911.03090)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import InvalidMethodError
from nunatak_model.methods.base import MethodKind
from nunatak_model.overrides import LayerOverride
from nunatak_model.weights import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOnly:
    """The branch has no layers."""

    kind: ClassVar[MethodKind] = MethodKind.HEAD

    def check(self, config: BackboneConfig) -> None:
        """Accept every backbone."""

    def split_depth(self, config: BackboneConfig) -> int:
        """The whole encoder is trunk."""
        return config.num_layers

    def parameter_shapes(self, config: BackboneConfig) -> Shapes:
        """No tensors."""
        return {}

    def initial_parameters(
        self, backbone: Backbone, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """No tensors."""
        return {}

    def layer(self, index: int, parameters: Mapping[str, Tensor]) -> LayerOverride:
        """Raise: no layer is at or above the split depth."""
        raise InvalidMethodError(f"a head alone has no branch layers, asked for layer {index}")

"""Bottleneck adapters of unlike sizes as one `Bottleneck`, exactly.

`Bottleneck` has one size, and adapters in every layer from its first. Smaller adapters are filled
with zero rows of `down` and zero columns of `up`, and layers without one get zeros: whatever the
non-linearity makes of zero is multiplied by zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nunatak_model import BackboneConfig, Bottleneck
from nunatak_model.weights import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """The two maps of an adapter as they were stored."""

    down: Linear
    up: Linear


def normalised_bottleneck(
    settings: Bottleneck, adapters: Mapping[tuple[int, str], StoredAdapter], config: BackboneConfig
) -> tuple[Bottleneck, dict[str, Tensor]]:
    """Write adapters as one method with its float32 parameters.

    Args:
        settings: what all adapters have in common; size and first layer are found here.
        adapters: layer and our name of the place (`attention_adapter`) -> adapter; at least one.
        config: the backbone's.

    Raises:
        InvalidMethodError: a size is beyond what our method takes.
    """
    method = replace(
        settings,
        size=max(len(adapter.down.weight) for adapter in adapters.values()),
        first_layer=min(layer for layer, _ in adapters),
    )
    method.check(config)
    parameters = {
        name: torch.zeros(shape) for name, shape in method.parameter_shapes(config).items()
    }
    for (layer, place), adapter in adapters.items():
        for part, linear in (("down", adapter.down), ("up", adapter.up)):
            prefix, (out, into) = f"layers.{layer}.{place}.{part}", linear.weight.shape
            parameters[f"{prefix}.weight"][:out, :into] = linear.weight
            if linear.bias is not None:
                parameters[f"{prefix}.bias"][:out] = linear.bias
    return method, parameters

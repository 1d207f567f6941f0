"""Low-rank updates of unlike ranks and scales as one `Lora`, exactly.

`Lora` has one rank and one scale, for all targets and every layer from its first. An adapter that
gives each map its own, or adapts a map in some layers only, is written with the largest rank:
zero rows of `down` and zero columns of `up` add nothing, and where scales differ they are
multiplied into `up`. The zeros cost memory and time; in return a batch of tasks stays one product.

Axes: rank, in, out = of one update.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from nunatak_model import BackboneConfig, Lora, LoraTarget
from nunatak_model.layer import LoraUpdate

Updates = Mapping[tuple[int, LoraTarget], LoraUpdate]
"""Layer and target -> its update; at least one."""


def normalised_lora(updates: Updates, config: BackboneConfig) -> tuple[Lora, dict[str, Tensor]]:
    """Write updates as one method with its float32 parameters.

    Semantics:
        for each (layer, target), x:
            scale * (x @ down.T) @ up.T  is the same before and after, zero where there was none

    Raises:
        InvalidMethodError: a rank is beyond what our method takes.
    """
    rank = max(update.down.shape[0] for update in updates.values())
    scales = {update.scale for update in updates.values()}
    scale = min(scales) if len(scales) == 1 and min(scales) > 0.0 else 1.0
    method = Lora(
        rank=rank,
        alpha=scale * rank,
        targets=tuple(target for target in LoraTarget if any(it == target for _, it in updates)),
        first_layer=min(layer for layer, _ in updates),
    )
    method.check(config)
    parameters = {
        name: torch.zeros(shape) for name, shape in method.parameter_shapes(config).items()
    }
    for (layer, target), update in updates.items():
        prefix, own_rank = f"layers.{layer}.lora.{target}", update.down.shape[0]
        parameters[f"{prefix}.down"][:own_rank] = update.down
        parameters[f"{prefix}.up"][:, :own_rank] = update.up * (update.scale / scale)
    return method, parameters

"""The low-rank update of a linear map's outputs (Hu et al. 2021, arXiv:2106.09685, eq. 3).

Axes: tokens = packed tokens, in, out = widths of the map, slots = places of a page.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_model.ops.grouped import SlotGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraUpdate:
    """`y += scale * (x @ down.T) @ up.T`."""

    down: Float[Tensor, "*slots rank in"]
    up: Float[Tensor, "*slots out rank"]
    scale: float

    def has_effect(self) -> bool:
        return bool(self.up.any()) and bool(self.down.any())

    def apply(
        self,
        changed: Float[Tensor, "tokens out"],
        x: Float[Tensor, "tokens in"],
        groups: SlotGroups | None,
    ) -> None:
        down, up = self.down, self.up
        if down.dtype is not x.dtype:
            down, up = down.to(x.dtype), up.to(x.dtype)
        if groups is None:
            inner = functional.linear(x, down)
            if inner.dtype is changed.dtype:
                changed.addmm_(inner, up.t(), alpha=self.scale)
            else:
                # Under autocast, which passes over operators that write in place.
                changed.add_(functional.linear(inner, up), alpha=self.scale)
        else:
            inner = groups.product(groups.pad(x), down)
            changed.add_(groups.unpad(groups.product(inner, up)), alpha=self.scale)

    def merge(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        """Add the product of the factors to the weight, in place (Hu et al. 2021, sec. 4.1)."""
        del bias
        weight.add_(self.up.to(weight.dtype) @ self.down.to(weight.dtype), alpha=self.scale)

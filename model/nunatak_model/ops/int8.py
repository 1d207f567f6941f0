"""Frozen linear maps in 8-bit integers, with a scale for each output and for each token.

The absolute maximum of an output's weights, and of a token's inputs, becomes 127. This is symmetric
quantization with "dynamic" scales of tokens. Dettmers et al. 2022 (arXiv:2208.07339), sec. 2.1,
"vector-wise". No token's numbers depend on another's, and sums of integers are exact in any order,
so a row's product has the same bits in every batch.

Axes: tokens = packed tokens, in, out = widths of the map.
"""

# torch's autograd functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from nunatak_model.weights import Linear

LARGEST = 127
SCALE = "weight_scale"
"""Suffix of the tensor that belongs to `weight`."""


def quantized(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, with the weights of the layers' linear maps as integers with scales."""
    found = dict[str, Tensor]()
    for name, tensor in parameters.items():
        prefix, _, kind = name.rpartition(".")
        if name.startswith("layers.") and kind == "weight" and tensor.ndim == 2:
            weight = tensor.float()
            scale = _scale(weight)
            found[name] = _rounded(weight, scale)
            found[f"{prefix}.{SCALE}"] = scale.squeeze(1)
        else:
            found[name] = tensor
    return found


def restored(weight: Int8[Tensor, "out in"], scale: Float[Tensor, " out"]) -> Tensor:
    """The weight that the integers stand for, in float32."""
    return weight.float() * scale.unsqueeze(1)


def int8_product(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    """`x @ weight.T + bias` of a quantized map, in the number format of `x`.

    Gradients flow to `x` as through the weight that the integers stand for.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        product: Tensor = _Product.apply(x, linear)  # pyright: ignore[reportAssignmentType]
        return product
    return _product(x, linear)


def _product(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    if linear.scale is None:
        raise TypeError("an int8 product needs a quantized map")
    scale = _scale(x)
    sums = torch.ops.aten._int_mm(_rounded(x, scale), linear.weight.t())  # noqa: SLF001 - no public name
    y = torch.mul(sums, linear.scale)
    y = y.mul_(scale) if linear.bias is None else torch.addcmul(linear.bias.float(), y, scale)
    return y.to(x.dtype)


def _scale(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows 1"]:
    # Any scale is right for a row of zeros.
    return x.abs().amax(1, keepdim=True).float().div_(LARGEST).clamp_min_(torch.finfo().tiny)


def _rounded(
    x: Float[Tensor, "rows columns"], scale: Float[Tensor, "rows 1"]
) -> Int8[Tensor, "rows columns"]:
    return (x / scale).round_().to(torch.int8)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Linear) -> Tensor:  # noqa: ANN401 - torch leaves `ctx` untyped
        ctx.linear = linear
        return _product(x, linear)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - the same
        (gradient,) = gradients
        linear: Linear = ctx.linear
        if linear.scale is None:
            raise TypeError("an int8 product needs a quantized map")
        return gradient @ restored(linear.weight, linear.scale).to(gradient.dtype), None

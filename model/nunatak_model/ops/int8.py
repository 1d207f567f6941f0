"""Linear maps and the table of words in 8-bit integers.

A weight has a scale for each output, an input for each token, and the table for each word: the
absolute maximum becomes 127. This is symmetric quantization, "dynamic" for tokens (Dettmers et al.
2022, arXiv:2208.07339, sec. 2.1, "vector-wise"). No token's numbers depend on another's, and sums
of integers are exact in any order, so a row's product has the same bits in every batch.

Axes: tokens = packed tokens, in, out = widths of the map.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from timeit import repeat
from typing import Any

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor
from torch.nn import functional

from nunatak_model.weights import WORDS, Linear

LARGEST = 127
SCALE = "_scale"
"""Suffix of the tensor that belongs to a tensor of integers."""
ROWS = 4096
"""Rows that are quantized at once, because a table of words is large."""
BLOCK, GROUP = 16, 4
"""Outputs and inputs that lie together in a packed weight."""
PackIntegers = Callable[[Tensor], Tensor]
"""Lays out the integers of a weight [out, in] for a product."""
EXACT_INPUTS = 1024
"""Products of so many integers are summed exactly in float32: 127**2 * 1024 < 2**24."""


def quantized(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors; words and the weights of layers become integers with a scale a row."""
    found = dict[str, Tensor]()
    for name, tensor in parameters.items():
        if is_quantizable(name, tensor.shape) and tensor.is_floating_point():
            scale = torch.cat([_largest(rows) for rows in torch.split(tensor, ROWS)])
            scale = scale.div_(LARGEST).clamp_min_(torch.finfo().tiny)
            parts = zip(torch.split(tensor, ROWS), torch.split(scale, ROWS), strict=True)
            found[name] = torch.cat([(rows / own).round_().to(torch.int8) for rows, own in parts])
            found[scale_of(name)] = scale.squeeze(1)
        else:
            found[name] = tensor
    return found


def is_quantizable(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is the table of words, or the weight of a layer's linear map."""
    is_map = name.startswith("layers.") and name.endswith(".weight") and len(shape) == 2
    return is_map or name == WORDS


def count_parameters(parameters: Mapping[str, Tensor]) -> int:
    """The number of parameters; the scales of quantized weights are none."""
    return sum(it.numel() for name, it in parameters.items() if not name.endswith(SCALE))


def scale_of(weight: str) -> str:
    """The name of the scale of a quantized weight."""
    return f"{weight}{SCALE}"


def floating_parameters(parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors in floating point: integers times their scales."""
    for name, tensor in parameters.items():
        if not tensor.is_floating_point():
            yield name, restored(tensor, parameters[scale_of(name)])
        elif not name.endswith(SCALE):
            yield name, tensor


def restored(
    weight: Int8[Tensor, "out in"] | UInt8[Tensor, "blocks groups 16 4"],
    scale: Float[Tensor, " out"],
) -> Float[Tensor, "out in"]:
    """The weight that the integers stand for, in float32."""
    if weight.dtype is torch.uint8:
        weight = (weight ^ 128).view(torch.int8).transpose(1, 2).flatten(2).flatten(0, 1)
    return weight[: len(scale)].float() * scale.unsqueeze(1)


def packed_integers(weight: Int8[Tensor, "out in"]) -> UInt8[Tensor, "blocks groups 16 4"]:
    """The weight as the native product reads it: blocks of outputs, and 128 added to each number.

    Semantics:
        packed[b, g, o, i] = weight[16 * b + o, 4 * g + i] + 128
    """
    rows = functional.pad(weight, (0, 0, 0, -len(weight) % BLOCK))
    blocks = rows.view(-1, BLOCK, rows.shape[1] // GROUP, GROUP).transpose(1, 2).contiguous()
    return blocks.view(torch.uint8) ^ 128


def int8_product(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    """`x @ weight.T + bias` of a quantized map, in the number format of `x`.

    Gradients flow to `x` as through the weight that the integers stand for.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        product: Tensor = _Product.apply(x, linear)
        return product
    return _product(x, linear)


def _product(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    if linear.scale is None:
        raise TypeError("an int8 product needs a quantized map")
    largest = _largest(x).clamp_min_(LARGEST * torch.finfo().tiny)
    # All results of the token become NaN: an infinite scale would give finite ones, as ReLU(-inf).
    largest.masked_fill_(largest.isinf(), torch.nan)
    # A number divided by a tensor would be the rounded reciprocal times the number.
    inverse = torch.full_like(largest, LARGEST).div_(largest)
    sums = _sums((x * inverse).round_().to(torch.int8), linear.weight)
    y, token_scale = torch.mul(sums, linear.scale), largest.div_(LARGEST)
    if linear.bias is None:
        return y.mul_(token_scale).to(x.dtype)
    y = torch.addcmul(linear.bias.float(), y, token_scale)
    return y.to(x.dtype)


def _largest(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows 1"]:
    return x.abs().amax(1, keepdim=True).float()


def _sums(
    x: Int8[Tensor, "tokens in"], weight: Int8[Tensor, "out in"]
) -> Int[Tensor, "tokens out"]:
    return _integer_sums(x, weight) if has_integer_product() else _float_sums(x, weight)


def _integer_sums(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.aten._int_mm(x, weight.t())  # noqa: SLF001 - no public name


def _float_sums(x: Tensor, weight: Tensor) -> Tensor:
    sums = torch.zeros(len(x), len(weight), dtype=torch.int32)
    parts = (torch.split(it, EXACT_INPUTS, dim=1) for it in (x, weight))
    for own, columns in zip(*parts, strict=True):
        sums += functional.linear(own.float(), columns.float()).int()
    return sums


@cache
def has_integer_product() -> bool:
    """Whether torch's integer product is exact on this CPU, and faster than one of floats.

    Without VNNI it saturates at 16 bits, or it is a plain loop that takes up to 60 times as long.
    """
    x = torch.full((128, 256), LARGEST, dtype=torch.int8)
    fast, plain = (
        min(repeat(partial(sums, x, x), number=1)) for sums in (_integer_sums, _float_sums)
    )
    return fast < plain and bool((_integer_sums(x, x) == 256 * LARGEST**2).all())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Linear) -> Tensor:  # noqa: ANN401 - torch leaves `ctx` untyped  # pyrefly: ignore[bad-override] - torch takes any arguments
        ctx.linear = linear
        return _product(x, linear)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - the same
        (gradient,) = gradients
        linear: Linear = ctx.linear
        if linear.scale is None:
            raise TypeError("an int8 product needs a quantized map")
        return gradient @ restored(linear.weight, linear.scale).to(gradient.dtype), None

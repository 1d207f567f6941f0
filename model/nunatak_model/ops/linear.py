"""Operations on each token alone: linear maps, activations, norms.

A linear map is plain, packed, grouped (`ops.grouped`) or in 8-bit integers (`ops.int8`).

A packed weight lies in the blocked layout of oneDNN, the CPU's matrix kernels, or of the native
product of integers. Products need not rearrange a packed weight. Packing keeps the numbers and the
bytes, but cannot have gradients: packing is for serving.

Axes: tokens = packed tokens, in, out = widths of the map, width = hidden width, or the width
of one head.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation
from nunatak_model.ops import native
from nunatak_model.ops.grouped import SlotGroups, grouped_layer_norm, grouped_linear
from nunatak_model.ops.int8 import GROUP, PackIntegers, int8_product
from nunatak_model.weights import WORDS, Linear, Norm

EXACT_TOKENS = 16
"""Products of at most so many tokens are not rounded up."""
MIN_PACKED_ELEMENTS = {torch.float32: native.MAX_FACTOR_ELEMENTS, torch.bfloat16: 2**14}
"""Smaller weights stay plain, because the call of oneDNN costs more than their product.

Measured on Zen 4. bfloat16 products use oneDNN in both layouts, so packing pays for smaller
weights.
"""


def apply_linear(
    x: Float[Tensor, "tokens in"],
    linear: Linear,
    *,
    activation: Activation | None = None,
    groups: SlotGroups | None = None,
) -> Float[Tensor, "tokens out"]:
    """Run a linear map and an activation; with `groups`, stacked maps, each for its tokens.

    Semantics:
        for token in tokens:
            y[token] = activation(x[token] @ weight.T + bias)
    """
    if linear.is_packed_integers:
        return native.integer_linear(x, [(x.shape[0], linear)], activation)
    if groups is None:
        y = _product(x, linear)
    else:
        y = grouped_linear(x, linear.weight, linear.bias, groups)
    return y if activation is None else activate(y, activation, in_place=not y.requires_grad)


def activate(x: Tensor, activation: Activation, *, in_place: bool = False) -> Tensor:
    """Apply a non-linearity; `in_place` allows to overwrite `x`, which saves fresh memory."""
    match activation:
        case Activation.GELU:
            return torch.ops.aten.gelu_(x) if in_place else functional.gelu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return functional.relu(x)
        case Activation.TANH:
            return torch.tanh(x)
        case Activation.SILU:
            return functional.silu(x)
        case Activation.LEAKY_RELU:
            return functional.leaky_relu(x)


@runtime_checkable
class ApplyNorm(Protocol):
    """A norm of each token: `layer_norm` or `rms_norm`."""

    def __call__(
        self,
        x: Float[Tensor, "tokens *heads width"],
        norm: Norm,
        *,
        epsilon: float,
        groups: SlotGroups | None = None,
    ) -> Float[Tensor, "tokens *heads width"]:
        """Normalise each token; with `groups`, by stacked parameters."""
        ...


def layer_norm(
    x: Float[Tensor, "tokens width"],
    norm: Norm | None,
    *,
    epsilon: float,
    groups: SlotGroups | None = None,
) -> Float[Tensor, "tokens width"]:
    """Normalise each token over its width, if there is a norm.

    With `groups`, gains and offsets are stacked.

    Semantics:
        for token in tokens:
            centred = x[token] - mean(x[token])
            y[token] = centred / sqrt(mean(centred**2) + epsilon) * norm.weight + norm.bias
    """
    if norm is None:
        return x
    if groups is not None:
        return grouped_layer_norm(x, norm.weight, norm.bias, groups, epsilon=epsilon)
    return torch.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, epsilon)


def rms_norm(
    x: Float[Tensor, "tokens *heads width"],
    norm: Norm,
    *,
    epsilon: float,
    groups: SlotGroups | None = None,
) -> Float[Tensor, "tokens *heads width"]:
    """Divide each token, or each head of it, by its root mean square (Zhang and Sennrich 2019).

    arXiv:1910.07467, eq. 4. Such a norm has no offset. With `groups`, gains are stacked.

    Semantics:
        for token in tokens:
            y[token] = x[token] / sqrt(mean(x[token]**2) + epsilon) * norm.weight
    """
    gain = norm.weight
    if groups is not None:
        gain = gain.index_select(0, groups.slot_of)
        gain = gain.view(len(x), *(1 for _ in x.shape[1:-1]), -1)
    return functional.rms_norm(x, x.shape[-1:], eps=epsilon) * gain


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch, on this CPU, multiplies by packed weights."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    mkldnn = torch.ops.mkldnn
    match dtype:
        case torch.float32:
            return hasattr(mkldnn, "_linear_pointwise")
        case torch.bfloat16:
            return hasattr(mkldnn, "_linear_pointwise") and mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
        case _:
            return False


def packed(
    parameters: Mapping[str, Tensor], pack_integers: PackIntegers | None = None
) -> dict[str, Tensor]:
    """The same tensors, with the weights of the layers' large linear maps packed.

    Integers are packed by `pack_integers`, if there is a native product that reads them.
    """

    def in_layout(name: str, tensor: Tensor) -> Tensor:
        is_map = name != WORDS and tensor.dtype is torch.int8
        if is_map and pack_integers and tensor.shape[1] % GROUP == 0:
            return pack_integers(tensor)
        return _pack(tensor) if _is_large_linear(name, tensor) else tensor

    return {name: in_layout(name, tensor) for name, tensor in parameters.items()}


def _product(x: Tensor, linear: Linear) -> Tensor:
    if linear.weight.is_mkldnn:
        return _packed_product(x, linear)
    if linear.scale is not None:
        return int8_product(x, linear)
    return functional.linear(x, linear.weight, linear.bias)


def plain(tensor: Tensor) -> Tensor:
    """The tensor itself, or a plain copy of a packed one."""
    return tensor.to_dense() if tensor.is_mkldnn else tensor


def _is_large_linear(name: str, tensor: Tensor) -> bool:
    return (
        name.startswith("layers.")
        and name.endswith(".weight")
        and tensor.ndim == 2
        and can_pack(tensor.dtype, tensor.device)
        and tensor.numel() >= MIN_PACKED_ELEMENTS[tensor.dtype]
    )


def _packed_product(x: Tensor, linear: Linear) -> Tensor:
    # oneDNN makes code for each shape that it meets, and keeps the code of 1,024 shapes.
    more = num_computed(len(x)) - len(x)
    rows = _with_rows(x, len(x) + more) if more else x
    # The kernel can also run the activation, but its GELU takes four times as long as torch's.
    y = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - no public name
        rows, linear.weight, linear.bias, "none", [], ""
    )
    return y[: len(x)] if more else y


def _with_rows(x: Float[Tensor, "tokens width"], num_rows: int) -> Float[Tensor, "rows width"]:
    """Return `x` and more rows of any values: those that follow in memory, or a copy and zeros."""
    width = x.shape[1]
    end = x.storage_offset() + num_rows * width
    if x.is_contiguous() and end * x.element_size() <= x.untyped_storage().nbytes():
        return x.as_strided((num_rows, width), (width, 1))
    return torch.cat((x, x.new_zeros(num_rows - len(x), width)))


def num_computed(num_tokens: int) -> int:
    """The tokens of a packed product: up to an eighth more, so that few shapes are in use."""
    if num_tokens <= EXACT_TOKENS:
        return num_tokens
    step = 1 << (num_tokens.bit_length() - 4)
    return -(-num_tokens // step) * step


def _pack(weight: Float[Tensor, "out in"]) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001 - no public name

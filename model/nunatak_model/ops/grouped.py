"""Grouped products: the maps of many tasks, each over its own tokens, in one kernel.

Axes: tokens = packed tokens of the groups, slots = places of a page, in, out = widths of a map.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn import functional

from nunatak_model.config import BackboneConfig
from nunatak_model.ops.device import to_device

ALIGNMENT_BYTES = 16
"""To which the kernel wants the widths of its operands padded."""
GROUPED_DTYPE = torch.bfloat16
GROUPED_CAPABILITIES = (9, 10)
"""Major compute capabilities with the kernel (Hopper, Blackwell); elsewhere torch loops, and waits
for the device to learn the bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroups:
    """Which tokens belong to which slot; tokens lie in the order of slots."""

    ends: Int32[Tensor, " slots"]
    """Where the tokens of each slot end; those of a slot without tokens end where they begin."""
    slot_of: Int[Tensor, " tokens"]


def slot_groups(
    members: Sequence[tuple[int, int]], *, num_slots: int, device: torch.device
) -> SlotGroups:
    """Groups of (slot, number of tokens), in ascending order of slots."""
    counts = [0] * num_slots
    for slot, num_tokens in members:
        counts[slot] += num_tokens
    slot_of = [slot for slot, num_tokens in enumerate(counts) for _ in range(num_tokens)]
    return SlotGroups(
        ends=to_device(list(accumulate(counts)), device, dtype=torch.int32),
        slot_of=to_device(slot_of, device),
    )


def grouped_product(
    x: Float[Tensor, "tokens in"], weight: Float[Tensor, "slots out in"], groups: SlotGroups
) -> Float[Tensor, "tokens out"]:
    """`x @ weight[slot].T`, with the weight of each token's slot.

    Semantics:
        for slot, (begin, end) in enumerate(bounds of its tokens):
            y[begin:end] = x[begin:end] @ weight[slot].T
    """
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=groups.ends)


def grouped_linear(
    x: Float[Tensor, "tokens in"],
    weight: Float[Tensor, "slots out in"],
    bias: Float[Tensor, "slots out"] | None,
    groups: SlotGroups,
) -> Float[Tensor, "tokens out"]:
    """The product, and the bias of each token's slot."""
    y = grouped_product(x, weight, groups)
    return y if bias is None else y.add_(bias.index_select(0, groups.slot_of))


def grouped_layer_norm(
    x: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "slots width"],
    bias: Float[Tensor, "slots width"] | None,
    groups: SlotGroups,
    *,
    epsilon: float,
) -> Float[Tensor, "tokens width"]:
    """Normalise each token; gain and offset are those of its slot.

    In float32 until the end, as the kernel for one gain rounds once.
    """
    y = functional.layer_norm(x.float(), x.shape[1:], eps=epsilon)
    y = y.mul_(weight.index_select(0, groups.slot_of))
    if bias is not None:
        y = y.add_(bias.index_select(0, groups.slot_of))
    return y.to(x.dtype)


def can_group(config: BackboneConfig, *, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether grouped products of this backbone's widths are one kernel on this device."""
    alignment = ALIGNMENT_BYTES // dtype.itemsize
    return (
        device.type == "cuda"
        and dtype is GROUPED_DTYPE
        and config.hidden_width % alignment == 0
        and config.intermediate_width % alignment == 0
        and torch.cuda.get_device_capability(device)[0] in GROUPED_CAPABILITIES
    )

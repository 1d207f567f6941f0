"""Attention over packed rows in one call, by CUDA's flash kernels (Dao 2023, arXiv:2307.08691).

Axes: tokens = packed tokens, rows = packed rows, three_width = query, key and value of all heads
side by side, width = hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from nunatak_model.ops.device import to_device

FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_CAPABILITY = 8
"""Major compute capability from which torch's flash kernels run (Ampere)."""
FLASH_ALIGNMENT, FLASH_WIDEST_HEAD = 8, 256
"""Head widths that the kernels take: multiples of the first, up to the second."""
EVERYWHERE = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenAttention:
    """Rows by their bounds, which lie on the device; no row meets another's tokens."""

    bounds: Int32[Tensor, " rows+1"]
    """First token of each row, and the number of all tokens at the end."""
    longest: int
    """No row is longer; more is right too, and only plans more blocks."""
    num_tokens: int
    """Of all rows; tokens behind the last bound belong to no row, and theirs are undefined."""
    window: tuple[int, int] = EVERYWHERE
    """Neighbours that a token sees to the left and to the right."""

    def positions(self) -> Int[Tensor, " tokens"]:
        """Place of each token in its row, counted from 0; computed on the device."""
        places = torch.arange(self.num_tokens, device=self.bounds.device)
        row = torch.searchsorted(self.bounds, places, right=True) - 1
        return places - self.bounds.index_select(0, row)

    def narrow(self, reach: int) -> "VarlenAttention":
        """The same rows, with tokens that see only `reach` neighbours to either side."""
        return replace(self, window=(reach, reach))

    def __call__(
        self, qkv: Float[Tensor, "tokens three_width"], *, num_heads: int, dropout: float
    ) -> Float[Tensor, "tokens width"]:
        """Let the tokens of each row attend to one another (see `attention.attend`).

        Raises:
            ValueError: dropout is asked for, which the kernels have not.
        """
        if dropout > 0.0:
            raise ValueError(
                f"the kernels that serve have no dropout, got {dropout}; "
                "train on a backbone that is not packed"
            )
        # It brings torch's compiler along, whose import takes as long as that of torch itself.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - for CUDA alone

        query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
        # The arguments of torch 2.11, which all later versions take.
        context = varlen_attn(
            query,
            key,
            value,
            self.bounds,
            self.bounds,
            self.longest,
            self.longest,
            window_size=self.window,
        )
        if isinstance(context, tuple):
            raise TypeError("varlen_attn gave more than was asked for")
        return context.flatten(1)


def varlen_attention(lengths: Sequence[int], device: torch.device) -> VarlenAttention:
    """Prepare attention over packed rows of these lengths."""
    bounds = list(accumulate(lengths, initial=0))
    return VarlenAttention(
        bounds=to_device(bounds, device, dtype=torch.int32),
        longest=max(lengths),
        num_tokens=bounds[-1],
    )


def can_attend_varlen(dtype: torch.dtype, device: torch.device, *, head_width: int) -> bool:
    """Whether the flash kernels run in this number format, on this device, at this head width."""
    return (
        device.type == "cuda"
        and dtype in FLASH_DTYPES
        and head_width % FLASH_ALIGNMENT == 0
        and head_width <= FLASH_WIDEST_HEAD
        and torch.cuda.get_device_capability(device)[0] >= FLASH_CAPABILITY
    )

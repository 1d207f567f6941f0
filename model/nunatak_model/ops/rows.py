"""Sums over the tokens of packed rows, of which means are made.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

SumRows = Callable[
    [Float[Tensor, "tokens width"], Int[Tensor, " rows"]], Float[Tensor, "rows width"]
]
"""Adds up the tokens of each row, given all tokens and the lengths of the rows."""


def sum_by_index(
    hidden: Float[Tensor, "tokens width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """Add each token to its row: the fastest on a processor, and in the order of the tokens there.

    A CUDA device would add them in whatever order its threads come.
    """
    row_of_token = torch.repeat_interleave(lengths, output_size=len(hidden))
    sums = hidden.new_zeros(len(lengths), hidden.shape[1])
    return sums.index_add(0, row_of_token, hidden)


def sum_by_segment(
    hidden: Float[Tensor, "tokens width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """Walk the tokens of each row: in their order on every device, so with the same bits."""
    # Unchecked: to check that the lengths are those of `hidden`, it would wait for the device.
    return torch.segment_reduce(hidden, "sum", lengths=lengths, unsafe=True)

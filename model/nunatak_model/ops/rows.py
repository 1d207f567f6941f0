"""Packed rows: the selection of some rows, and the sum of each row's tokens for its mean.

Axes: tokens = packed tokens of the rows, selected = tokens of the rows that are picked, width =
hidden width.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_model.ops.device import to_device

SumRows = Callable[
    [Float[Tensor, "tokens width"], Int[Tensor, " rows"]], Float[Tensor, "rows width"]
]
"""Sums the tokens of each row, given all tokens and the lengths of the rows.

Semantics:
    for row, (begin, end) in enumerate(bounds of the rows):
        sums[row] = hidden[begin:end].sum(0)
"""


def select_rows(
    hidden: Float[Tensor, "tokens width"], offsets: Sequence[int], rows: Iterable[int]
) -> Float[Tensor, "selected width"]:
    """The tokens of some packed rows, one row after another.

    `offsets` gives the first token of each row, and the number of all tokens at the end.

    Semantics:
        selected = [hidden[token] for row in rows for token in range(*offsets[row : row + 2])]
    """
    tokens = chain.from_iterable(range(offsets[row], offsets[row + 1]) for row in rows)
    return hidden.index_select(0, to_device(list(tokens), hidden.device))


def sum_by_index(
    hidden: Float[Tensor, "tokens width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """Add each token to its row: the fastest way on a CPU, where the tokens are added in order.

    On a CUDA device, the order of the threads would change the sum.
    """
    row_of_token = torch.repeat_interleave(lengths, output_size=len(hidden))
    sums = hidden.new_zeros(len(lengths), hidden.shape[1])
    return sums.index_add(0, row_of_token, hidden)


def sum_by_segment(
    hidden: Float[Tensor, "tokens width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """Sum the tokens of each row in order. The sum has the same bits in every run on a device."""
    # Unchecked: a check that the lengths fit `hidden` would wait for the device.
    return torch.segment_reduce(hidden, "sum", lengths=lengths, unsafe=True)

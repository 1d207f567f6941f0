"""Packed rows: the selection of some rows, the sum of each row's tokens for its mean, and padding.

Axes: tokens = packed tokens of the rows, selected = tokens of the rows that are picked, width =
hidden width, cells = padded tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_model.ops.device import to_device, to_device_at_once

LAUNCH_CELLS = 512
"""Cells that take about as long as a launch. More padding than this is worth a further launch."""

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
    """The fastest way on a CPU. On a CUDA device, the order of the threads would change the sum."""
    row_of_token = torch.repeat_interleave(lengths, output_size=len(hidden))
    sums = hidden.new_zeros(len(lengths), hidden.shape[1])
    return sums.index_add(0, row_of_token, hidden)


def sum_by_segment(
    hidden: Float[Tensor, "tokens width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """In order: the sum has the same bits in every run on a device."""
    # Unchecked: a check that the lengths fit `hidden` would wait for the device.
    return torch.segment_reduce(hidden, "sum", lengths=lengths, unsafe=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Packed tokens in cells, of which each piece of adjacent tokens has as many as it needs.

    A cell without a token of its own reads another token, and no token reads such a cell.
    """

    token_of: Int[Tensor, " cells"]
    cell_of: Int[Tensor, " tokens"]

    def pad(self, x: Float[Tensor, "tokens width"]) -> Float[Tensor, "cells width"]:
        return x.index_select(0, self.token_of)

    def unpad(self, y: Float[Tensor, "cells width"]) -> Float[Tensor, "tokens width"]:
        return y.index_select(0, self.cell_of)


def plan_padding(
    pieces: Iterable[tuple[range, range]],
    *,
    num_cells: int,
    device: torch.device,
    extra: Sequence[int] = (),
) -> tuple[Padding, Int[Tensor, " extra"]]:
    """Put pieces of adjacent tokens into cells; `extra` goes to the device in the same copy.

    A cell after the last token of its piece reads the piece's first token, a cell of no piece token
    0.
    """
    token_of, cell_of = [0] * num_cells, list[int]()
    for tokens, cells in pieces:
        missing = len(cells) - len(tokens)
        token_of[cells.start : cells.stop] = [*tokens, *[tokens.start] * missing]
        cell_of.extend(cells[: len(tokens)])
    sent = to_device_at_once([token_of, cell_of, extra], device)
    return Padding(token_of=sent[0], cell_of=sent[1]), sent[2]

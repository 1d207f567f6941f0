"""Self-attention over packed rows of different lengths.

Attention has no task parameters, so all rows of a batch share it, whatever runs them. Rows lie
packed one after another, and each is read where it lies: nothing is padded, gathered or masked,
and no row's numbers ever meet another's. Neighbours of equal length share a call.

Axes: tokens = packed tokens, three_width = query, key and value of all heads side by side,
width = hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRun:
    """Neighbouring rows of one length."""

    num_rows: int
    length: int

    @property
    def num_tokens(self) -> int:
        """Packed tokens of all rows."""
        return self.num_rows * self.length


AttentionPlan = tuple[AttentionRun, ...]


def plan_attention(lengths: Sequence[int]) -> AttentionPlan:
    """Fall packed rows into runs of equal length, in their order."""
    return tuple(
        AttentionRun(num_rows=sum(1 for _ in rows), length=length)
        for length, rows in groupby(lengths)
    )


def attend(
    qkv: Float[Tensor, "tokens three_width"],
    plan: AttentionPlan,
    *,
    num_heads: int,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Let the tokens of each row attend to one another.

    Semantics:
        for row in rows:
            q, k, v = qkv[row].split(width)
            out[row] = softmax(q @ k.T / sqrt(head width)) @ v        for each head
    """
    width = qkv.shape[1] // 3
    outputs = list[Tensor]()
    parts = torch.split(qkv, [run.num_tokens for run in plan])
    for run, rows in zip(plan, parts, strict=True):
        heads = rows.view(run.num_rows, run.length, 3, num_heads, width // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        outputs.append(context.transpose(1, 2).reshape(run.num_tokens, width))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

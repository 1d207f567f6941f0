"""Self-attention over packed rows of different lengths.

Attention has no task parameters, so all rows of a batch share it, whatever runs them. The linear
layers see packed tokens; for attention alone, rows of similar length are gathered into buckets
that are padded to their longest row.

Axes: tokens = packed tokens, slots = tokens of all buckets with padding, three_width = query, key
and value of all heads side by side, width = hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

MIN_FILL = 0.75
"""A row joins a bucket if it fills at least this share of the bucket's longest row.

Short rows in a wide bucket waste products; many buckets waste calls. Between 0.6 and 0.9 the
difference is below the noise of a measurement.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Rows of similar length."""

    num_rows: int
    length: int
    mask: Bool[Tensor, "#rows 1 #length length"] | None
    """True where a query may see a key; None if all may see all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Where the tokens of a layout go for attention, and back."""

    buckets: tuple[Bucket, ...]
    gather: Int[Tensor, " slots"] | None
    """Packed token of each slot; None if packed and padded order are the same."""
    restore: Int[Tensor, " tokens"] | None
    """Slot of each packed token."""


def plan_attention(
    lengths: Sequence[int], offsets: Sequence[int], device: torch.device
) -> AttentionPlan:
    """Sort rows into buckets of similar length."""
    if len(set(lengths)) == 1:
        bucket = Bucket(num_rows=len(lengths), length=lengths[0], mask=None)
        return AttentionPlan(buckets=(bucket,), gather=None, restore=None)
    buckets, gather = list[Bucket](), list[int]()
    restore = [0] * offsets[-1]
    for rows in _bucket_rows(lengths):
        longest = lengths[rows[0]]
        for row in rows:
            first, length = offsets[row], lengths[row]
            restore[first : first + length] = range(len(gather), len(gather) + length)
            gather += range(first, first + length)
            # Padding reads some real token; the mask keeps it out of every sum.
            gather += [first] * (longest - length)
        buckets.append(_bucket([lengths[row] for row in rows], device))
    return AttentionPlan(
        buckets=tuple(buckets),
        gather=torch.tensor(gather, device=device),
        restore=torch.tensor(restore, device=device),
    )


def narrow(plan: AttentionPlan, *, reach: int, device: torch.device) -> AttentionPlan:
    """The same rows, with tokens that see only `reach` neighbours to either side.

    A mask over full products: what lies out of reach is computed and thrown away.
    """
    return replace(
        plan, buckets=tuple(_narrow_bucket(each, reach, device) for each in plan.buckets)
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
    padded = qkv if plan.gather is None else qkv.index_select(0, plan.gather)
    width = qkv.shape[1] // 3
    outputs = list[Tensor]()
    begin = 0
    for bucket in plan.buckets:
        slots = bucket.num_rows * bucket.length
        heads = padded[begin : begin + slots].view(
            bucket.num_rows, bucket.length, 3, num_heads, width // num_heads
        )
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bucket.mask, dropout_p=dropout
        )
        outputs.append(context.transpose(1, 2).reshape(slots, width))
        begin += slots
    context = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return context if plan.restore is None else context.index_select(0, plan.restore)


def _bucket_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Rows from long to short, a new bucket wherever a row would fill too little of it."""
    buckets = list[list[int]]()
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not buckets or lengths[row] < MIN_FILL * lengths[buckets[-1][0]]:
            buckets.append([])
        buckets[-1].append(row)
    return buckets


def _bucket(lengths: Sequence[int], device: torch.device) -> Bucket:
    longest = lengths[0]
    if lengths[-1] == longest:
        return Bucket(num_rows=len(lengths), length=longest, mask=None)
    real = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    return Bucket(num_rows=len(lengths), length=longest, mask=real[:, None, None, :].to(device))


def _narrow_bucket(bucket: Bucket, reach: int, device: torch.device) -> Bucket:
    if bucket.length <= reach + 1:
        return bucket
    places = torch.arange(bucket.length, device=device)
    distance = (places.unsqueeze(1) - places).abs()
    near = distance <= reach
    if bucket.mask is None:
        return replace(bucket, mask=near[None, None])
    # Padding out of reach of every real token sees itself: a softmax over nothing is no number.
    return replace(bucket, mask=near & (bucket.mask | (distance == 0)))

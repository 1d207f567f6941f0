"""Self-attention with a term for each pair of tokens in its scores, over packed rows.

A term depends on the distance between the two tokens (MPNet), or on the distance and the tokens
(DeBERTa). The flash kernels take no such terms, so adjacent rows of equal length share a call on
every device.

Axes: tokens = packed tokens, three_width = query, key and value of all heads side by side, width =
hidden width; of the rows of one length: rows, heads, length, head_width.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from nunatak_model.ops.attention import Attention, AttentionPlan, AttentionRun, RunAttention

PAIRS_AT_ONCE = 2**19
"""Pairs of tokens whose terms are in memory at once, if one row has no more: two rows of 512
tokens, which take 25 MB for each tensor of 12 heads."""
PairTerms = Callable[[Tensor, Tensor], Tensor]
"""Gives the terms [rows or 1, heads, query, key] for queries and keys [rows, heads, length,
head_width]."""


def by_runs(attention: Attention) -> RunAttention:
    if not isinstance(attention, RunAttention):
        raise TypeError(f"only attention by runs takes terms for pairs, got {type(attention)}")
    return attention


def runs_within(plan: AttentionPlan, tokens: slice) -> AttentionPlan:
    """The runs of the rows in these tokens, which begin and end with a row."""
    found, start = list[AttentionRun](), 0
    for run in plan:
        begin, end = max(start, tokens.start), min(start + run.num_tokens, tokens.stop)
        if begin < end:
            found.append(replace(run, num_rows=(end - begin) // run.length))
        start += run.num_tokens
    return tuple(found)


def attend_in_pieces(
    qkv: Float[Tensor, "tokens three_width"],
    plan: AttentionPlan,
    pieces: Iterable[tuple[slice, PairTerms | None]],
    *,
    num_heads: int,
    scale: float,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """`pieces` are adjacent tokens under the same terms."""
    parts = [
        attend_with_terms(
            qkv[tokens],
            runs_within(plan, tokens),
            terms,
            num_heads=num_heads,
            scale=scale,
            dropout=dropout,
        )
        for tokens, terms in pieces
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_with_terms(
    qkv: Float[Tensor, "tokens three_width"],
    plan: AttentionPlan,
    terms: PairTerms | None,
    *,
    num_heads: int,
    scale: float,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Let the tokens of each row attend to one another.

    Semantics:
        for row in rows:
            q, k, v = qkv[row].split(width)
            out[row] = softmax(scale * q @ k.T + terms(q, k)) @ v        for each head
    """
    width = qkv.shape[1] // 3
    outputs = list[Tensor]()
    runs = plan if terms is None else [part for run in plan for part in _parts(run)]
    parts = torch.split(qkv, [run.num_tokens for run in runs])
    for run, rows in zip(runs, parts, strict=True):
        heads = rows.view(run.num_rows, run.length, 3, num_heads, width // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if terms is None else terms(query, key),
            dropout_p=dropout,
            scale=scale,
        )
        outputs.append(context.transpose(1, 2).reshape(run.num_tokens, width))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _parts(run: AttentionRun) -> Iterator[AttentionRun]:
    """The rows of a run in parts whose terms fit the limit; at least one row each."""
    most = max(1, PAIRS_AT_ONCE // run.length**2)
    for start in range(0, run.num_rows, most):
        yield replace(run, num_rows=min(most, run.num_rows - start))


def distances(longest: int) -> range:
    """The distances query - key in rows of up to `longest` tokens, from the largest down."""
    return range(longest - 1, -longest, -1)


def by_pair(
    values: Shaped[Tensor, "*heads distances"], length: int
) -> Shaped[Tensor, "*heads length length"]:
    """Arrange one value for each of `distances(longest)` by query and key of a row.

    Semantics:
        for query in range(length), key in range(length):
            out[..., query, key] = the value of the distance query - key
    """
    longest = (values.shape[-1] + 1) // 2
    near = values[..., longest - length : longest + length - 1]
    return near.unfold(-1, length, 1).flip(-2)
